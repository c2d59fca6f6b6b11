import json

import gymnasium
import msgspec
import numpy as np
import pytest

import orlog
from orlog.errors import NotFoundError
from orlog.manifests.benchmarks import BENCHMARKS, benchmark_datasets
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.shipped import recorded_manifest
from orlog.normalize.references import Protocol, PublishedReferences, ReferenceReturns, score_caveats
from orlog.runs.measuring import measure_references
from orlog.runs.references import references_of
from tests.episodes import record_episodes, whole_episode

HOPPER = Protocol(
    environment_id="Hopper-v4",
    environment_kwargs={},
    versions={"gymnasium": "1.2.0", "mujoco": "3.3.2"},
    max_episode_steps=1000,
    episodes=100,
    first_seed=0,
    environments=10,
)


def test_references_of_a_benchmark_say_values_source_protocol_simulator_and_caveats():
    found = orlog.references("d4rl/hopper-medium-v2")
    assert isinstance(found, PublishedReferences)
    assert (found.random.mean, found.expert.mean) == (-20.272305, 3234.3)
    assert found.source.startswith("Farama-Foundation/D4RL@89141a689b:d4rl/infos.py")
    assert found.simulator == "mujoco-py and gym of 2020 (gym's Hopper-v2 on mujoco-py)"
    assert "infos.py and registration agree" in found.protocol.description
    assert found.caveats == []
    assert "100 episodes" in " ".join(orlog.references("d4rl/antmaze-umaze-v2").caveats)
    assert float(found.normalize(3234.3)) == 100  # a number does as well


def test_every_dataset_of_a_benchmark_has_its_references_or_one_clear_line():
    known = 0
    for key in BENCHMARKS:
        for dataset in benchmark_datasets(key):
            if dataset.anchors is None:
                with pytest.raises(NotFoundError) as caught:
                    orlog.references(dataset.name)
                assert str(caught.value).startswith(f"{dataset.name}: {dataset.benchmark.title} ")
                assert "\n" not in str(caught.value)
            else:
                found = orlog.references(dataset.name)
                assert (found.random.mean, found.expert.mean) == dataset.anchors
                assert found.source == dataset.source
                known += 1
    assert known == 182 + 57 + 38 + 8


def test_measured_references_answer_the_same_questions():
    found = orlog.references("pointmaze/umaze-v1")
    assert isinstance(found, ReferenceReturns)
    assert found.source == "measured with orlog"
    assert found.simulator.startswith("PointMaze_UMaze-v3 (gymnasium ")
    assert found.caveats == []


def test_an_open_dataset_and_its_name_have_the_same_references(mini_folder):
    found = orlog.references(mini_folder)
    assert found == orlog.references(orlog.load_dataset(mini_folder))
    assert found == orlog.references("pointmaze/umaze-v1")


def test_what_is_not_known_is_said(tmp_path):
    with pytest.raises(NotFoundError, match=r"lab/hopper-v1: no dataset of this name is here or in"):
        orlog.references("lab/hopper-v1")
    with pytest.raises(NotFoundError, match=r"Did you mean d4rl/hopper-medium-v2\?"):
        orlog.references("hopper-medium-v2")
    with pytest.raises(NotFoundError):
        orlog.references(tmp_path / "none")


def test_references_of_the_benchmark_come_before_those_of_the_environment():
    manifest = recorded_manifest("pointmaze/umaze-v1")
    assert manifest is not None
    assert references_of(manifest) == orlog.references("pointmaze/umaze-v1")
    for changes in ({"benchmark": "d4rl/maze2d-umaze-v1"}, {"name": "d4rl/maze2d-umaze-v1"}):
        known = benchmark_environment("d4rl/maze2d-umaze-v1")
        assert known is not None
        of_d4rl = msgspec.structs.replace(manifest, environment=known.record, **changes)
        assert references_of(of_d4rl) == orlog.references("d4rl/maze2d-umaze-v1")
        # Returns of another environment are no scores of D4RL, whatever a manifest claims.
        claimed = msgspec.structs.replace(manifest, **changes)
        assert references_of(claimed) is None
    without = msgspec.structs.replace(manifest, benchmark="minari/D4RL/pointmaze/umaze")
    assert references_of(without) == orlog.references("pointmaze/umaze-v1")


def test_what_cannot_be_scored_here_is_said():
    found = orlog.references("d4rl/bullet-ant-medium-v0")
    assert found.simulator == "PyBullet's ant"
    assert any("no policy can be scored here: it runs in PyBullet" in one for one in found.caveats)


def test_a_dataset_without_environment_of_another_name_has_none():
    manifest = recorded_manifest("pointmaze/umaze-v1")
    assert manifest is not None
    bare = msgspec.structs.replace(manifest, environment=None)
    assert references_of(bare) is None
    named = msgspec.structs.replace(bare, name="d4rl/hopper-medium-v2")
    assert references_of(named) == orlog.references("d4rl/hopper-medium-v2")
    own = msgspec.structs.replace(named, name="lab/hop-v1", benchmark="d4rl/hopper-medium-v2")
    found = references_of(own)
    assert isinstance(found, PublishedReferences)
    assert found.random == orlog.references("d4rl/hopper-medium-v2").random
    assert found.caveats == []


def test_a_score_names_its_simulator_and_that_of_published_references():
    notes = score_caveats(orlog.references("d4rl/hopper-medium-v2"), HOPPER)
    assert notes[0] == "returns were measured in Hopper-v4 (gymnasium 1.2.0, mujoco 3.3.2)."
    assert "measured in mujoco-py and gym of 2020" in notes[1]
    known = benchmark_environment("d4rl/hopper-medium-v2")
    assert known is not None
    assert known.differences
    assert notes[2 : 2 + len(known.differences)] == known.differences
    assert not any("not a D4RL score" in note for note in notes)
    fifth = msgspec.structs.replace(HOPPER, environment_id="Hopper-v5")
    notes = score_caveats(orlog.references("d4rl/hopper-medium-v2"), fifth)
    assert any("score is not a D4RL score" in note for note in notes)


def test_a_score_says_where_measured_references_used_other_versions():
    found = orlog.references("pointmaze/umaze-v1")
    assert isinstance(found, ReferenceReturns)
    same = found.protocol
    assert len(score_caveats(found, same)) == 1
    other = msgspec.structs.replace(same, versions={**same.versions, "mujoco": "2.0"})
    assert score_caveats(found, other)[1:] == [
        f"the references were measured with mujoco {same.versions['mujoco']}, the returns with 2.0."
    ]


@pytest.mark.filterwarnings("ignore:.*The environment CartPole-v0 is out of date")
def test_a_view_of_parts_with_other_references_has_none():
    """Returns of two environments have no common score."""
    parts = []
    for version in (0, 1, 1):
        name = f"lab/part-{len(parts)}-v1"
        record_episodes(
            name,
            [whole_episode(np.zeros((2, 4), np.float32), np.zeros(1, np.int64), np.ones(1))],
            environment=gymnasium.make(f"CartPole-v{version}"),
        )
        parts.append(orlog.load_dataset(name))
    found = measure_references(parts[1], expert=500.0, source="S", episodes=1, keep=True)
    assert orlog.references(orlog.combine_datasets(parts[1:])) == found
    with pytest.raises(NotFoundError, match="this view also holds lab/part-0-v1, whose references"):
        orlog.normalized_score(orlog.combine_datasets([parts[1], parts[0]]), [1.0])


def test_a_minari_dataset_is_scored_by_the_references_in_its_metadata(tmp_path):
    with orlog.record(gymnasium.make("MountainCar-v0"), "lab/car-v1") as env:
        env.reset(seed=0)
        for _ in range(200):
            env.step(0)
    orlog.export_dataset("lab/car-v1", tmp_path / "out", to="minari")
    (tmp_path / "out" / "SHA256SUMS").unlink()  # what is changed below would be refused
    (metadata,) = (tmp_path / "out").rglob("data/metadata.json")
    body = json.loads(metadata.read_text())
    for number, (low, high) in enumerate((("low", 1), (3.0, 1.0), (-200.0, -103.5))):
        metadata.write_text(json.dumps(body | {"ref_min_score": low, "ref_max_score": high}))
        orlog.import_dataset(metadata.parents[1], f"lab/minari-v{number}")
    for number in (0, 1):
        with pytest.raises(NotFoundError, match="no reference returns are known"):
            orlog.references(f"lab/minari-v{number}")
    found = orlog.references("lab/minari-v2")
    assert isinstance(found, PublishedReferences)
    assert (found.random.mean, found.expert.mean) == (-200.0, -103.5)
    assert found.protocol.environment_id == "MountainCar-v0"
    assert found.caveats == ["Minari's own scores are these divided by 100."]
    assert orlog.normalized_score("lab/minari-v2", [-200.0, -103.5]).tolist() == [0.0, 100.0]
