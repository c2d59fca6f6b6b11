"""What other libraries get is what episodes hold, one by one."""

import sys
import warnings

import minari
import numpy as np
import pytest
from gymnasium import spaces

from orlog.errors import MissingExtraError, SchemaError
from tests.datasets.recorded_samples import LENGTHS, record_samples
from tests.tool_environments import run_tool, tool_python


@pytest.fixture
def vectors():
    return record_samples(
        "lab/v-v0",
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.Box(-1, 1, (1,), np.float32),
        stops=False,
        infos=("place", "said"),
    )


def test_rows_are_the_transitions_of_all_episodes(vectors):
    columns, row = vectors.to_dict(), 0
    for number, episode in enumerate(vectors):
        for step in range(len(episode.rewards)):
            assert (columns["episodes"][row], columns["steps"][row]) == (number, step)
            np.testing.assert_array_equal(columns["observations"][row], episode.observations[step])
            np.testing.assert_array_equal(columns["next_observations"][row], episode.observations[step + 1])
            for name in ("actions", "rewards", "terminations", "truncations"):
                np.testing.assert_array_equal(columns[name][row], getattr(episode, name)[step])
            np.testing.assert_array_equal(columns["infos"]["place"][row], episode.infos["place"][step])
            row += 1
    assert row == len(columns["rewards"]) == len(columns["infos"]["said"])
    few = vectors.to_dict(episodes=[2, 0])
    assert few["episodes"].tolist() == [2] * 4 + [0] * 3
    with pytest.raises(SchemaError, match="no episode"):
        vectors.to_dict(episodes=[])


def test_pandas_has_a_column_for_each_number(vectors):
    frame = vectors.to_pandas(episodes=range(2))
    assert frame.index.tolist() == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert {"observations/1", "next_observations/0", "actions/0", "infos/place/1"} <= set(frame)
    np.testing.assert_array_equal(frame["observations/1"][0], vectors[0].observations[:-1, 1])
    assert frame.loc[(0, 1), "rewards"] == 0.25
    mixed = record_samples(
        "lab/m-v0",
        spaces.Dict({"arm": spaces.Box(0, 1, (2,)), "frame": spaces.Box(0, 255, (4, 4), np.uint8)}),
        spaces.Discrete(3),
    ).to_pandas()
    assert mixed["observations/frame"].iloc[0].shape == (4, 4)
    assert "observations/arm/1" in mixed


def test_minari_makes_a_dataset_of_it(vectors, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it wants an author, a link to the code ..
        made = vectors.to_minari()
    for theirs, ours in zip(minari.load_dataset("lab/v-v0"), vectors, strict=True):
        np.testing.assert_array_equal(theirs.observations, ours.observations)
        np.testing.assert_array_equal(theirs.rewards, ours.rewards)
    assert made.total_steps == 8


@pytest.mark.thorough
def test_hugging_face_has_the_same_rows(vectors, tmp_path):
    code = """
    import datasets, numpy as np, orlog

    dataset = orlog.load_dataset("lab/v-v0")
    columns, rows = dataset.to_dict(), dataset.to_hf()
    assert isinstance(rows, datasets.Dataset)
    infos = {f"infos/{name}": values for name, values in columns.pop("infos").items()}
    assert set(rows.column_names) == {*columns, *infos}
    for name, values in (columns | infos).items():
        assert np.array_equal(np.asarray(rows[:][name]), values), name
    rows.save_to_disk("saved")
    assert len(datasets.load_from_disk("saved")) == len(columns["rewards"])
    """
    assert vectors.total_steps == sum(LENGTHS)
    run_tool(tool_python("datasets==5.2.0"), code, folder=tmp_path)


def test_what_is_not_installed_says_how_to_get_it(vectors, monkeypatch):

    monkeypatch.setitem(sys.modules, "tensordict", None)
    with pytest.raises(MissingExtraError, match="pip install tensordict"):
        vectors.to_torchrl()
