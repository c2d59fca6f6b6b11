import threading

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog import Dataset, DatasetWriter, combine_datasets, save_dataset
from orlog.datasets.recording import saving
from orlog.datasets.recording.saving import convert_dataset
from orlog.datasets.store.verify import verify_folder
from orlog.errors import IntegrityError, InvalidNameError, SchemaError, VersionExistsError
from orlog.manifests.manifest import Parent
from tests.datasets.recording.arms import finished
from tests.episodes import whole_episode

OBSERVATION = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (32, 32, 3), np.uint8),
        "objects": spaces.Sequence(spaces.Dict({"name": spaces.Text(9), "place": spaces.Box(-1, 1, (2,), np.float32)})),
        "scene": spaces.Graph(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)),
        "task": spaces.Text(20),
    }
)
OTHER = {"zarr": "hdf5", "hdf5": "zarr"}
ACTION = spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])


def an_episode(steps, seed):
    OBSERVATION.seed(seed)
    ACTION.seed(seed)
    rng = np.random.default_rng(seed)
    return whole_episode(
        [OBSERVATION.sample() for _ in range(steps + 1)],
        [ACTION.sample() for _ in range(steps)],
        np.where(rng.random(steps) < 0.2, np.nan, rng.random(steps)),
        infos={
            "boxes": [rng.random((index % 3, 4)) for index in range(steps)],
            "note": [f"Schritt schöner {index}" for index in range(steps)],
        },
        seed=seed,
        metadata={"operator": "Zoë" if seed % 2 else "", "score": float(seed)},
    )


def some_episodes(lengths, first_seed):
    return [an_episode(steps, first_seed + number) for number, steps in enumerate(lengths)]


def record(name, lengths, *, first_seed=0, **facts):
    writer = DatasetWriter(name, observation_space=OBSERVATION, action_space=ACTION, **facts)
    return finished(writer, some_episodes(lengths, first_seed))


def append(base, lengths, first_seed):
    return finished(DatasetWriter.append(base), some_episodes(lengths, first_seed))


def same_rows(first, second):
    assert first.columns == second.columns
    for name in first.columns:
        np.testing.assert_array_equal(first.column(name), second.column(name), err_msg=name)


def test_there_and_back_keeps_everything_but_the_objects(tmp_path):
    dataset = record("lab/arm-v1", [3, 1, 5], description="An arm.", license="MIT")
    folder = convert_dataset(dataset, tmp_path / "new" / "hdf5", container="hdf5")
    assert sorted(path.name for path in folder.iterdir()) == ["data.h5", "manifest.json"]
    single = orlog.load_dataset(folder)
    same_rows(dataset, single)
    assert single.manifest.columns == dataset.manifest.columns
    assert single.manifest.lineage == [Parent(digest=dataset.digest, operation="convert")]
    assert verify_folder(folder)[1] == []

    back = Dataset(convert_dataset(single, tmp_path / "zarr", container="zarr"))
    same_rows(dataset, back)
    assert back.manifest.objects == dataset.manifest.objects
    assert back.manifest.columns == dataset.manifest.columns
    assert back.manifest.lineage[1] == Parent(digest=single.digest, operation="convert")
    facts = ("name", "description", "license", "non_finite", "variable_columns")
    assert (single.version, back.version) == ("1.0.1", "1.0.2")
    assert single.manifest.changes == "lab/arm-v1@1.0.0 in the hdf5 container"
    assert dataset.manifest.non_finite == {"episodes/returns": 2, "rewards": 2}
    for fact in facts:
        assert getattr(back.manifest, fact) == getattr(dataset.manifest, fact)


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
def test_parts_stay_parts_and_progress_ends_at_all_bytes(tmp_path, container):
    base = record("lab/arm-v1", [3, 1], container=container)
    dataset = append(append(base, [4], 2), [2, 2], 3)
    seen = []
    folder = convert_dataset(
        dataset, tmp_path / "other", container=OTHER[container], progress=lambda done, total: seen.append((done, total))
    )
    total = sum(dataset.column(name).nbytes for name in dataset.columns)
    assert (seen[0], seen[-1]) == ((0, total), (total, total))
    assert seen == sorted(seen)
    converted = Dataset(folder)
    assert converted.manifest.parts == dataset.manifest.parts
    assert len(converted.manifest.parts) == 3
    assert converted.manifest.lineage[0].operation == "append"
    same_rows(dataset, converted)
    assert verify_folder(folder)[1] == []
    for number in range(dataset.total_episodes):
        assert converted[number].infos["note"] == dataset[number].infos["note"]


@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_what_is_there_is_not_overwritten(tmp_path, kind):
    dataset = record("lab/arm-v1", [3])
    target = tmp_path / "target"
    if kind == "folder":
        target.mkdir()
    else:
        target.symlink_to("nowhere")
    with pytest.raises(VersionExistsError, match="never overwritten"):
        convert_dataset(dataset, target, container="hdf5")
    with pytest.raises(ValueError, match="is in the zarr container"):
        convert_dataset(dataset, tmp_path / "other", container="zarr")
    with pytest.raises(SchemaError, match="store it as a version first: orlog save"):
        convert_dataset(dataset[:1], tmp_path / "other", container="hdf5")
    assert [path.name for path in tmp_path.iterdir() if "target" in path.name] == ["target"]


def damage_frames(folder, _reseal):
    path = folder / "data.h5"
    place = 2 if path.exists() else 20
    path = path if path.exists() else folder / "observations/camera/c.0.0.0.0"
    data = bytearray(path.read_bytes())
    data[len(data) // place] ^= 0xFF
    path.write_bytes(data)


def promise_other_rewards(folder, reseal):
    def change(body):
        (rewards,) = (column for column in body["columns"] if column["name"] == "rewards")
        rewards["blake3"] = "0" * 64

    reseal(folder, change)


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [(damage_frames, "observations/camera"), (promise_other_rewards, r"column rewards[:,] blake3:? expected 0000")],
)
def test_a_damaged_source_leaves_nothing(tmp_path, container, damage, said, reseal):
    dataset = record("lab/arm-v1", [3, 1], container=container)
    damage(dataset.folder, reseal)
    with pytest.raises(IntegrityError, match=said):
        convert_dataset(Dataset(dataset.folder), tmp_path / "target", container=OTHER[container])
    assert not (tmp_path / "target").exists()
    assert not (tmp_path / ".target.unfinished").exists()


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
def test_a_stored_version_is_copied(container):
    dataset = append(record("lab/arm-v1", [3, 1], license="MIT"), [4], 2)
    folder = save_dataset(dataset, "lab/copy-v1", container=container, changes="A copy.")
    saved = orlog.load_dataset("lab/copy-v1@1.0.0")
    assert saved.folder == folder
    same_rows(dataset, saved)
    assert verify_folder(folder)[1] == []
    assert saved.manifest.parts == []
    assert saved.lineage == [Parent(digest=dataset.digest, operation="copy")]
    assert (saved.manifest.license, saved.manifest.changes) == ("MIT", "A copy.")
    assert saved.manifest.container == container
    assert saved.manifest.non_finite == dataset.manifest.non_finite


def test_a_view_is_stored_with_its_lineage():
    dataset = record("lab/arm-v1", [3, 1, 5, 2], description="An arm.")
    view = dataset[[2, 0]]
    assert view.operation is not None
    saved = Dataset(save_dataset(view, "lab/few-v1", version="0.2.0", description="Two."))
    same_rows(view, saved)
    assert saved.episode_lengths.tolist() == [5, 3]
    assert (saved.manifest.version, saved.manifest.description) == ("0.2.0", "Two.")
    operation = view.lineage[0].operation
    assert saved.lineage == [Parent(digest=dataset.digest, operation=operation)]


def test_a_mixture_keeps_what_its_sources_agree_on():
    first = record("lab/arm-v1", [3, 1], license="MIT", behavior_policy="a script")
    second = record("lab/arm-v2", [4], first_seed=5, license="CC-BY-4.0", behavior_policy="a person")
    view = combine_datasets([first, second, first], weights=[1, 2, 1])
    saved = Dataset(save_dataset(view, "lab/mixed-v1"))
    same_rows(view, saved)
    assert saved.total_episodes == 5
    assert saved.manifest.license == "MIT AND CC-BY-4.0"
    assert saved.manifest.behavior_policy == "a script; a person"
    assert [parent.digest for parent in saved.lineage] == [first.digest, second.digest, first.digest]
    assert saved.mixture is None


def test_environment_and_benchmark_are_kept_by_what_is_derived_where_all_agree(reseal, tmp_path):
    known = {"id": "Arm-v0", "kwargs": {}, "max_episode_steps": 9, "versions": {}}
    stated = {"environment": known, "benchmark": "d4rl/arm-expert-v2"}
    first, second, other = (record(f"lab/arm-v{number}", [3, 2], first_seed=number) for number in (1, 2, 3))
    for dataset in (first, second):
        reseal(dataset.folder, lambda body: body.update(stated))
    first, second = Dataset(first.folder), Dataset(second.folder)
    alike = save_dataset(combine_datasets([first, second]), "lab/alike-v1")
    unlike = save_dataset(combine_datasets([first, other]), "lab/unlike-v1")
    changed = convert_dataset(first, tmp_path / "changed", container="hdf5")
    for dataset in (Dataset(alike), Dataset(changed), append(first, [2], 7)):
        assert dataset.environment == first.environment is not None
        assert dataset.benchmark == "d4rl/arm-expert-v2"
    assert (Dataset(unlike).environment, Dataset(unlike).benchmark) == (None, "")


def test_versions_are_never_overwritten():
    dataset = record("lab/arm-v1", [3])
    with pytest.raises(VersionExistsError, match="never changes"):
        save_dataset(dataset, "lab/arm-v1")
    assert Dataset(dataset.folder).digest == dataset.digest
    with pytest.raises(InvalidNameError):
        save_dataset(dataset, "../arm")


def test_equal_objects_of_other_versions_are_shared():
    dataset = record("lab/arm-v1", [3, 1])
    folder = save_dataset(dataset, "lab/arm-v1", version="1.0.1")
    place = "observations/camera/c.0.0.0.0"
    assert (folder / place).samefile(dataset.folder / place)


def test_the_other_of_two_processes_finds_the_version(monkeypatch):
    dataset = record("lab/arm-v1", [3, 1])
    outcomes = []
    entered, second_waits = threading.Event(), threading.Event()
    copy = saving._copy_episodes

    def slow(*arguments):
        entered.set()
        assert second_waits.wait(120)
        return copy(*arguments)

    monkeypatch.setattr(saving, "_copy_episodes", slow)

    def save():
        try:
            outcomes.append(save_dataset(dataset, "lab/copy-v1"))
        except VersionExistsError as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=save) for _ in range(2)]
    threads[0].start()
    assert entered.wait(120)
    threads[1].start()
    second_waits.set()
    for thread in threads:
        thread.join(120)
    assert VersionExistsError in outcomes
    assert len(outcomes) == 2
