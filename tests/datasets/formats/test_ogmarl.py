"""OG-MARL's vaults: those of flashbax itself and of its layout, any episodes in any blocks, damaged ones."""

import json

import numpy as np
import pytest
import tensorstore
from gymnasium import spaces

import orlog
from orlog.datasets.formats import benchmarks
from orlog.datasets.formats.formats import choose_format, formats
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files
from tests.tool_environments import run_tool, tool_python

LENGTHS, ENDED = [4, 3, 5], [True, False, True]
AGENTS, CHOICES = 3, 5


def arrays(seed=0):
    """Return steps of three episodes; in the first one, the first agent is done a step sooner."""
    rng = np.random.default_rng(seed)
    count, last = sum(LENGTHS), np.cumsum(LENGTHS) - 1
    terminals, truncations = np.zeros((2, count, AGENTS), bool)
    terminals[last], truncations[last] = np.array([ENDED, np.invert(ENDED)])[..., None]
    terminals[last[0] - 1, 0] = True
    return {
        "observations": rng.normal(size=(count, AGENTS, 4)).astype("f4"),
        "actions": rng.integers(0, CHOICES, (count, AGENTS)).astype("i4"),
        "rewards": rng.normal(size=(count, AGENTS)).astype("f4"),
        "terminals": terminals,
        "truncations": truncations,
        "infos.state": rng.normal(size=(count, 6)).astype("f4"),
        "infos.legals": rng.integers(0, 2, (count, AGENTS, CHOICES)).astype("f4"),
    }


def write(folder, steps, count=None):
    """Write a vault as flashbax lays it out."""
    folder.mkdir(parents=True)
    shape = {}
    count = len(steps["rewards"]) if count is None else count
    stored = {f"{name}.": (values[None], True) for name, values in steps.items()}
    stored["vault_index"] = (np.array([count], "i4"), False)
    for name, (values, is_open) in stored.items():
        base = {"driver": "file", "path": f"{folder}/"}
        kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        array = tensorstore.open(
            {"driver": "zarr", "kvstore": kvstore, "metadata": {"compressor": {"id": "gzip"}}},
            dtype=values.dtype,
            shape=(1, 10**12, *values.shape[2:]) if is_open else values.shape,
            create=True,
        ).result()
        array[tuple(slice(size) for size in values.shape)].write(values).result()
        place = shape
        *above, own = name.rstrip(".").split(".")
        for part in above:
            place = place.setdefault(part, {})
        if is_open:
            place[own] = str((1, 1000, *values.shape[2:]))
    said = {"version": 1.2, "structure_shape": shape}
    (folder / "metadata.json").write_text(json.dumps(said), "utf-8")
    return folder


def check(dataset, steps):
    assert dataset.observation_space == spaces.Dict(
        {f"agent_{n}": spaces.Box(-np.inf, np.inf, (4,), np.float32) for n in range(AGENTS)}
    )
    legal = {f"infos/agents/agent_{n}/legals" for n in range(AGENTS)}
    assert {one for one, role in dataset.roles.items() if role == "legal_actions"} == legal
    start = 0
    for episode, length, ended in zip(dataset, LENGTHS, ENDED, strict=True):
        kept = length if ended else length - 1
        rows = slice(start, start + kept)
        assert len(episode) == kept
        assert episode.metadata["final_observation_missing"] == ended
        for number in range(AGENTS):
            name = f"agent_{number}"
            seen = episode.observations[name]
            stop = start + kept + (not ended)
            np.testing.assert_array_equal(seen[: stop - start], steps["observations"][start:stop, number])
            assert not ended or not seen[-1].any()
            np.testing.assert_array_equal(episode.actions[name], steps["actions"][rows, number])
            infos = {
                key.removeprefix(f"agents/{name}/"): values
                for key, values in episode.infos.items()
                if key.startswith(f"agents/{name}/")
            }
            np.testing.assert_array_equal(infos["rewards"], steps["rewards"][rows, number])
            np.testing.assert_array_equal(infos["legals"], steps["infos.legals"][rows, number])
            acts = np.ones(kept, bool)
            acts[3:] = not (start == 0 and number == 0)
            np.testing.assert_array_equal(infos["acts"], acts)
            flags = steps["terminals"][rows, number] & acts
            np.testing.assert_array_equal(infos["terminations"], flags)
        total = steps["rewards"][rows].sum(axis=1, dtype=float)
        np.testing.assert_array_equal(episode.rewards, total)
        np.testing.assert_array_equal(episode.infos["state"], steps["infos.state"][rows])
        assert (episode.terminations[-1], episode.truncations[-1]) == (ended, not ended)
        start += length


@pytest.mark.parametrize("block_bytes", [1, 400, 2**24])
def test_a_vault_is_read_in_blocks_of_any_size(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(benchmarks, "BLOCK_BYTES", block_bytes)
    folder = write(tmp_path / "3m.vlt" / "Good", arrays())
    dataset, found = read_files(formats()["ogmarl"], folder, tmp_path / "store")
    check(dataset, arrays())
    assert dataset.action_space["agent_0"] == spaces.Discrete(CHOICES)
    assert (found.terminated, found.truncated) == (2, 1)
    assert len(sentences(found.notes)) == 2


def test_vaults_of_a_folder_are_splits_or_chosen(tmp_path):
    for number, uid in enumerate(("Good", "Poor")):
        write(tmp_path / "3m.vlt" / uid, arrays(number))
    assert choose_format([tmp_path / "3m.vlt"], None, "lab/x").name == "og-marl-vault"
    orlog.import_dataset(tmp_path / "3m.vlt", "lab/3m-v0")
    dataset = orlog.load_dataset("lab/3m-v0")
    assert [one.metadata["split"] for one in dataset] == ["Good"] * 3 + ["Poor"] * 3
    check(dataset[:3], arrays(0))
    check(dataset[3:], arrays(1))
    orlog.import_dataset(tmp_path / "3m.vlt", "lab/poor-v0", task="Poor")
    check(orlog.load_dataset("lab/poor-v0"), arrays(1))
    with pytest.raises(SchemaError, match="task='Medium': there is no such vault"):
        orlog.import_dataset(tmp_path / "3m.vlt", "lab/medium-v0", task="Medium")


def test_actions_that_are_no_choices_and_episodes_without_an_end_are_read(tmp_path):
    steps = {name: values[:6] for name, values in arrays().items() if name != "infos.legals"}
    steps["actions"] = np.zeros((6, AGENTS, 2), "f4")
    dataset, found = read_files(formats()["ogmarl"], write(tmp_path / "a", steps), tmp_path / "s")
    assert dataset.episode_lengths.tolist() == [4, 1]
    assert "a: the last episode does not end" in sentences(found.notes)[0]
    assert dataset.action_space["agent_1"].shape == (2,)
    batch = next(iter(orlog.transitions(dataset, batch_size=4, seed=0)))
    assert batch.actions.shape == (4, AGENTS * 2)


def test_what_is_wrong_names_vault_and_array(tmp_path):
    good = arrays()
    late = {**good, "rewards": good["rewards"][:5]}
    odd = good["actions"].copy()
    odd[7, 1] = 9
    cases = [
        ({**good, "actions": odd}, SchemaError, "actions: expected discrete actions from 0 to 4, found 0 to 9"),
        ({**good, "terminals": good["rewards"]}, SchemaError, "terminals: expected 0 or 1"),
        ({**good, "observations": good["rewards"][:, :2]}, SchemaError, "rows for 3 agents"),
        ({name: good[name] for name in list(good)[1:]}, SchemaError, "expected observations"),
    ]
    for number, (steps, error, message) in enumerate(cases):
        folder = write(tmp_path / str(number) / "Bad", steps)
        with pytest.raises(error, match=f"Bad.*{message}"):
            read_files(formats()["ogmarl"], folder, tmp_path / "store")
    folder = write(tmp_path / "a", late, len(good["rewards"]) + 2**20)
    with pytest.raises(IntegrityError, match=r"not all of the .* steps are in the vault"):
        read_files(formats()["ogmarl"], folder, tmp_path / "store")
    folder = write(tmp_path / "b", good)
    for file in (folder / "d").iterdir():
        file.unlink()
    with pytest.raises(IntegrityError, match="b: cannot be read"):
        read_files(formats()["ogmarl"], folder, tmp_path / "store")
    folder = write(tmp_path / "c", good)
    (folder / "more").symlink_to(tmp_path)
    with pytest.raises(SchemaError, match="c: a file is a link"):
        read_files(formats()["ogmarl"], folder, tmp_path / "store")
    (folder / "metadata.json").write_text('{"version": 2.0}', "utf-8")
    with pytest.raises(SchemaError, match=r"expected a vault of version 1, found 2\.0"):
        read_files(formats()["ogmarl"], folder, tmp_path / "store")


FLASHBAX = """
import sys
import flashbax, jax
import numpy as np
from flashbax.vault import Vault

steps = np.load(sys.argv[1])

def step(number):
    found = {name: steps[name][number] for name in steps.files if not name.startswith("infos")}
    return {**found, "infos": {"state": steps["infos.state"][number],
                               "legals": steps["infos.legals"][number]}}

buffer = flashbax.make_trajectory_buffer(
    max_length_time_axis=100, min_length_time_axis=1, sample_batch_size=1, add_batch_size=1,
    sample_sequence_length=1, period=1)
state = buffer.init(step(0))
for uid in ("Good", "Poor"):
    state = buffer.init(step(0))
    vault = Vault("3m.vlt", state.experience, rel_dir=sys.argv[2], vault_uid=uid)
    for number in range(len(steps["rewards"])):
        state = buffer.add(state, jax.tree.map(lambda x: x[None, None], step(number)))
        if number % 5 == 0:
            vault.write(state)
    vault.write(state)
"""


@pytest.mark.thorough
def test_what_flashbax_writes_is_read(tmp_path):
    np.savez(tmp_path / "steps.npz", allow_pickle=False, **arrays())
    python = tool_python("flashbax==0.1.3")
    run_tool(python, FLASHBAX, "steps.npz", tmp_path / "vaults", folder=tmp_path)
    folder = tmp_path / "vaults" / "3m.vlt"
    dataset, _ = read_files(formats()["ogmarl"], folder, tmp_path / "store")
    check(dataset[:3], arrays())
    check(dataset[3:], arrays())
