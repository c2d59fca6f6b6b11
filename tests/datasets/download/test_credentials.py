"""Signed URLs and passwords: they open what they should, and stand in no file and in no message."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

import orlog
from orlog.datasets.download import credentials
from orlog.errors import OrlogError, TransferError
from tests.command_line import orlog as command
from tests.servers import FileServer, Request

MINI = "pointmaze/umaze-mini-v1"
SECRET = "token=s3cr3t-of-today"
ACCOUNT = "Basic " + base64.b64encode(b"ann:hunter2").decode()


@pytest.fixture
def server(registry_folder: Path) -> Iterator[FileServer]:
    with FileServer(registry_folder) as running:
        yield running


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no test know the URLs and accounts of others."""
    monkeypatch.setattr(credentials, "_queries", {})
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def is_signed(request: Request) -> bool:
    return request.path.endswith(f"?{SECRET}")


def texts_below(folder: Path) -> str:
    return "\n".join(
        path.read_text("utf-8", "replace")
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size < 10**6
    )


@pytest.mark.parametrize("end", ["", "/manifest.json"])
def test_a_signed_url_is_downloaded_repaired_and_kept_nowhere(
    server: FileServer, home: Path, end: str
) -> None:
    server.allows = is_signed
    folder = orlog.download_dataset(f"{server.url}/{MINI}/1.0.0{end}?{SECRET}")
    assert all(map(is_signed, server.requests))
    assert "s3cr3t" not in texts_below(home)
    path = next(one for one in folder.rglob("*") if one.is_file() and one.stat().st_size > 10**4)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    problems = orlog.repair_dataset(folder, mirrors=[f"{server.url}/{MINI}/1.0.0?{SECRET}"])
    assert len(problems) == 1


def test_a_signed_mirror_is_used_for_a_registry(server: FileServer, home: Path) -> None:
    server.allows = is_signed
    with pytest.raises(OrlogError):
        orlog.download_dataset(f"{server.url}/{MINI}/1.0.0")
    with pytest.raises(TransferError) as caught:
        orlog.download_dataset(f"{server.url}/{MINI}/1.0.0?token=expired-s3cr3t")
    assert "s3cr3t" not in str(caught.value)
    assert "403" in str(caught.value)
    assert "s3cr3t" not in texts_below(home)


def test_a_signed_target_of_a_redirect_is_not_shown(server: FileServer) -> None:
    from tests.servers import Fault

    server.faults.append(
        Fault(status=302, headers={"Location": "ftp://ann:hunter2@host/x?token=s3cr3t"})
    )
    with pytest.raises(TransferError) as caught:
        orlog.download_dataset(f"{server.url}/{MINI}/1.0.0")
    assert "s3cr3t" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_password_is_read_from_netrc_and_sent_to_its_host_alone(
    server: FileServer, tmp_path: Path, home: Path
) -> None:
    server.allows = lambda request: request.headers.get("Authorization") == ACCOUNT
    with pytest.raises(TransferError):
        orlog.download_dataset(f"{server.url}/{MINI}/1.0.0")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password hunter2\n")
    netrc.chmod(0o600)
    orlog.download_dataset(f"{server.url}/{MINI}/1.0.0")
    assert "hunter2" not in texts_below(home)
    assert credentials.authorization("http://elsewhere.example.org/x") == {}
    assert credentials.authorization("https://elsewhere.example.org/x") == {}


@pytest.mark.parametrize(
    "words",
    [
        ("download", "http://ann:hunter2@127.0.0.1:9/lab/arm-v1/1.0.0"),
        ("download", "s3://ann:hunter2@bucket/lab/arm-v1/1.0.0"),
        ("download", MINI, "--mirror", "https://ann:hunter2@127.0.0.1:9/registry"),
    ],
)
def test_a_password_in_a_url_is_refused_without_repeating_it(words: tuple[str, ...]) -> None:
    command("registry", "add", "here", str(Path.cwd()))
    found = command(*words)
    assert found.returncode == 1
    assert "netrc" in found.stderr
    assert "hunter2" not in found.stdout + found.stderr


def test_a_linked_url_with_a_password_is_refused_without_repeating_it(tmp_path: Path) -> None:
    link = ("registry", "link", str(tmp_path), "lab/x-v1@1.0.0")
    found = command(*link, "http://ann:hunter2@127.0.0.1:9/x.hdf5", "--format", "d4rl-hdf5")
    assert found.returncode != 0
    assert "password" in found.stderr
    assert "hunter2" not in found.stdout + found.stderr
