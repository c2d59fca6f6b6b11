"""What means a dataset is taken alike everywhere, and wrong types get a sentence of their own."""

import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.datasets.home.registries import add_registry
from orlog.datasets.recording.saving import convert_dataset
from orlog.errors import InvalidNameError, SchemaError
from tests.episodes import record_episodes

ANY = orlog  # whose functions are given what their types refuse
MINI = "pointmaze/umaze-mini-v1"
SPACES = {
    "observation_space": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    "action_space": gymnasium.spaces.Discrete(3),
}


def an_episode(**changes):
    fields = {
        "observations": np.zeros((4, 2), np.float32),
        "actions": np.array([0, 1, 2]),
        "rewards": np.array([1.0, 2.0, 3.0]),
        "terminations": np.array([False, False, True]),
        "truncations": np.zeros(3, bool),
    }
    return orlog.Episode(**fields | changes)


def written(episode, **options):
    return record_episodes("lab/given-v1", [episode], **SPACES, **options)[0]


def test_names_paths_and_datasets_mean_the_same_everywhere(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(mini.folder, tmp_path / "copy")
    same = [MINI, f"{MINI}@1.0.0", str(mini.folder), mini.folder, mini, "copy", "./copy"]
    for number, one in enumerate(same):
        assert orlog.load_dataset(one).digest == mini.digest
        assert orlog.verify_store(one, quick=True)[0].digest == mini.digest
        assert orlog.split_dataset(one, [1, 2])[1].total_episodes == 2
        assert orlog.combine_datasets([one, mini]).total_steps == 2 * mini.total_steps
        assert number or orlog.load_arrays(one, "ram").digest == mini.digest
    small = mini[:2].save(tmp_path / "small.json")
    views = [small, str(small), orlog.load_dataset(small)]
    for number, view in enumerate(views):
        folder = orlog.save_dataset(view, f"lab/small{number}-v1")
        assert orlog.load_dataset(folder).total_episodes == 2
        assert orlog.load_arrays(view, "ram").total_steps == 600
        batch = next(iter(orlog.transitions(view, 4, seed=0)))
        assert np.array_equal(batch.rewards, orlog.transitions(mini[:2], 4, seed=0).batch(0).rewards)
    first = orlog.load_dataset("lab/small0-v1").folder
    stored = ["lab/small0-v1", str(first), first, orlog.load_dataset(first)]
    for number, one in enumerate(stored):
        url = orlog.publish_dataset(one, tmp_path / f"registry{number}")
        assert url.endswith("/1.0.0")
        if not number:
            add_registry("lab", str(tmp_path / "registry0"))
        assert orlog.repair_dataset(one) == []
        converted = convert_dataset(one, tmp_path / f"hdf5-{number}", container="hdf5")
        assert orlog.load_dataset(converted).total_episodes == 2
    with orlog.DatasetWriter.append("lab/small0-v1") as writer:
        writer.add_episode(mini[0])
    assert orlog.load_dataset("lab/small0-v1").version == "1.1.0"
    assert orlog.build_dataset(mini) == orlog.build_dataset(MINI) == mini.folder
    assert orlog.download_dataset(mini) == mini.folder


def test_a_view_has_no_files_to_verify(mini):
    for use in (orlog.verify_store, orlog.repair_dataset):
        with pytest.raises(SchemaError, match=r"a view has no folder .* save_dataset .*\.$"):
            use(mini[:2])


URL = "https://data.example/lab/arm-v1/1.0.0"


@pytest.mark.parametrize(
    "use",
    [
        lambda: orlog.transitions(URL, 4, seed=0),
        lambda: orlog.split_dataset(URL, [1]),
        lambda: orlog.DatasetWriter.append(URL),
        lambda: orlog.verify_store(URL),
    ],
)
def test_a_url_is_taken_only_where_datasets_are_downloaded(use):
    with pytest.raises(InvalidNameError, match=r"is a URL; only load_dataset and download.*\.$"):
        use()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: ANY.load_dataset(5), "name must be .* found int 5."),
        (lambda _: ANY.verify_store(5), "folder must be .* found int 5."),
        (lambda _: ANY.build_dataset(Path("x")), "name must be .* found PosixPath"),
        (lambda _: ANY.transitions(5, seed=0), "data must be .* found int 5."),
        (lambda ds: ANY.goals(ds, seed=0, reward="sprase"), "reward must be a function .*sprase"),
        (lambda ds: ANY.goals(ds, seed=0, actor_goals=0.5), "actor_goals are each a GoalMixture, found 0.5."),
        (lambda ds: ANY.split_dataset(ds, 0.9), r"sizes must be a sequence .* found float 0\.9\."),
        (lambda ds: ANY.split_dataset(ds, ["a"]), "sizes must be numbers, found str 'a'."),
        (lambda ds: ANY.combine_datasets(ds), "datasets must be a sequence .* found Dataset"),
        (lambda ds: ds.filter_episodes(5), "condition must be .* found int 5."),
        (
            lambda ds: ds.filter_episodes(lambda episode: episode.rewards > 0),
            r"condition must return one truth value .* found bool\[300\] for episode 0",
        ),
        (lambda ds: ANY.Episode(**vars_of(ds[0]) | {"infos": 5}), "infos must be .* int 5."),
        (
            lambda _: ANY.DatasetWriter("lab/x-v1", environment="Pendulum-v1"),
            "environment must be .* made by gymnasium.make, found str 'Pendulum-v1'.",
        ),
        (
            lambda _: ANY.DatasetWriter("lab/x-v1", observation_space=5, action_space=5),
            "observation_space must be a space .* found int 5.",
        ),
    ],
)
def test_a_wrong_type_is_named_with_what_is_taken(mini, call, message):
    with pytest.raises(TypeError, match=message) as found:
        call(mini[:2])
    assert len(str(found.value)) < 300
    assert str(found.value).endswith(".")


def vars_of(episode):
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    return {name: getattr(episode, name) for name in names}


@pytest.mark.parametrize(
    ("rewards", "dtype"),
    [
        ([0.1, 0.2, 0.3], np.float32),
        (np.array([1, 2, 2**53 + 1]), np.float64),
        (np.array([1, 2, 2**24 + 1]), np.float32),
        ([1e300, 0.0, 0.0], np.float32),
    ],
)
def test_rewards_that_would_change_are_refused(rewards, dtype):
    with pytest.raises(SchemaError, match=r"column rewards: expected .* cannot hold exactly"):
        written(an_episode(rewards=rewards), reward_dtype=dtype)


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ([{"a": 1.0}, {"b": 1.0}, {"a": 1.0}], "step 0 and step 1 do not have the same names"),
        ([{"a": 1.0}, {"a": "x"}, {"a": 1.0}], "'a' must be numbers, flags, texts or arrays"),
        ([{"a": 2**53 + 1}, {"a": 0.5}, {"a": 1}], "'a' must be numbers"),
        ([{"a": None}] * 3, "'a' must be numbers"),
    ],
)
def test_infos_that_make_no_columns_are_refused(infos, message):
    with pytest.raises(SchemaError, match=message):
        an_episode(infos=infos)
