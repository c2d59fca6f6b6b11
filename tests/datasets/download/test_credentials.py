"""Signed URLs and passwords: they open what they should, and stand in no file and in no message."""

import base64
from pathlib import Path

import pytest

import orlog
from orlog import OrlogError
from orlog.datasets.download import http as credentials
from orlog.datasets.download.sources import source_of_url
from orlog.datasets.home.registries import add_registry
from orlog.datasets.publish.publish import foreign_file_entry, link_foreign_file
from orlog.errors import TransferError
from orlog.executors.processes import execute
from tests.command_line import orlog as command
from tests.datasets.formats.test_d4rl import check, rows_of, write
from tests.servers import Fault, FileServer

MINI = "pointmaze/umaze-mini-v1"
SECRET = "token=s3cr3t-of-today"
ACCOUNT = "Basic " + base64.b64encode(b"ann:hunter2").decode()


@pytest.fixture
def server(registry_folder):
    with FileServer(registry_folder) as running:
        yield running


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    """Let no test know the URLs and accounts of others."""
    monkeypatch.setattr(credentials, "_queries", {})
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def is_signed(request):
    return request.path.endswith(f"?{SECRET}")


def texts_below(folder):
    return "\n".join(
        path.read_text("utf-8", "replace")
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size < 10**6
    )


@pytest.mark.parametrize("end", ["", "/manifest.json"])
def test_a_signed_url_is_downloaded_repaired_and_kept_nowhere(server, home, end):
    server.allows = is_signed
    folder = orlog.download_dataset(f"{server.url}/{MINI}/1.0.0{end}?{SECRET}")
    assert all(map(is_signed, server.requests))
    assert "s3cr3t" not in texts_below(home)
    path = next(one for one in folder.rglob("*") if one.is_file() and one.stat().st_size > 10**4)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    credentials._queries.clear()  # as in another process
    problems = orlog.repair_dataset(folder, mirrors=[f"{server.url}/{MINI}/1.0.0?{SECRET}"])
    assert len(problems) == 1


def test_a_signed_mirror_is_used_for_a_registry(server, home):
    server.allows = is_signed
    with pytest.raises(OrlogError):
        orlog.download_dataset(f"{server.url}/{MINI}/1.0.0")
    with pytest.raises(TransferError) as caught:
        orlog.download_dataset(f"{server.url}/{MINI}/1.0.0?token=expired-s3cr3t")
    assert "s3cr3t" not in str(caught.value)
    assert "403" in str(caught.value)
    assert "s3cr3t" not in texts_below(home)


def test_own_processes_download_with_the_queries_that_were_given(server, home):
    add_registry("lab", server.url)
    server.allows = is_signed
    asked = []
    ((_, refused),) = execute(orlog.download_dataset, [MINI], workers=1, running=asked.append)
    assert isinstance(refused, TransferError)
    assert "403" in str(refused)
    server.requests.clear()
    credentials.plain_url(f"{server.url}?{SECRET}")
    ((_, folder),) = execute(orlog.download_dataset, [MINI], workers=1, running=asked.append)
    assert isinstance(folder, Path)
    assert orlog.load_dataset(folder).name == MINI
    assert server.requests
    assert all(map(is_signed, server.requests))
    assert "s3cr3t" not in texts_below(home)


def test_a_password_is_read_from_netrc_and_sent_to_its_host_alone(server, tmp_path, home):
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


def test_a_redirect_to_another_host_takes_neither_password_nor_query_along_and_is_not_shown(server, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password hunter2\n")
    path = f"/{MINI}/1.0.0/manifest.json"
    with FileServer(server.folder) as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost")
        server.faults = [Fault(path=path, status=302, headers={"Location": f"{elsewhere}{path}"})]
        assert source_of_url(f"{server.url}/{MINI}/1.0.0?{SECRET}").manifest.name == MINI
    assert [request.headers.get("Authorization") for request in server.requests] == [ACCOUNT]
    assert is_signed(server.requests[0])
    (asked,) = other.requests
    assert (asked.path, asked.headers.get("Authorization")) == (path, None)
    server.faults = [Fault(status=302, headers={"Location": "ftp://ann:hunter2@host/x?token=s3cr3t"})]
    with pytest.raises(TransferError) as caught:
        orlog.download_dataset(f"{server.url}/{MINI}/1.0.0")
    assert not any(secret in str(caught.value) for secret in ("s3cr3t", "hunter2"))


@pytest.mark.parametrize(
    "words",
    [
        ("download", "http://ann:hunter2@127.0.0.1:9/lab/arm-v1/1.0.0"),
        ("download", "s3://ann:hunter2@bucket/lab/arm-v1/1.0.0"),
        ("download", MINI, "--mirror", "https://ann:hunter2@127.0.0.1:9/registry"),
    ],
)
def test_a_password_in_a_url_is_refused_without_repeating_it(words):
    command("registry", "add", "here", str(Path.cwd()))
    found = command(*words)
    assert found.returncode == 1
    assert "netrc" in found.stderr
    assert "hunter2" not in found.stdout + found.stderr


def link(registry, name, **fields):
    return link_foreign_file(registry, name, foreign_file_entry(format="d4rl-hdf5", **fields))


def test_a_signed_url_is_linked_without_its_query_which_is_given_to_download(tmp_path, home):
    body = rows_of([False, False, True, False], [False] * 4, next_observations=False)
    upstream, registry = tmp_path / "upstream", tmp_path / "registry"
    upstream.mkdir()
    write(upstream / "hopper.hdf5", body)
    with FileServer(upstream) as origin:
        origin.allows = is_signed
        url = f"{origin.url}/hopper.hdf5"
        with pytest.raises((ValueError, OrlogError)) as refused:
            link(str(registry), "lab/hopper-v2@1.0.0", url=f"{url}?{SECRET}")
        assert f'--mirror "{url}?.."' in str(refused.value)
        assert "s3cr3t" not in str(refused.value)
        assert not registry.exists()
        link(str(registry), "lab/hopper-v2@1.0.0", url=url)
        command("registry", "add", "lab", str(registry))
        denied = command("download", "lab/hopper-v2")
        assert denied.returncode == 1
        assert origin.requests
        origin.requests.clear()
        done = command("download", "lab/hopper-v2", "--mirror", f"{url}?{SECRET}")
        assert done.returncode == 0, done.stderr
        assert origin.requests
        assert all(map(is_signed, origin.requests))
    check(orlog.load_dataset("lab/hopper-v2"), body)
    for said in (denied, done):
        assert "s3cr3t" not in said.stdout + said.stderr
    assert "s3cr3t" not in texts_below(home) + texts_below(registry)


@pytest.mark.parametrize(
    ("given", "url", "asked"),
    [
        (("h/data?key=all", "h/data/open"), "h/data/open/x", "h/data/open/x"),
        (("h/data/open", "h/data?key=all"), "h/data/open", "h/data/open"),
        (("h/data/open?key=it", "h/data/open"), "h/data/open/x", "h/data/open/x?key=it"),
        (("h/data?key=all",), "h/data/get?id=7", "h/data/get?id=7"),
        (("h/data?key=all", "h/data/s?key=it"), "h/data/s/x", "h/data/s/x?key=it"),
        (("h/data?key=all", "h/data/s?key=it"), "h/data/secrets", "h/data/secrets?key=all"),
        (("h/data?key=all",), "h/database", "h/database"),
    ],
)
def test_a_url_gets_the_credentials_of_the_longest_url_that_was_given(given, url, asked):
    for each in given:
        credentials.plain_url(f"https://{each}")
    assert credentials.with_query(f"https://{url}") == f"https://{asked}"


def test_public_queries_and_words_stand_in_messages_as_they_are():
    for query in ("download", "version=1.0.0-beta", "id=12345678&token=long-secret"):
        credentials.plain_url(f"https://{query[:2]}/data?{query}")
    message = "version=1.0.0-beta and 12345678; run: orlog download lab/x-v1; long-secret"
    assert credentials.hidden(message) == message.replace("long-secret", "..")
