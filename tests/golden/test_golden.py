"""What must stay bit for bit while code around it changes, against the files beside this one.

It covers imports and exports of samples, batches, updates, views and an interrupted recording. `make golden` writes
the files again after a change that moves them on purpose; the changelog says what moved and why.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import orlog
from orlog.datasets.formats.episodes import Options
from orlog.loaders.goals import GoalMixture
from orlog.loaders.weights import weighted, weights_by_return
from tests.algos import plain
from tests.algos.conftest import *  # noqa: F403 (its fixtures)
from tests.algos.test_contract import FORMS
from tests.datasets.formats.test_contract import KINDS, VECTOR, WRITTEN
from tests.datasets.formats.test_minari import ACTIONS, ODD
from tests.datasets.recorded_samples import record_samples
from tests.fuzz.samples import write_samples

FOLDER = Path(__file__).parent
WRITES = os.environ.get("ORLOG_GOLDEN") == "write"
LIBRARIES = ("h5py", "numpy", "pyarrow", "zarr", "protobuf", "av", "pillow")
"""What writes the bytes of exports."""

transitions = orlog.transitions
SAMPLERS = {
    "transitions": lambda ds: transitions(ds, 32, seed=1),
    "transitions from batch 7": lambda ds: transitions(ds, 32, seed=1, start=7),
    "transitions of rank 1 of 3": lambda ds: transitions(ds, 33, seed=1, rank=1, ranks=3),
    "transitions of 3 steps": lambda ds: transitions(ds, 32, seed=1, n_steps=3, discount=0.9),
    "transitions with next actions": lambda ds: transitions(ds, 32, seed=1, next_actions=True),
    "transitions with weights": lambda ds: transitions(weighted(ds, weights_by_return(ds)), 32, seed=1),
    "transitions with priorities": lambda ds: orlog.transitions(ds, 32, seed=1, prioritized=True),
    "transitions with returns": lambda ds: transitions(ds, 32, seed=1, discount=0.9, returns_to_go=True),
    "transitions with infos": lambda ds: transitions(ds, 32, seed=1, infos=("behavior_goal",)),
    "transitions streamed": lambda ds: transitions(ds, 32, seed=1, stream=True),
    "transitions streamed, of 3 steps": lambda ds: transitions(ds, 32, seed=1, n_steps=3, stream=True),
    "sequences": lambda ds: orlog.sequences(ds, 8, length=20, seed=1),
    "sequences, padded left": lambda ds: orlog.sequences(ds, 8, length=20, seed=1, padding="left", with_next=True),
    "windows": lambda ds: orlog.windows(ds, 8, seed=1),
    "windows with rewards": lambda ds: orlog.windows(
        ds, 8, seed=1, observations=(-3, 0), actions=range(2), padding="zero", rewards=True
    ),
    "action chunks": lambda ds: orlog.action_chunks(ds, 8, seed=1, length=5),
    "goals": lambda ds: orlog.goals(ds, 8, seed=1),
    "goals of the same episode": lambda ds: orlog.goals(
        ds, 8, seed=1, actor_goals=GoalMixture(trajectory=1.0), negative_rewards=False
    ),
    "subgoals": lambda ds: orlog.subgoals(ds, 8, seed=1, steps=10),
    "preferences": lambda ds: orlog.preferences(ds, 8, seed=1, length=10),
    "episodes": lambda ds: orlog.episodes(ds, 3, seed=1),
}


def digest(value):
    """Return the start of the SHA-256 of arrays, bytes, or what JSON can say."""
    total = hashlib.sha256()

    def add(part):
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype}{part.shape}".encode())
            total.update(np.ascontiguousarray(part).tobytes())
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
            add({name: value for name, value in values.items() if value is not None and value != {}})
        elif isinstance(part, Mapping):
            for key in sorted(part):
                total.update(str(key).encode())
                add(part[key])
        elif isinstance(part, list | tuple):
            for item in part:
                add(item)
        else:
            total.update(part if isinstance(part, bytes) else json.dumps(part).encode())

    add(value)
    return total.hexdigest()[:16]


def check(name, values):
    """Compare values with the golden ones of a file, or write them."""
    path = FOLDER / f"{name}.json"
    if WRITES:
        path.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", "utf-8")
    assert values == json.loads(path.read_text("utf-8"))


def meaning(dataset):
    """Return digests of what a version says, without how its bytes are stored and where they are from."""
    body = json.loads(dataset.manifest.to_json())
    for part in [body, *body.get("parts", [])]:
        part.pop("objects", None)
    body = {name: value for name, value in body.items() if name not in ("digest", "lineage")}
    columns = {column.name: column.blake3 for column in dataset.manifest.columns}
    spaces = {name: body.pop(name, None) for name in ("observation_space", "action_space")}
    return {"columns": digest(columns), "spaces": digest(spaces), "manifest": digest(body)}


def test_imports(tmp_path):
    for space in (ODD, ACTIONS):
        space.seed(0)
    found = {}
    for kind, samples in write_samples(tmp_path / "samples").items():
        for number, sample in enumerate(samples):
            said = {
                field.name: value
                for field in dataclasses.fields(Options)
                if (value := getattr(sample.options, field.name)) != getattr(Options(), field.name)
            }
            if kind == "lerobot":
                said["video"] = "frames"
            name = f"golden/sample-{kind.replace('_', '-')}-{number}-v1"
            paths = [*sample.given] if len(sample.given) > 1 else sample.given[0]
            orlog.import_dataset(paths, name, format=kind, **said)
            found[f"{kind} {number}"] = meaning(orlog.load_dataset(name))
    check("imports", found)


@pytest.mark.thorough
def test_exports(tmp_path):
    libraries = {name: version(name) for name in LIBRARIES}
    kept = json.loads((FOLDER / "exports.json").read_text("utf-8")) if not WRITES else {}
    if not WRITES and kept["libraries"] != libraries:
        pytest.skip("other versions of libraries write other bytes")
    found = {"libraries": libraries}
    recorded = {kind: record_samples(f"golden/{kind}-v1", *spaces) for kind, spaces in KINDS.items()}
    for name, one in WRITTEN.items():
        for kind in [kind for kind in KINDS if kind in one.kinds]:
            folder = tmp_path / f"{name}-{kind}"
            rate = {"rate": 10} if name == "lerobot" else {}
            orlog.export_dataset(recorded[kind], folder, to=name, lossy=True, **rate)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            content = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
            found[f"{name} {kind}"] = digest(content)
    check("exports", found)


def test_batches(mini):
    found = {name: digest([*itertools.islice(sample(mini), 3)]) for name, sample in SAMPLERS.items()}
    for kind, spaces in KINDS.items():
        small = record_samples(f"golden/{kind}-v1", *spaces)
        found[f"transitions of {kind}"] = digest([*itertools.islice(transitions(small, 4, seed=1), 3)])
        if kind in ("frames", "parts"):
            for steps in (1, 2):
                stacks = orlog.transitions(small, 4, stacks=3, seed=1, n_steps=steps)
                found[f"stacks of {kind} over {steps} steps"] = digest([*itertools.islice(stacks, 3)])
    check("batches", found)


def test_an_interrupted_recording(home):
    """Its process was killed after three episodes, of which the first was acknowledged."""
    folder = home / "datasets" / "golden" / "interrupted-v1" / ".1.0.0.recording"
    shutil.copytree(FOLDER / "interrupted", folder)
    spaces = {"state": VECTOR, "frame": Box(0, 255, (2, 2, 3), np.uint8)}
    with orlog.DatasetWriter(
        "golden/interrupted-v1",
        observation_space=Dict(spaces),
        action_space=Discrete(3),
        keep_every_episode=True,
        resume=True,
    ) as writer:
        assert writer.total_episodes == 3
    check("recordings", meaning(orlog.load_dataset("golden/interrupted-v1")))


def test_views(mini, tmp_path):
    views = {
        "where": mini.filter_episodes("returns > 20"),
        "part": mini[3:40:2],
        "top": mini.top_episodes(25),
        "mixed": orlog.combine_datasets([mini[:5], mini[7:9]]),
        "part of a split": orlog.split_dataset(mini, [0.8, 0.2], seed=0)[1],
    }
    found = {}
    for name, view in views.items():
        saved = view.save(tmp_path / f"{name}.json")
        found[name] = {"digest": view.digest, "file": digest(saved.read_bytes())}
        assert orlog.load_dataset(saved).digest == view.digest
    check("views", found)


@pytest.mark.thorough
@pytest.mark.usefixtures("in_float64")
def test_updates(make, batches_of):
    found = {}
    for name, form in FORMS.items():
        algorithm = make(form, seed=0)
        for batch in batches_of(algorithm, 100):
            algorithm.update(batch.map(lambda one: one.double() if one.is_floating_point() else one))
        parts = [one.double() for one in plain.tensors_of(algorithm).values()]
        found[name] = [sum(float(one.sum()) for one in parts), sum(float(one.abs().sum()) for one in parts)]
    path = FOLDER / "updates.json"
    if WRITES:
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    golden = json.loads(path.read_text("utf-8"))
    assert found.keys() >= golden.keys()  # a new algorithm has none yet
    for name, sums in golden.items():
        assert found[name] == pytest.approx(sums, rel=1e-7), name
