"""Small JSON files are replaced in one step, also by several processes at once."""

import json
import os

from orlog.manifests.documents import write_json


def test_a_process_that_writes_meanwhile_leaves_either_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "evaluation.json"
    others = []

    def while_it_waits_for_the_disk(_):
        if others:
            return
        others.append(os.fork())
        if others[0] == 0:
            write_json(path, "theirs")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(others[0], 0)[1]) == 0
        assert json.loads(path.read_bytes()) == "theirs"

    monkeypatch.setattr(os, "fsync", while_it_waits_for_the_disk)
    write_json(path, "ours")
    assert json.loads(path.read_bytes()) == "ours"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
