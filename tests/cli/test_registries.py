"""The commands about registries and keys, as a user runs them."""

import pytest
from typer.testing import CliRunner

from orlog.cli.registries import registries
from orlog.datasets.home.registries import Registry, read_registries
from orlog.errors import NotFoundError, StorageError
from orlog.manifests.signatures import public_key

URL = "https://data.example.org/registry"
KEY = f"ed25519:{'ab' * 32}"


def run(commands, *arguments):
    """Run a command that must succeed; return what it printed as one line."""
    found = CliRunner().invoke(commands, list(map(str, arguments)), env={"COLUMNS": "200"})
    if found.exception is not None:
        raise found.exception
    return " ".join(found.output.split())


def test_registries_are_added_listed_and_removed(tmp_path):
    assert "orlog registry add" in run(registries, "list")
    signed = ("--key", KEY, "--mirror", "s3://bucket/[red]", "--mirror", "s3://other")
    assert run(registries, "add", "lab", f"{URL}/", *signed) == f"added lab: {URL} (signed)"
    assert "not signed: its index is trusted" in run(registries, "add", "near", tmp_path, "--first")
    assert read_registries() == [
        Registry(name="near", url=str(tmp_path)),
        Registry(name="lab", url=URL, mirrors=("s3://bucket/[red]", "s3://other"), keys=(KEY,)),
    ]
    shown = run(registries, "list")
    assert shown.index("near") < shown.index("lab")
    for part in ("s3://bucket/[red]", "s3://other", "ed25519:abababababab..", "not signed", URL):
        assert part in shown
    assert run(registries, "remove", "lab") == f"removed lab: {URL}"
    assert [one.name for one in read_registries()] == ["near"]


def test_errors_are_those_of_the_functions():
    with pytest.raises(ValueError, match="no transport"):
        run(registries, "add", "lab", "htps://data.example.org")
    with pytest.raises(NotFoundError, match="no registry is called 'lab'"):
        run(registries, "remove", "lab")


def test_a_key_is_made_and_shown(tmp_path):
    path = tmp_path / "lab.pem"
    told = run(registries, "key", path, "--new")
    assert f"private key: {path}" in told
    assert public_key(path) in told
    assert run(registries, "key", path) == public_key(path)
    with pytest.raises(StorageError, match="never overwritten"):
        run(registries, "key", path, "--new")
    with pytest.raises(NotFoundError, match=r"orlog registry key .* --new"):
        run(registries, "key", tmp_path / "missing.pem")
