"""What can be downloaded, listed and shown by name; nothing here needs a network."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import orlog
from orlog import publish_dataset
from orlog.cli.commands import app
from orlog.datasets.home.registries import add_registry
from orlog.errors import NotFoundError
from orlog.manifests.shipped import shipped_names

MINI = "pointmaze/umaze-mini-v1"


def run(*arguments):
    """Run a command that must succeed; return what it wrote to stdout and to stderr."""
    found = CliRunner().invoke(app, list(map(str, arguments)))
    assert found.exit_code == 0, found.output
    return found.stdout, found.stderr


def names(*arguments):
    found = json.loads(run("list", *arguments, "--json")[0])
    return [one["name"] for one in found["datasets"]]


def test_remote_lists_everything_that_can_be_downloaded():
    assert names("--remote") == sorted(shipped_names())
    assert names("--remote", "mujoco", "--benchmark", "minari", "--search", "Hopper") == [
        "minari/mujoco/hopper/expert-v0",
        "minari/mujoco/hopper/medium-v0",
        "minari/mujoco/hopper/simple-v0",
    ]
    # The search also looks at descriptions, the pattern at names only.
    assert "robomimic/can/ph/low_dim-v15" in names("--remote", "--search", "robosuite 1.5")
    assert names("--remote", "robosuite 1.5") == []
    assert names("--remote", "ogbench/cube-*-play-v0", "--search", "double") == ["ogbench/cube-double-play-v0"]


def test_a_line_says_version_size_license_and_what_is_here():
    out, _ = run("list", "--remote", "neorl2/pipeline")
    (line,) = [line for line in out.splitlines() if line.startswith("neorl2/")]
    assert line.split() == ["neorl2/pipeline-v0", "1.0.0", "-", "CC-BY-4.0", "not", "here"]
    out, _ = run("list", "--remote", "can/ph/low_dim-v0")
    assert "45.5 MB" in out
    _, err = run("list", "--remote", "--benchmark", "ogbenc")
    assert "no dataset is found for benchmark ogbenc" in err
    assert "is found for qq, benchmark d4rl" in run("list", "qq", "--all", "--benchmark=d4rl")[1]


def test_a_size_that_upstream_rounds_is_shown_and_what_nobody_knows_is_said_once():
    out, err = run("list", "--remote", "minari/d4rl/*")
    lines = out.splitlines()
    (door,) = [line for line in lines if line.startswith("minari/d4rl/door/cloned-v2")]
    assert door.split() == ["minari/d4rl/door/cloned-v2", "1.0.0", "~1.1", "GB", "not", "here"]
    (told,) = [line for line in err.splitlines() if "without size" in line]
    unknown = [line for line in lines[1:] if line.split()[2:3] == ["-"]]
    assert told.startswith(f"{len(unknown)} without size and checksum: ")
    assert "without size" not in run("list", "--remote", "neorl2/")[1]
    (one,) = orlog.list_datasets("minari/d4rl/door/cloned-v2", remote=True)
    assert (one.size_bytes, one.about_bytes, one.has_checksum) == (None, 1_077_700_000, False)
    assert "about 1.1 GB" in run("show", "minari/D4RL/door/cloned-v2")[0]


def test_a_folder_of_the_hub_is_listed_with_the_line_that_brings_it():
    line = "hf download --repo-type dataset lerobot/pusht --local-dir pusht"
    (listed,) = orlog.list_datasets("lerobot/pusht-v0", remote=True)
    assert listed.command is None
    assert line in (listed.problem or "")
    assert "by hf download" in run("list", "--remote", "lerobot/pusht-v0")[0]
    assert line in run("show", "lerobot/pusht")[0]
    with pytest.raises(NotFoundError, match=line):
        orlog.load_dataset("lerobot/pusht-v0", download=True)


def test_show_says_what_a_download_would_bring():
    body = json.loads(run("show", "ogbench/cube-double-play-v0", "--json")[0])
    assert (body["version"], body["format"], body["license"]) == ("1.0.0", "ogbench-npz", None)
    assert body["size_bytes"] == 297435656 + 29726524
    assert [file["path"] for file in body["files"]] == ["cube-double-play-v0.npz", "cube-double-play-v0-val.npz"]
    assert body["files"][0]["sha256"].startswith("a73d1a33")
    assert body["facts"]["n_train_episodes"] == "1000"
    out, _ = run("show", "minari/D4RL/door/human-v2")
    url = "https://huggingface.co/datasets/farama-minari/D4RL/resolve/main/door/human-v2/data"
    assert f"  {url}/main_data.hdf5\n" in out
    assert "no checksum known: the first download is trusted" in out
    assert "run: orlog download minari/d4rl/door/human-v2" in out
    out, _ = run("show", "neorl2/Pipeline")
    assert "md5 59902b333be6edb9252acfc2302cc1ed" in out
    assert "0.9.0 from neorl2" in out
    assert "neorl2-parquet" in run("show", "neorl2/Pipeline@0.9.0")[0]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("minari/mujoco/hoper/medium-v0", "minari/mujoco/hopper/medium-v0"),
        ("ogbench/cube-single-v0", "ogbench/cube-single-"),
        ("robomimc/can/ph/low_dim-v0", "robomimic/can/ph/low_dim-v0"),
        ("dsrl/OfflineCarButon1Gymnasium-v0", "OfflineCarButton1Gymnasium-v0"),
    ],
)
def test_a_wrong_name_gets_the_nearest_ones(wrong, right):
    found = CliRunner().invoke(app, ["show", wrong])
    assert found.exit_code != 0
    if wrong == wrong.lower():
        with pytest.raises(NotFoundError, match=f"did you mean.*{right}"):
            orlog.load_dataset(wrong, download=True)


def test_a_version_published_without_an_audit_says_so_wherever_it_is(mini_folder, tmp_path, monkeypatch):
    publish_dataset(mini_folder, str(tmp_path / "lab"), audit=False)
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "other"))
    add_registry("lab", str(tmp_path / "lab"))
    (listed,) = json.loads(run("list", "--remote", MINI, "--json")[0])["datasets"]
    assert (listed["audit"], listed["source"], listed["state"]) == ("skipped", "lab", "not here")
    assert "not here, published without an audit" in run("list", "--remote", MINI)[0]
    orlog.download_dataset(MINI)
    assert "here, published without an audit" in run("list", "--remote", MINI)[0]
    assert "here, published without an audit" in run("list", MINI)[0]
    assert json.loads(run("show", MINI, "--json")[0])["audit"] == "skipped"
    assert "skipped: published without one" in run("show", MINI)[0]


def test_starting_reads_no_table_of_the_catalogue():
    code = (
        "import sys\n"
        "earlier = {*sys.modules}\n"
        "import orlog, orlog.cli.commands\n"
        "from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(orlog.cli.commands.app, ['--help']).exit_code == 0\n"
        "print([one for one in {*sys.modules} - earlier if 'shipped' in one or 'orlog.manifests.tables' in one])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
