"""Servers that want fewer requests: ours, a real nginx and a real Apache, with compression on."""

import contextlib
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from orlog.datasets.download.download import download_version
from orlog.datasets.download.http import Patience
from orlog.datasets.download.sources import source_of_url
from orlog.datasets.download.transfer import Mirror, TransferOptions, fetch_object
from orlog.datasets.store.verify import verify_folder
from orlog.errors import TransferError
from tests.datasets.download.test_transfer import object_of, place
from tests.servers import COMES, Fault, FileServer

MINI = "pointmaze/umaze-mini-v1"
RATE = 20  # requests a second: each test waits until all objects have come
# The server alone decides how long a test takes: `idle` is the end of a test that has failed.
PATIENT = Patience(attempts=2, timeout=COMES, idle=COMES, first_wait=0.05, longest_wait=0.1)
MODULES = Path("/usr/lib/apache2/modules")
STARTS_WITHIN = 120.0
PORTS = range(20_000, 30_000)
"""Below those that the system gives to who asks for any, so that a port that is free stays free."""


@pytest.fixture
def public_folder(registry_folder):
    """Return a folder with a copy of the registry that any user of this machine may read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(registry_folder, folder / "served")
        (folder / "served").chmod(0o755)
        yield folder


def download(url):
    source = source_of_url(f"{url}/{MINI}/1.0.0", patience=PATIENT)
    folder = download_version(source, TransferOptions(patience=PATIENT))
    assert verify_folder(folder)[1] == []


@contextlib.contextmanager
def running(command, port, folder):
    """Run a server until the block ends, and give its address."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} did not start: {(folder / 'output').read_text()}")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def is_free(port, held):
    """Return whether nobody has a port, after which no other test takes it as long as the lock is held."""
    lock = FileLock(Path(tempfile.gettempdir()) / f"orlog-port-{port}.lock", blocking=False)
    with contextlib.suppress(Timeout, OSError):
        held.enter_context(lock)
        socket.create_server(("127.0.0.1", port)).close()
        return True
    return False


@contextlib.contextmanager
def free_port():
    with contextlib.ExitStack() as held:
        yield next(port for port in PORTS if is_free(port, held))


def nginx(folder, port, limits, limit):
    """Return the configuration of nginx with compression and a limit, and how to start it."""
    (folder / "temporary").mkdir()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/temporary/{kind};\n" for kind in kinds)
    settings = f"""
daemon off; pid {folder}/nginx.pid; error_log {folder}/errors crit;
events {{}}
http {{
    {places} access_log off; gzip on; gzip_types *; gzip_min_length 1; {limits}
    server {{ listen 127.0.0.1:{port}; root {folder}/served; {limit} }}
}}
"""
    return settings, ["-p", str(folder), "-c", str(folder / "settings"), "-e", "stderr"]


def apache(folder, port, *_):
    """Return the configuration of an Apache with compression that refuses every second request, and how to start it."""
    (folder / "answers").write_text("objects no|yes\n", "utf-8")
    modules = "".join(
        f"LoadModule {name}_module {MODULES}/mod_{name}.so\n"
        for name in ("mpm_event", "authz_core", "filter", "deflate", "rewrite")
        if (MODULES / f"mod_{name}.so").exists()
    )
    settings = f"""
ServerRoot {folder}
ServerName 127.0.0.1
Listen 127.0.0.1:{port}
PidFile {folder}/httpd.pid
ErrorLog {folder}/errors
DefaultRuntimeDir {folder}
{modules}
User #65534
Group #65534
DocumentRoot {folder}/served
SetOutputFilter DEFLATE
RewriteEngine On
RewriteMap answers rnd:{folder}/answers
RewriteCond %{{REQUEST_URI}} !manifest.json
RewriteCond ${{answers:objects}} =no
RewriteRule .* - [R=503,L]
"""
    return settings, ["-f", str(folder / "settings"), "-DFOREGROUND"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_limits_requests_gives_the_whole_version(registry_folder, status):
    with FileServer(registry_folder) as server:
        server.rate, server.rate_status = RATE, status
        download(server.url)
        given = len(server.requests) - server.refused
    # Without a limit of our own, sixteen threads are refused about ten times for each object.
    assert server.refused < 2 * given


ZONE = f"limit_req_zone $binary_remote_addr zone=all:1m rate={RATE}r/s;"


@pytest.mark.parametrize(
    ("program", "configure", "limits"),
    [
        *(("nginx", nginx, (ZONE, f"limit_req zone=all; limit_req_status {status};")) for status in (429, 503)),
        # Each object takes a moment, so that requests meet.
        ("nginx", nginx, ("limit_conn_zone $binary_remote_addr zone=all:1m;", "limit_conn all 1; limit_rate 1m;")),
        ("apache2", apache, ()),
    ],
)
def test_a_real_server_that_limits_requests_or_connections_gives_the_whole_version(
    public_folder, program, configure, limits
):
    found = shutil.which(program)
    if found is None or (program == "apache2" and not (MODULES / "mod_rewrite.so").exists()):
        pytest.skip(f"needs {program}")
    with free_port() as port:
        settings, arguments = configure(public_folder, port, *limits)
        (public_folder / "settings").write_text(settings, "utf-8")
        with running([found, *arguments], port, public_folder) as url:
            download(url)


def test_nothing_new_for_a_while_is_the_end(tmp_path, clock):
    place(tmp_path / "served")
    patience = Patience(attempts=2, timeout=COMES, idle=0.3, first_wait=0.01, longest_wait=0.05)
    with FileServer(tmp_path / "served") as server:
        server.faults = [Fault(status=429)]
        began = clock.now
        with pytest.raises(TransferError, match="429"):
            fetch_object([Mirror(server.url)], object_of(), tmp_path / "part", patience=patience)
        assert patience.idle <= clock.now - began < 2 * patience.idle
        assert len(server.requests) > patience.attempts


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_object_is_waited_for_while_others_come(tmp_path, clock, status):
    place(tmp_path / "served")
    patience = Patience(attempts=2, timeout=COMES, idle=0.5, first_wait=0.01, longest_wait=0.05)
    with FileServer(tmp_path / "served") as server:
        mirror = Mirror(server.url)
        late = Fault(path="c.0.0", status=status)
        server.faults = [late]
        place(tmp_path / "served", b"other", "other")

        def others(_):
            """Bring another object each time that the first one waits."""
            late.times = 0 if clock.now - began > 2 * patience.idle else None
            other = object_of(b"other", "other")
            fetch_object([mirror], other, tmp_path / f"{random.random()}", patience=patience)

        began = clock.now
        fetch_object([mirror], object_of(), tmp_path / "part", progress=others, patience=patience)
    assert clock.now - began >= patience.idle
