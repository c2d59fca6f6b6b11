import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orlog.algos.algorithms import ALGORITHMS
from orlog.cli.advice import as_settings
from orlog.cli.commands import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FEW = ["--steps", "4", "--evaluations", "0"]
WITH_PYTHON = [page for page in PAGES if "```python\n" in page.read_text("utf-8")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_each_page_runs_from_top_to_bottom(page, mini_folder, tmp_path, monkeypatch):
    assert mini_folder.is_dir()
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    if page.parent.name == "coming-from":  # the right column of a table is code too
        text = re.sub(r"^\| `.* \| `(.*)` \|$", r"```python\n\1\n```", text, flags=re.MULTILINE)
    blocks = re.findall(r"```python\n(.*?)```", text.replace("`<br>`", "\n"), re.DOTALL)
    # The small dataset stands in for the large one, which takes a minute to build, and a short training for a long one.
    code = "\n".join(blocks).replace("umaze-v1", "umaze-mini-v1")
    code = code.replace("steps=100_000", "steps=25_000")
    is_readme = page.parent == ROOT
    for _ in range(1 + is_readme):  # who reads the first page tries its lines again
        names = {"__name__": "__main__"}
        exec(compile(code, page.name, "exec"), names)
        names.clear()  # functions of the page would keep all its datasets until garbage is collected
    if is_readme:  # the commands after its lines
        trained = CliRunner().invoke(app, ["train", "iql", "pointmaze/umaze-mini-v1", *FEW])
        assert trained.exit_code == 0, trained.output


def test_every_link_in_the_docs_leads_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if not target.startswith("https://") and target != "cli.md":  # which the site's build writes
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_command_in_the_docs_has_options_and_arguments_that_there_are():
    root = typer.main.get_command(app)
    seen = 0
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        text = page.read_text("utf-8").replace("\\\n", " ")
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = "".join(block for kind, block in blocks if kind in ("", "text")).splitlines()
        for line in [line.partition(" # ")[0] for line in lines if line.startswith("orlog ")]:
            words, command = shlex.split(line.partition(" | ")[0])[1:], root
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            if any("--set" in one.opts for one in command.params):
                words = as_settings(command.get_params(root.context_class(command)), words)
            given, left, _ = command.make_parser(root.context_class(command)).parse_args(words)
            missing = [one.name for one in command.params if one.required and not given[one.name]]
            assert not left, f"{page.name}: {line}"
            assert not missing, f"{page.name}: {line}: {missing}"
            seen += 1
    assert seen > 150


@pytest.mark.thorough  # draws each interval again
def test_the_tables_of_suites_are_what_the_baselines_give():
    page = runpy.run_path(str(ROOT / "docs" / "write_suites.py"))["page_with_tables"]()
    assert page == (ROOT / "docs" / "suites.md").read_text("utf-8"), "run: make docs"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("compare_published.py", ["td3_bc  IQM 46.6 (", "mean rank 1.67", "with probability 0.63"]),
        ("first_steps.py", ["observations/observation: (301, 4)", "step 100"]),
        pytest.param(
            "off_policy.py",
            ["step   600: true value", "rank_correlation", "left out: critic: the critic was"],
            marks=pytest.mark.thorough,
        ),
        ("record_and_view.py", ["recorded 100 episodes", "the same bytes: True", "version 1.1.0"]),
        ("distributed_training.py", ["step 0 loss", "step 99 loss"]),
        ("score_and_compare.py", ["score of each seed: 6", "67.5, spread 3.8 (std over seeds), 4 seeds"]),
    ],
)
def test_the_examples_run(name, lines, mini_folder, tmp_path, monkeypatch, capsys):
    assert mini_folder.is_dir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    found = capsys.readouterr().out
    for line in lines:
        assert line in found


def test_the_table_of_methods_has_each_once_and_the_readme_counts_them():
    page = (ROOT / "docs" / "algorithms.md").read_text("utf-8").partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert rows == sorted(ALGORITHMS)
    assert f"[{len(ALGORITHMS)} methods]" in (ROOT / "README.md").read_text("utf-8")


def test_the_guide_lists_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "guide.md").read_text("utf-8").partition("| extra |")[2]
    rows = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines()[2:]]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted({*extras} - {"dev"})
    whole = "".join(extras["all"])
    reached = {name for text in re.findall(r"orlog\[(.*?)\]", whole) for name in text.split(",")}
    for name in [*reached]:
        reached |= {
            inner for one in extras[name] for text in re.findall(r"orlog\[(.*?)\]", one) for inner in text.split(",")
        }
    assert reached >= {*extras} - {"dev", "all", "quickstart", "tasks", "words"}
