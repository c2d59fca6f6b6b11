"""Damaged and hostile documents of every kind: a typed error or a right answer, and nothing else.

All are opened in a child process, so that a crash, a hang, a large allocation or a path outside of
the child's folder is seen. `tools/fuzzing/fuzz_documents.py` looks for more of them.
"""

import collections
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.command_line import orlog
from tests.fuzz.child import PROBES, Child
from tests.fuzz.damage import DEEP
from tests.fuzz.documents import KINDS
from tests.levels import most
from tests.programs import run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are Linux's")

NUMBERS = st.integers(0, 2**20)
STEPS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4)
REFUSED = {
    *(
        "InvalidNameError",  # of what is no view
        "ManifestError",
        "IntegrityError",
        "SignatureError",
        "FormatVersionError",
        "NotFoundError",
        "TransferError",
    )
}
watched = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    """Return a process that opens documents."""
    with Child(tmp_path_factory.mktemp("child")) as made:
        yield made


@pytest.mark.parametrize("examples", [600, pytest.param(most(10_000, 3_000), marks=pytest.mark.thorough)])
def test_damaged_documents_of_every_kind_are_refused_or_right(child, examples):
    found = {kind: collections.Counter() for kind in KINDS}

    @settings(watched, max_examples=-(-examples // len(KINDS)))
    @given(STEPS)
    def check_each(steps):
        for kind in KINDS:
            answer = child.check(kind, steps)
            assert answer.is_good, f"{kind} after {steps}: {answer.outcome}"
            found[kind][answer.outcome] += 1

    check_each()
    for kind, outcomes in found.items():
        sys.stdout.write(f"{kind}: {dict(outcomes)}\n")
    totals = sum(found.values(), collections.Counter[str]())
    sys.stdout.write(f"{totals.total()} in all: {dict(totals)}\n")
    assert totals.total() >= examples
    assert totals.keys() <= {"right", *REFUSED}
    for kind in set(KINDS) - {"verified"}:  # which is only a memory: what is wrong with it is dropped
        assert found[kind]["right"], kind
        assert found[kind].total() > found[kind]["right"], kind


@pytest.mark.parametrize("kind", PROBES)
def test_what_must_not_happen_would_be_seen(child, kind):
    assert not child.check(kind, b"").is_good
    assert child.check("lock", b"").outcome == "ManifestError"


# --- hand-picked


def sealed(folder, change):
    """Return the manifest in a folder, changed, with lists in order and a digest that fits."""
    body = json.loads((folder / "manifest.json").read_text("utf-8"))
    change(body)
    body["columns"].sort(key=lambda column: column["name"])
    body["objects"].sort(key=lambda item: item["path"])
    body.pop("digest")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return json.dumps({"digest": f"sha256:{digest}", **body}).encode()


def with_object(path):
    item = {"path": path, "size_bytes": 1, "sha256": "0" * 64}
    return lambda body: body["objects"].append(item)


PATHS = {
    "outside": "../outside/secret",
    "absolute": "/etc/passwd",
    "backslashes": "..\\outside",
    "null": "a\0b",
    "escape": "a\x1b[2Jb",
    "half a pair": "a\ud800b",
    "composed and not": "\xe9/e\u0301",
    "ligature": "metadata \ufb01",
    "below a file": "rewards/c.0/x",
    "the manifest": "manifest.json",
    "a part too long": "\xe9" * 200,
    "too long": "x/" * 300 + "x",
}
LINKED = {"composed and not": "\xe9/\xe9", "ligature": "metadata fi"}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_no_disk_could_hold_apart_is_refused(child, mini_folder, name):
    def change(body):
        with_object(PATHS[name])(body)
        if name in LINKED:
            with_object(LINKED[name])(body)

    assert child.check("manifest", sealed(mini_folder, change)).outcome == "ManifestError"


TEXTS = {
    "nothing": b"",
    "null": b"null",
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "keys twice": b'{"digest": 1, "digest": 1}',
    "half a pair": rb'"\ud800"',
    "half a pair as key": rb'{"\udc00": 1}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "not a number": b'{"a": NaN}',
    "zeros": b"\0" * 10**6,
    "a long text": b'"' + b"x" * 10**6 + b'"',
    "many keys": b"{" + b",".join(b'"%d":0' % number for number in range(10**4)) + b"}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_document_is_refused(child, name):
    for kind in KINDS:
        answer = child.check(kind, TEXTS[name])
        assert answer.outcome in ({"right"} if kind == "verified" else REFUSED), kind


# --- what is no file


OPENS = """
import resource, sys
from orlog import OrlogError, load_dataset, verify_store
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
for folder in sys.argv[1:]:
    refused = []
    for opened in (load_dataset, verify_store):
        try:
            opened(Path(folder))
        except OrlogError as error:
            refused.append(type(error).__name__)
    print(*refused)
"""
STRANGE = {
    "a link to zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["manifest.json", "rewards/zarr.json", "rewards/c.0"])
def test_what_is_no_file_is_never_read(built_mini, tmp_path, place):
    for name, make in STRANGE.items():
        shutil.copytree(built_mini, tmp_path / name)
        (tmp_path / name / place).unlink()
        make(tmp_path / name / place)
    done = run_program([sys.executable, "-c", OPENS, *(str(tmp_path / name) for name in STRANGE)], timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    for name, line in zip(STRANGE, done.stdout.splitlines(), strict=True):
        refused = line.split()
        assert len(refused) == (2 if place == "manifest.json" else 1), name
        assert set(refused) <= REFUSED, name


# --- through the command line


def damages(folder, reseal):
    path = folder / "manifest.json"
    text = path.read_bytes()
    return {
        "escape": lambda: reseal(folder, with_object("../../secret")),
        "deep": lambda: path.write_bytes(TEXTS["deep lists"]),
        "cut": lambda: path.write_bytes(text[: len(text) // 2]),
        "steered": lambda: reseal(folder, lambda body: body.update(name="\x1b[2J\x07")),
    }


@pytest.mark.parametrize("name", ["escape", "deep", "cut", "steered"])
def test_the_command_line_refuses_in_one_paragraph(mini_folder, reseal, name):
    damages(mini_folder, reseal)[name]()
    done = orlog("verify", str(mini_folder))
    assert done.returncode in (1, 3)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 5000
    assert all(letter.isprintable() for letter in done.stderr.removesuffix("\n"))
