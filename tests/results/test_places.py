"""Places of results: folders, buckets and web servers, signatures, several writers, and kills."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orlog.errors import (
    IntegrityError,
    ManifestError,
    NotFoundError,
    SignatureError,
    TransferError,
    VersionExistsError,
)
from orlog.manifests.signatures import public_key
from orlog.results.adding import there_already
from orlog.results.documents import NO_DIGEST, Note, SharedResult, document_bytes, now, with_digest
from orlog.results.places import (
    LISTING_FILE,
    add_documents,
    collect,
    parse_listing,
    read_place,
    read_result,
    signed_document,
    stale_listing,
    write_listing,
)
from orlog.results.tables import make_board
from tests.kills import killed_at
from tests.levels import scaled
from tests.servers import Fault, FileServer

pytest_plugins = ["tests.s3_fixtures"]

Keys = tuple[Path, Path]


def added(to: Path, result: SharedResult, key: Path | None = None, **fields: Any) -> SharedResult:
    """Add a result, perhaps with other fields, and return it."""
    one = signed_document(msgspec.structs.replace(result, **fields), key)
    assert isinstance(one, SharedResult)
    add_documents(str(to), {one.path: one}, key_file=key)
    return one


def noted(to: Path, about: SharedResult, key: Path | None = None, **fields: Any) -> Note:
    given: dict[str, Any] = {"note_version": 1, "kind": "confirmation", "of": about.digest}
    given |= {"reason": "", "verdict": "identical", "protocol": about.protocol}
    given |= {
        "seeds": about.seeds[:1],
        "digest_of_data": about.dataset.digest,
        "by": "",
        "signed_by": "",
        "created": now(),
        "digest": NO_DIGEST,
        **fields,
    }
    note = signed_document(Note(**given), key)
    assert isinstance(note, Note)
    add_documents(str(to), {note.path_beside(about.path): note}, key_file=key)
    return note


def other(result: SharedResult, **method: Any) -> SharedResult:
    return msgspec.structs.replace(result, method=msgspec.structs.replace(result.method, **method))


def test_a_folder_a_web_server_and_memory_give_the_same_results(
    result: SharedResult, keys: Keys, tmp_path: Path
) -> None:
    ada, _ = keys
    folder = tmp_path / "results"
    first = added(folder, result, ada)
    second = added(folder, other(result, name="BC again!"))
    assert second.path.startswith("umaze-mini-v1/bc-again-")
    note = noted(folder, first, ada)
    found = collect([str(folder)])
    with FileServer(folder) as server:
        served = collect([f"{server.url}/"])
    add_documents("memory://places/of/results", {second.path: second})
    kept = collect(["memory://places/of/results"])
    for one in (found, served):
        assert not one.problems
        by_digest = {entry.result.digest: entry for entry in one.entries}
        assert by_digest.keys() == {first.digest, second.digest}
        assert by_digest[first.digest].result == first
        assert by_digest[first.digest].signers == frozenset([public_key(ada)])
        assert [said.note for said in by_digest[first.digest].notes] == [note]
        assert by_digest[second.digest].signers == frozenset()
    assert [entry.result for entry in kept.entries] == [second]


def test_places_are_merged_and_notes_count_wherever_they_lie(
    result: SharedResult, keys: Keys, tmp_path: Path
) -> None:
    ada, bob = keys
    one = added(tmp_path / "one", result, ada)
    added(tmp_path / "two", result, ada)
    noted(tmp_path / "notes", one, ada)
    noted(tmp_path / "notes", one, bob)
    places = [str(tmp_path / name) for name in ("one", "two", "notes")]
    (entry,) = collect(places).entries
    assert len(entry.where) == 2
    assert len(entry.notes) == 2
    (entry,) = collect(places[:2]).entries
    assert not entry.notes
    alone = collect(places[2:])
    assert not alone.entries
    assert all("which no place given has" in line for line in alone.notes)


def test_only_what_a_trusted_key_signed_is_taken(
    result: SharedResult, keys: Keys, tmp_path: Path
) -> None:
    ada, bob = keys
    one = added(tmp_path, result, ada)
    added(tmp_path, other(result, name="other"), bob)
    added(tmp_path, other(result, name="third"))
    found = collect([str(tmp_path)], trusted=[public_key(ada)])
    assert [entry.result for entry in found.entries] == [one]
    assert len([line for line in found.notes if "no trusted key" in line]) == 2


def test_every_change_of_a_signed_file_is_a_problem_that_names_it(
    result: SharedResult, keys: Keys, tmp_path: Path
) -> None:
    ada, bob = keys
    one = added(tmp_path, result, ada)
    path = tmp_path / one.path
    sig = path.with_name(f"{path.name}.sig")
    good, signature = path.read_bytes(), sig.read_bytes()

    def problem() -> str:
        found = collect([str(tmp_path)])
        assert not found.entries
        (line,) = found.problems
        assert str(path) in line
        return line

    path.write_bytes(good + b"\n")  # the same JSON, in other bytes
    assert "wrong signature" in problem()
    forged = with_digest(msgspec.structs.replace(one, by="Eve"))
    path.write_bytes(document_bytes(forged))
    assert "wrong signature" in problem()
    unsigned = with_digest(msgspec.structs.replace(one, signed_by=""))
    path.write_bytes(document_bytes(unsigned))
    assert "signed_by" in problem()
    path.write_bytes(good)
    sig.write_bytes(signature.replace(b'"signature": "', b'"signature": "0', 1)[:-1])
    problem()
    sig.unlink()
    assert "signed_by" in problem()
    eve = signed_document(result, bob)
    sig.write_bytes(signature)
    path.write_bytes(document_bytes(eve))
    assert "signed_by" in problem()


def test_signatures_of_manifests_are_none_of_results(
    result: SharedResult, keys: Keys, tmp_path: Path
) -> None:
    from orlog.manifests.signatures import sign

    one = added(tmp_path, result, keys[0])
    path = tmp_path / f"{one.path}.sig"
    path.write_bytes(sign((tmp_path / one.path).read_bytes(), "manifest", keys[0]))
    with pytest.raises(SignatureError):
        read_result(str(tmp_path / one.path))


def test_what_a_server_changed_is_not_read(result: SharedResult, tmp_path: Path) -> None:
    one = added(tmp_path, result)
    with FileServer(tmp_path) as server:
        server.faults.append(
            Fault(path=one.path, change=lambda data: data.replace(b'"Ada"', b'"Eve"'))
        )
        found = collect([server.url])
        assert not found.entries
        assert "results.json" in found.problems[0]
        server.faults[:] = [Fault(path=one.path, status=404)]
        assert "404" in collect([server.url]).problems[0]
        server.faults[:] = [Fault(path=LISTING_FILE, status=404)]
        with pytest.raises(NotFoundError, match="orlog results index"):
            collect([server.url])
        server.faults[:] = [Fault(path=LISTING_FILE, change=lambda _: b'{"results_version": 1')]
        with pytest.raises(ManifestError, match=LISTING_FILE):
            collect([server.url])
        server.faults[:] = [Fault(path=one.path, headers={"Content-Length": str(2**40)})]
        with pytest.raises(TransferError, match="more than"):
            read_result(f"{server.url}/{one.path}")


@pytest.mark.parametrize(
    "path",
    [
        "../../x.json",
        "/etc/x.json",
        "a/../../b.json",
        "a/b/c.json",
        ".a/b.json",
        "a/b.txt",
        "a/.b.json",
    ],
)
def test_a_listing_leads_nowhere_else(path: str) -> None:
    body = {"results_version": 1, "files": {path: "0" * 64}}
    with pytest.raises(ManifestError, match="files"):
        parse_listing(json.dumps(body).encode(), "here")


def test_links_and_files_of_other_names_are_not_read(result: SharedResult, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    one = added(folder, result)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "umaze-mini-v1" / "link-00000000.json").symlink_to(secret)
    (folder / "umaze-mini-v1" / "Notes.json").write_text("{}")
    found = collect([str(folder)])
    assert [entry.result for entry in found.entries] == [one]
    assert "is a link" in found.problems[0]
    with pytest.raises(ManifestError, match="missing required field"):
        read_result(str(secret))
    with pytest.raises(NotFoundError, match="no file of a result"):
        read_result(str(tmp_path / "Results" / "secret.json"))
    with pytest.raises(NotFoundError, match="no such folder"):
        collect([str(tmp_path / "nothing")])


def test_a_result_never_changes(result: SharedResult, tmp_path: Path) -> None:
    one = added(tmp_path, result)
    (tmp_path / one.path).write_bytes(b"{}")
    with pytest.raises(VersionExistsError):
        added(tmp_path, result)
    assert (tmp_path / one.path).read_bytes() == b"{}"


def test_the_same_runs_added_later_are_there_already(result: SharedResult, tmp_path: Path) -> None:
    assert there_already(str(tmp_path), result) is None
    one = added(tmp_path, result)
    again = with_digest(msgspec.structs.replace(result, created="2030-01-01T00:00:00Z"))
    assert again.digest != one.digest
    found = there_already(str(tmp_path), again)
    assert found is not None
    assert found.document == one
    assert (
        there_already(str(tmp_path), with_digest(msgspec.structs.replace(again, by="Bob"))) is None
    )


def test_a_merged_folder_is_read_as_it_is_and_listed_again(
    result: SharedResult, tmp_path: Path
) -> None:
    one = added(tmp_path / "ours", result)
    two = added(tmp_path / "theirs", other(result, name="theirs"))
    shutil.copyfile(tmp_path / "theirs" / two.path, tmp_path / "ours" / two.path)
    assert len(collect([str(tmp_path / "ours")]).entries) == 2
    assert two.path in stale_listing(tmp_path / "ours")
    assert write_listing(tmp_path / "ours") == 2
    assert stale_listing(tmp_path / "ours") == ""
    listed = parse_listing((tmp_path / "ours" / LISTING_FILE).read_bytes(), "here")
    assert [*listed.files] == sorted([one.path, two.path])


def test_many_that_add_at_once_are_all_there(result: SharedResult, tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = [*pool.map(lambda n: added(tmp_path, other(result, name=f"m{n}")), range(12))]
    found, problems = read_place(str(tmp_path))
    assert not problems
    assert {one.path for one in found} == {one.path for one in made}
    assert stale_listing(tmp_path) == ""


def test_two_processes_that_add_at_once_lose_nothing(result: SharedResult, tmp_path: Path) -> None:
    children = []
    for name in ("one", "two"):
        child = os.fork()
        if child == 0:
            for number in range(5):
                added(tmp_path, other(result, name=f"{name}{number}"))
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert len(read_place(str(tmp_path))[0]) == 10
    assert stale_listing(tmp_path) == ""


def test_killed_at_any_instant_it_is_there_whole_or_not_at_all_and_is_added_again(
    result: SharedResult, keys: Keys, tmp_path: Path
) -> None:
    first = other(result, name="first")
    instants, instant = 0, 1
    while True:
        folder = tmp_path / f"at-{instant}"
        before = added(folder, first)
        was_killed, instants = killed_at(
            lambda _, to=folder: added(to, result, keys[0]),  # type: ignore[misc]
            instant,
            folder,
        )
        found, problems = read_place(str(folder))
        assert not problems
        assert len(found) in ((1, 2) if was_killed else (2,))
        added(folder, result, keys[0])
        found, problems = read_place(str(folder))
        assert not problems
        assert {one.document.digest for one in found} >= {before.digest}
        assert len(found) == 2
        assert stale_listing(folder) == ""
        if not was_killed:
            break
        instant += 1 if scaled(8) == 8 else 3
    assert instants > 8


def test_an_s3_server_keeps_results_that_two_add(
    result: SharedResult, bucket: Any, keys: Keys
) -> None:
    to = "s3://data/results"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:

        def add(number: int) -> SharedResult:
            one = signed_document(other(result, name=f"m{number}"), keys[0])
            assert isinstance(one, SharedResult)
            add_documents(to, {one.path: one}, key_file=keys[0])
            return one

        made = [*pool.map(add, range(4))]
    found = collect([to])
    assert not found.problems
    assert {entry.result.digest for entry in found.entries} == {one.digest for one in made}
    assert make_board(found, others=False).tables[0].comparison is not None
    changed = msgspec.structs.replace(made[0], by="Eve")
    bucket.pipe_file(f"data/results/{made[0].path}", document_bytes(changed))
    assert len(collect([to]).problems) == 1


def test_an_error_names_the_file_of_a_place(
    result: SharedResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = added(tmp_path, result)
    monkeypatch.chdir(tmp_path)
    entry = read_result(one.path)  # from inside of the folder
    assert entry.result == one
    (tmp_path / one.path).write_bytes(b"{")
    with pytest.raises(ManifestError, match=one.path):
        read_result(one.path)
    note = noted(tmp_path, one)
    with pytest.raises(ManifestError, match="is a note"):
        read_result(str(tmp_path / note.path_beside(one.path)))


def test_without_cryptography_signatures_are_said_to_be_unchecked(
    result: SharedResult, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(tmp_path, result, keys[0])
    forbid(monkeypatch)
    found = collect([str(tmp_path)])
    assert found.entries[0].signers is None
    assert "orlog[sign]" in found.notes[0]
    with pytest.raises(ImportError, match=r"orlog\[sign\]"):
        collect([str(tmp_path)], trusted=[public_key_text(found)])


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real: Callable[..., Any] = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)


def public_key_text(found: Any) -> str:
    return str(found.entries[0].result.signed_by)


def test_integrity_is_the_error_of_a_url_whose_listing_says_otherwise(
    result: SharedResult, tmp_path: Path
) -> None:
    one = added(tmp_path, result)
    (tmp_path / one.path).write_bytes(document_bytes(one) + b" ")
    with FileServer(tmp_path) as server:
        found = collect([server.url])
        assert len(found.problems) == 1
        assert issubclass(ManifestError, IntegrityError)


def test_what_does_not_agree_is_not_added(result: SharedResult, tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(result, by="Eve")
    with pytest.raises(ManifestError, match="digest"):
        add_documents(str(tmp_path), {wrong.path: wrong})
    assert [*tmp_path.glob("umaze*")] == []
