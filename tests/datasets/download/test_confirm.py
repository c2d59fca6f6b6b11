"""What the origin of a downloaded version says of it, and what verifying makes of that."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orlog.cli import app
from orlog.datasets.download.download import download_dataset
from orlog.datasets.download.sources import BRIEF, confirm_version
from orlog.datasets.home.registries import remove_registry
from orlog.errors import ManifestError
from orlog.manifests.manifest import Manifest, read_manifest
from tests.datasets.conftest import MINI, Reseal, Served
from tests.servers import COMES, Fault


@pytest.fixture(autouse=True)
def answers_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine have time to answer; how often is asked stays as it is."""
    patient = dataclasses.replace(BRIEF, timeout=COMES)
    monkeypatch.setattr("orlog.datasets.download.sources.BRIEF", patient)


def downloaded(name: str = MINI) -> tuple[Path, Manifest]:
    folder = download_dataset(name)
    return folder, read_manifest(folder / "manifest.json")


def test_a_registry_that_lists_the_digest_confirms_it(served: Served) -> None:
    found = confirm_version(*downloaded())
    assert (found.state, found.text) == ("same", "the registry lab offers this digest")
    assert confirm_version(*downloaded(served.url)).state == "same"


def test_an_origin_given_by_url_is_asked_for_its_manifest(served: Served) -> None:
    remove_registry("lab")
    found = confirm_version(*downloaded(served.url))
    assert (found.state, found.text) == ("same", f"{served.url} offers this digest")


@pytest.mark.parametrize("by_name", [True, False])
def test_an_origin_that_offers_other_data_is_told(
    served: Served, reseal: Reseal, by_name: bool
) -> None:
    folder, manifest = downloaded(MINI if by_name else served.url)
    path = reseal(served.registry / MINI / "1.0.0", lambda body: body.update(description="other"))
    other = read_manifest(path)
    index_path = served.registry / "index.json"
    index = json.loads(index_path.read_text())
    index["serial"] += 1
    index["datasets"][MINI]["1.0.0"]["digest"] = other.digest
    index_path.write_text(json.dumps(index))
    found = confirm_version(folder, manifest)
    assert found.state == "other"
    assert f"offers {other.digest}" in found.text
    del index["datasets"][MINI]
    index["serial"] += 1
    index_path.write_text(json.dumps(index))
    if by_name:
        assert "does not list it any more" in confirm_version(folder, manifest).text


def test_a_manifest_that_was_put_in_place_of_the_downloaded_one_is_told_offline_too(
    served: Served, reseal: Reseal
) -> None:
    folder, _ = downloaded()
    reseal(folder, lambda body: body.update(description="other"))
    before = len(served.server.requests)
    manifest = read_manifest(folder / "manifest.json")
    assert confirm_version(folder, manifest, offline=True).state == "other"
    assert len(served.server.requests) == before


def test_an_origin_that_does_not_answer_is_no_fault_and_no_long_wait(served: Served) -> None:
    assert BRIEF.attempts == 1
    folder, manifest = downloaded()
    served.server.faults.append(Fault(path="index.json", status=503))
    found = confirm_version(folder, manifest)
    assert found.state == "unknown"
    assert "does not answer" in found.text
    remove_registry("lab")
    assert "not known any more" in confirm_version(folder, manifest).text


def test_what_was_not_downloaded_asks_nobody(served: Served, mini_folder: Path) -> None:
    found = confirm_version(mini_folder, read_manifest(mini_folder / "manifest.json"))
    assert found.state == "unknown"
    assert served.server.requests == []


def test_a_damaged_note_about_the_origin_is_an_error(served: Served) -> None:
    folder, manifest = downloaded()
    folder.with_name(f".{folder.name}.origin.json").write_text("{}")
    with pytest.raises(ManifestError, match=r"origin\.json"):
        confirm_version(folder, manifest)
    assert served.server.requests


def test_the_command_line_tells_and_counts_it(served: Served, reseal: Reseal) -> None:
    folder, _ = downloaded()
    run = CliRunner().invoke
    good = run(app, ["verify", MINI])
    assert good.exit_code == 0
    assert "the registry lab offers this digest" in good.output
    before = len(served.server.requests)
    assert "was not asked" in run(app, ["verify", MINI, "--offline"]).output
    assert len(served.server.requests) == before
    assert json.loads(run(app, ["verify", MINI, "--json"]).output)["origin"]["state"] == "same"
    reseal(folder, lambda body: body.update(description="other"))
    bad = run(app, ["verify", MINI, "--offline"])
    assert bad.exit_code == 3
    assert "another version" in bad.output
