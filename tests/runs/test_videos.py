import sys

import numpy as np
import pytest

import orlog
from orlog.errors import MissingExtraError
from orlog.runs.videos import LIST, VIDEOS, chosen_episodes, read_videos
from tests.command_line import orlog as run_orlog
from tests.pendulum import pendulum


@pytest.mark.parametrize(
    ("returns", "chosen"),
    [
        ([3.0], {"best": 0}),
        ([3.0, 1.0], {"best": 0, "worst": 1}),
        ([2.0, 2.0, 2.0], {"best": 0, "median": 1, "worst": 0}),
        ([5.0, 1.0, 4.0, 2.0], {"best": 0, "worst": 1, "median": 3}),
    ],
)
def test_the_worst_the_median_and_the_best_are_chosen(returns, chosen):
    assert chosen_episodes(np.array(returns)) == chosen


def test_what_is_filmed_is_the_episode_that_was_scored(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    pytest.importorskip("pygame")
    monkeypatch.chdir(tmp_path)
    pendulum(episodes=3)
    run = orlog.train("bc", "lab/pendulum-v1", settings={"hidden": [8]}, steps=3, evaluations=0)
    result = orlog.evaluate(run, episodes=12, video=True)
    chosen = chosen_episodes(result.returns)
    assert {one.kind: one.episode for one in result.videos} == chosen
    assert read_videos(run.folder) == result.videos
    for one in result.videos:
        assert one.returned == one.evaluated == result.returns[one.episode]
        assert one.seed == result.protocol.first_seed + one.episode
        with av.open(str(run.folder / VIDEOS / one.file)) as film:
            frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        assert len(frames) == one.frames == 201
        assert frames[0].std() > 5  # something is drawn
    told = run_orlog("evaluate", str(run.folder), "--episodes", "2", "--video")
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(".mp4") == 2
    assert {path.name for path in (run.folder / VIDEOS).iterdir()} == {
        LIST,
        *(one.file for one in read_videos(run.folder)),
    }


def test_without_pyav_nothing_is_evaluated(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"orlog\[formats\]"):
        orlog.evaluate(tmp_path, video=True)


@pytest.mark.parametrize("listed", [b"", b"[1]", b'[{"kind": "best", "file": "../../x.mp4"}]'])
def test_a_damaged_list_of_videos_is_no_list(tmp_path, listed):
    (tmp_path / VIDEOS).mkdir()
    (tmp_path / VIDEOS / LIST).write_bytes(listed)
    assert read_videos(tmp_path) == []
