"""Croissant of a version, as mlcroissant reads it."""

import json
import warnings

import mlcroissant
import numpy as np
from gymnasium import spaces

import orlog
from orlog.base.files import hash_file
from tests.command_line import orlog as run
from tests.episodes import record_episodes, whole_episode


def record():
    record_episodes(
        "lab/arm-v1",
        [whole_episode(np.array([[0, np.nan], [0, 2]], np.float32), np.zeros(1, int))],
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.Discrete(2),
        description="An arm.",
        license="CC-BY-4.0",
        behavior_policy="a person",
    )


def test_mlcroissant_reads_it_without_errors_and_finds_each_object(tmp_path):
    record()
    done = run("show", "lab/arm-v1", "--croissant")
    assert "rai:dataBiases" in done.stderr
    body = json.loads(done.stdout)
    dataset = orlog.load_dataset("lab/arm-v1")
    for item in body["distribution"]:
        assert hash_file(dataset.folder / item["contentUrl"]) == item["sha256"]
    assert len(body["distribution"]) == len(dataset.manifest.objects)
    assert len(body["rai:dataLimitations"]) == 2
    file = tmp_path / "croissant.json"
    file.write_text(done.stdout, "utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = mlcroissant.Dataset(jsonld=file)
    assert not read.metadata.ctx.issues.errors
    assert (read.metadata.name, str(read.metadata.version)) == ("lab-arm-v1", "1.0.0")
    assert {one.sha256 for one in read.metadata.file_objects} == {item["sha256"] for item in body["distribution"]}
