"""What the views of a whole dataset, of two and of runs are answered with."""

import dataclasses
import json
import time

import gymnasium
import msgspec
import pytest

import orlog
from orlog.algos.training.runs import read_run
from orlog.normalize.references import Baseline
from orlog.viewer.figures import draw_sample
from orlog.viewer.server import Jobs
from orlog.viewer.shown import open_all
from tests.viewer.conftest import LONGEST_S
from tests.viewer.made import record_cartpole, robot_episode, write_numbers, write_robot
from tests.viewer.test_server import pixels_of


def result_of(served, path):
    limit = time.monotonic() + LONGEST_S
    while (found := served.get(path))["state"] != "ready":
        assert time.monotonic() < limit, path
        time.sleep(0.05)
    return found["result"]


def test_figures_are_those_of_the_data(serve):
    ds = write_robot(episodes=4)
    found = result_of(serve("lab/robot-v1"), "api/data/0/statistics")
    returns, steps = found["histograms"]
    assert (returns["label"], steps["mean"]) == ("return", ds.episode_lengths.mean())
    assert "Histogram of return" in returns["picture"]
    assert returns["mean"] == pytest.approx(ds.column("episodes/returns").mean())
    assert found["ends"] == {"terminated": 2, "truncated": 2}
    assert found["sampled_steps"] == ds.total_steps
    assert "observations/position[2]" in found["names"]
    assert not any("camera" in name for name in found["names"])
    actions = ds.column("actions")
    (first, _) = found["actions"]
    assert first["bounds"] == [-1, 1]
    assert first["on_high"] == 0
    assert first["range"] == pytest.approx([actions[:, 0].min(), actions[:, 0].max()])


def test_a_sample_of_a_large_dataset_is_spread_over_it(monkeypatch):
    write_numbers(episodes=200, steps=20)
    monkeypatch.setattr("orlog.viewer.figures.SAMPLED_STEPS", 200)
    (shown,) = open_all(["lab/numbers-v1"]).datasets
    sample = draw_sample(shown, lambda _done, _total: None)
    assert len(sample.values) == 200
    assert sample.episodes == 10
    first = sample.values[:, sample.names.index("observations[0]")].reshape(10, 20)[:, 0]
    assert first.tolist() == [0, 22, 44, 66, 88, 110, 132, 154, 176, 199]


@pytest.mark.usefixtures("mini_folder")
def test_lineage_leads_back_to_the_recipe_and_scores_are_shown(serve, tmp_path):
    mini = orlog.load_dataset("pointmaze/umaze-mini-v1")
    path = mini.filter_episodes("returns > 0").save(tmp_path / "good.json")
    about = result_of(serve(path), "api/data/0/about")
    titles = [title for _, _, title, _ in about["lineage"]]
    assert titles[:2] == ["view", "pointmaze/umaze-mini-v1@1.0.0"]
    assert titles[2].startswith("recipe ")
    assert about["lineage"][1][:2] == [1, "episodes with returns > 0"]
    assert [row[0] for row in about["references"]] == ["0 = random", "100 = expert"]


def test_versions_and_what_changed(serve):
    write_robot(episodes=2)
    with orlog.DatasetWriter.append("lab/robot-v1", changes="two more") as writer:
        writer.add_episode(robot_episode(7, 30))
    served = serve("lab/robot-v1@1.0.0", "lab/robot-v1")
    about = result_of(served, "api/data/1/about")
    assert [one["version"] for one in about["versions"]] == ["1.1.0", "1.0.0"]
    assert about["versions"][0]["changes"] == "two more"
    assert about["versions"][0]["shown"]
    found = result_of(served, "api/diff")
    assert found["unchanged"] == 2
    assert found["added"] == [{"start": 2, "stop": 3}]


def test_findings_of_the_audit_name_episode_and_step(serve):
    ds = write_numbers(episodes=40)
    assert ds.total_episodes == 40
    audit = result_of(serve("lab/numbers-v1"), "api/data/0/audit")
    assert audit["checks"]
    assert any(one["episode"] is not None for one in audit["findings"])


def test_states_are_rendered_here(serve):
    pytest.importorskip("pygame", reason="CartPole is drawn with pygame: pip install pygame")
    ds = record_cartpole(episodes=1)
    served = serve("lab/cartpole-v1")
    for step in (0, len(ds[0])):
        status, _, png = served.ask(f"api/data/0/episode/0/render?step={step}")
        assert status == 200, png
        assert pixels_of(png, 3).std() > 0


def test_actions_are_replayed_and_compared_with_the_recording(serve):
    pytest.importorskip("pygame", reason="CartPole is drawn with pygame: pip install pygame")
    ds = record_cartpole("lab/unstated-v1", episodes=2, state=False)
    with orlog.DatasetWriter("lab/other-v1", environment=gymnasium.make("CartPole-v1")) as writer:
        for episode in ds:
            observations = episode.observations.copy()
            observations[4:] += 1
            writer.add_episode(dataclasses.replace(episode, observations=observations, index=None))
    served = serve("lab/unstated-v1", "lab/other-v1", "lab/unstated-v1")
    same, other, again = (
        served.ask(f"api/data/{place}/episode/1/render?step={step}") for place, step in ((0, 6), (1, 6), (1, 2))
    )
    assert same[0] == other[0] == again[0] == 200, same[2]
    assert same[2] == other[2] != again[2]
    assert "x-differs" not in same[1]
    assert (same[1]["x-equals"], again[1]["x-equals"]) == ("6", "2")
    assert "x-equals" not in other[1]
    assert other[1]["x-differs"] == "4"
    assert "x-differs" not in again[1]


def test_what_cannot_be_rendered_says_why(serve):
    write_robot(episodes=1)
    status, text = serve("lab/robot-v1").problem("api/data/0/episode/0/render?step=0")
    assert status == 404
    assert "names no environment" in text


def test_a_report_is_shown_without_any_script(serve, tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "report.html").write_text("<script>alert(1)</script>scores")
    (folder / "secret.txt").write_text("secret")
    served = serve(folder)
    _, headers, body = served.ask("api/report/0")
    assert body.endswith(b"scores")
    assert headers["content-security-policy"].endswith("sandbox")
    assert "script-src" not in headers["content-security-policy"]
    assert served.ask("api/report/secret.txt")[0] == 404


def test_runs_have_curves_scores_and_videos(serve, tmp_path, mini_folder):
    runs = tmp_path / "runs"
    for seed in range(2):
        out = runs / f"seed-{seed}"
        orlog.train("bc", mini_folder, steps=20, evaluations=1, seed=seed, out=out)
    orlog.evaluate(runs / "seed-0", episodes=3)
    (runs / "seed-0" / "best.mp4").write_bytes(b"0123456789")
    videos = runs / "seed-1" / "videos"
    videos.mkdir()
    kinds = (("best", 2, 3.0), ("median", 1, 2.0), ("worst", 0, 1.0))
    about = {"seed": 0, "step": 20, "frames": 9, "evaluated": 0.0}
    for kind, *_ in kinds:
        (videos / f"{kind}.mp4").write_bytes(b"0")
    listed = [
        {"kind": kind, "file": f"{kind}.mp4", "episode": episode, "returned": returned, **about}
        for kind, episode, returned in kinds
    ]
    (videos / "videos.json").write_text(json.dumps(listed))
    (runs / "outside.mp4").symlink_to(mini_folder / "manifest.json")
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    served = serve(runs)
    found = served.get("api/runs/0")
    (group,) = found["groups"]
    assert group["seeds"] == [0, 1]
    curve, evaluated = group["scores"]  # of two sources, which are not mixed
    assert (curve["source"], curve["seeds"], curve["step"]) == ("last point of the curve", [0, 1], 20)
    pictures = found["pictures"][group["dataset"]]
    assert "over gradient steps" in pictures["curves"]
    assert f"BC after 20 steps: {curve['score']:z.1f}" in pictures["scores"][0]["words"][0]
    assert (evaluated["source"], evaluated["seeds"]) == ("orlog evaluate", [0])
    assert (evaluated["episodes"], evaluated["score_interval"]) == (3, None)
    assert [one["source"] for one in group["each"]] == ["orlog evaluate", "last point of the curve"]
    assert group["reason"]
    assert [name for name, _ in found["problems"]] == ["broken"]
    assert found["videos"][0] == {"file": "seed-0/best.mp4"}
    found = [(one["kind"], one["return"], one["run"]) for one in found["videos"][1:]]
    assert found == [("worst", 1.0, "seed-1"), ("median", 2.0, "seed-1"), ("best", 3.0, "seed-1")]
    status, _, body = served.ask("api/runs/0/video/0", headers={"Range": "bytes=2-4"})
    assert (status, body) == (206, b"234")
    assert served.ask("api/runs/0/video/4")[0] == 404


def test_a_verdict_needs_the_data_and_settings_of_the_record(serve, tmp_path, mini_folder, monkeypatch):
    runs = tmp_path / "runs"
    orlog.train("bc", mini_folder, steps=10, evaluations=0, out=runs / "seed-0")
    evaluation = orlog.evaluate(runs / "seed-0", episodes=2)
    record = read_run(runs / "seed-0")
    config = {name: value for name, value in record.config.items() if name != "seed"}
    baseline = Baseline(
        algorithm="bc",
        dataset=record.dataset,
        digest=record.digest,
        steps=10,
        config=config,
        policy="last",
        protocol=evaluation.protocol,
        versions={},
        returns={"0": evaluation.returns.tolist()},
    )
    monkeypatch.setattr("orlog.viewer.runs.recorded_baseline", lambda *_: baseline)
    served = serve(runs)
    (group,) = served.get("api/runs/0")["groups"]
    assert group["verdict"] == "identical", group["reason"]
    other = msgspec.structs.replace(baseline, config={**config, "learning_rate": 1.0})
    monkeypatch.setattr("orlog.viewer.runs.recorded_baseline", lambda *_: other)
    (group,) = served.get("api/runs/0")["groups"]
    assert (group["verdict"], "learning_rate=0.001, recorded with 1.0" in group["reason"]) == ("", True)


def test_a_job_runs_once_and_its_error_only_while_it_lasts():
    jobs, calls = Jobs(), []

    def work(progress):
        progress(1, 2)
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("not yet")
        return 7

    with pytest.raises(ValueError, match="not yet"):
        jobs.ask("a", work)
    assert jobs.ask("a", work) == jobs.ask("a", work) == {"state": "ready", "result": 7}
    assert len(calls) == 2


def test_answers_are_json_without_numbers_that_json_lacks(serve):
    write_numbers(episodes=2)
    status, _, body = serve("lab/numbers-v1").ask("api/data/0/statistics")
    assert status == 200
    json.loads(body, parse_constant=lambda name: pytest.fail(name))
