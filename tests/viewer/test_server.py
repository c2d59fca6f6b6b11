import base64
import dataclasses
import json
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

import orlog
from orlog.errors import NotFoundError
from orlog.viewer.shown import open_all
from tests.datasets.store.test_videos import write
from tests.episodes import record_episodes, whole_episode
from tests.viewer.conftest import LONGEST_S, Served, enter, names_of
from tests.viewer.made import ARM_SPACE, ROBOT_SPACE, robot_episode, write_numbers, write_robot


def lines_of(head, name):
    (one,) = (one for one in head["series"] if one["name"] == name)
    return np.frombuffer(base64.b64decode(one["lines"]), "<f8").reshape(one["shown"], -1)


def test_the_list_is_sorted_filtered_and_cut_into_pages(serve):
    write_numbers()
    served = serve("lab/numbers-v1")
    page = served.get("api/data/0/episodes?where=returns+%3E+100&by=returns&descending=1&count=3")
    assert (page["total"], page["matching"]) == (300, 199)
    assert page["columns"]["episode"] == [299, 298, 297]
    assert page["columns"]["end"] == ["terminated"] * 3
    assert page["columns"]["lengths"] == [20] * 3
    last = served.get("api/data/0/episodes?first=298&count=10")
    assert last["columns"]["episode"] == [298, 299]
    row = served.get("api/data/0/row?episode=297&by=returns&descending=1")
    assert row == {"row": 2}
    assert served.get("api/data/0/row?episode=5&where=returns+%3E+100") == {"row": None}


def test_an_expression_that_cannot_be_read_is_answered_with_what_orlog_view_says(serve):
    ds = write_numbers(episodes=3)
    served = serve("lab/numbers-v1")
    status, text = served.problem("api/data/0/episodes?where=returnss+%3E+1")
    with pytest.raises(ValueError, match="did you mean") as said:
        ds.filter_episodes("returnss > 1")
    assert (status, text) == (422, str(said.value))
    assert served.problem("api/data/0/episodes?by=nothing")[0] == 422
    assert "whole number" in served.problem("api/data/0/episodes?first=x")[1]


def test_an_episode_is_what_was_recorded(serve):
    ds = write_robot(behavior_policy="scripted")
    episode = ds[3]
    served = serve("lab/robot-v1")
    head = served.get("api/data/0/episode/3")
    assert head["facts"]["end"] == "terminated"
    assert head["facts"]["task"] == "pick up the cube"
    assert head["policy"] == "scripted"
    assert_array_equal(lines_of(head, "observations/position").T, episode.observations["position"])
    assert_array_equal(lines_of(head, "rewards")[0], episode.rewards)
    to_go = lines_of(head, "returns to go")[0]
    np.testing.assert_allclose(to_go[0], episode.rewards.sum())
    assert names_of(head["frames"]) == ["observations/camera", "observations/depth"]
    texts = {one["name"]: one["values"] for one in head["texts"]}
    assert texts["infos/said"][7] == "step 7: pick up the cube"
    assert texts["infos/tokens"][4] == "0, 1, 2, 3"
    assert len(texts["observations/instruction"]) == len(episode) + 1
    assert served.problem("api/data/0/episode/99")[0] == 404


def test_a_long_episode_shows_the_smallest_and_largest_of_each_few_steps(serve):
    write_numbers(episodes=1, steps=10_001)
    served = serve("lab/numbers-v1")
    head = served.get("api/data/0/episode/0")
    (one,) = (one for one in head["series"] if one["name"] == "observations")
    assert one["every"] == 6
    line = lines_of(head, "observations")[0]
    assert line[:4].tolist() == [0, 20, 24, 44]
    head = served.get("api/data/0/episode/0?first=50&last=60")
    assert lines_of(head, "observations")[0].tolist() == [4.0 * step for step in range(50, 60)]


def pixels_of(png, channels):
    width, height = struct.unpack(">II", png[16:24])
    size = int.from_bytes(png[33:37], "big")
    rows = np.frombuffer(zlib.decompress(png[41 : 41 + size]), np.uint8)
    return rows.reshape(height, -1)[:, 1:].reshape(height, width, channels)


def test_frames_are_the_stored_pixels(serve):
    ds = write_robot()
    served = serve("lab/robot-v1")
    _, headers, png = served.ask("api/data/0/episode/2/frame?column=observations/camera&step=42")
    assert headers["content-type"] == "image/png"
    assert_array_equal(pixels_of(png, 3), ds[2].observations["camera"][42])
    _, _, png = served.ask("api/data/0/episode/2/frame?column=observations/depth&step=0")
    assert pixels_of(png, 1).shape == (24, 24, 1)
    assert served.problem("api/data/0/episode/2/frame?column=observations/camera&step=43")[0] == 404
    assert served.problem("api/data/0/episode/2/frame?column=rewards&step=0")[0] == 404


def test_a_stored_video_is_served_by_ranges_that_were_checked(serve, tmp_path):
    pytest.importorskip("av")
    orlog.import_dataset(write(tmp_path / "arm"), "lab/pick-v1")
    (source, _) = sorted((tmp_path / "arm").rglob("*.mp4"))
    data, path = source.read_bytes(), "api/data/0/episode/1/film?column=observations/image"
    served = serve("lab/pick-v1")

    def part(asked, path=path):
        status, headers, body = served.ask(path, headers={"Range": asked} if asked else {})
        return status, headers.get("content-range"), body

    size = len(data)
    assert part("bytes=0-") == (206, f"bytes 0-{size - 1}/{size}", data)
    assert part("bytes=10-19") == (206, f"bytes 10-19/{size}", data[10:20])
    assert part("bytes=9000-99999999") == (206, f"bytes 9000-{size - 1}/{size}", data[9000:])
    assert part("bytes=-5") == (206, f"bytes {size - 5}-{size - 1}/{size}", data[-5:])
    for asked in ("", f"bytes={size}-", "bytes=5-2", "bytes=-0", "bytes=-", "bytes=0-1,4-5", "lines=0-1", "bytes=x-"):
        assert part(asked) == (416, f"bytes */{size}", b""), asked
    status, headers, _ = served.ask(path, headers={"Range": "bytes=0-"}, cookie="")
    assert (status, "content-range" in headers) == (403, False)
    for column in (
        "actions",
        "observations/state",
        "",
        "observations/image/../state",
        "../../manifest.json",
        "/etc/passwd",
    ):
        assert part("bytes=0-", path.replace("observations/image", column))[0] == 404, column
    assert served.problem("api/data/0/episode/9/film?column=observations/image")[0] == 404
    copy = orlog.load_dataset("lab/pick-v1").folder / "videos/observations/image/1.mp4"
    copy.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    status, said = served.ask(path, headers={"Range": "bytes=60-69"})[::2]
    assert (status, b"1.mp4, bytes from 0 on: expected blake3" in said) == (422, True)


def test_a_view_is_saved_once_into_the_folder_of_the_command(serve, tmp_path):
    ds = write_numbers()
    served = serve("lab/numbers-v1")

    def save(name, where="returns > 290", origin=None):
        headers = {"Content-Type": "application/json", "Origin": origin or f"http://127.0.0.1:{served.port}"}
        body = json.dumps({"name": name, "where": where}).encode()
        status, _, answer = served.ask("api/data/0/view", method="POST", body=body, headers=headers)
        return status, answer.decode()

    assert save("best")[0] == 200
    view = orlog.load_dataset(tmp_path / "started" / "best.json")
    assert view.digest == ds.filter_episodes("returns > 290").digest
    assert save("best")[0] == 409
    for name in ("../outside", "a/b", "", ".hidden", "x" * 100, "a\\b", "a\0"):
        assert save(name)[0] == 400, name
    assert save("none", "returns > 1e9")[0] == 404
    assert save("empty", "")[0] == 400
    assert save("wrong", "returns >")[0] == 422
    assert save("foreign", origin="http://evil.example")[0] == 403
    assert [path.name for path in (tmp_path / "started").iterdir()] == ["best.json"]
    assert serve(tmp_path / "started" / "best.json").get("api/opened")["datasets"][0]["is_view"]


VIEW = b'{"name": "a", "where": "returns > 0"}'


def test_who_may_not_ask_is_refused(serve, tmp_path):
    write_numbers(episodes=2)
    served = serve("lab/numbers-v1")
    port, secret = served.port, served.cookie.removeprefix("orlog=")

    def status(raw_path=None, cookie=None, **headers):
        return served.ask("api/opened", raw_path=raw_path, cookie=cookie, headers=headers)[0]

    assert status() == 200
    assert status(cookie=f"orlog=of-another-server; {served.cookie}") == 200
    for name in ("127.0.0.1", "localhost", "[::1]"):
        # Also through `ssh -L`, whose port is not the server's.
        assert [status(Host=name + end) for end in (f":{port}", ":9999", "")] == [200] * 3
    for name in (
        f"rebound.example:{port}", "127.0.0.1.rebound.example", "localhost.rebound.example:80", "127.0.0.1:", "", "10.0.0.7",
        f"user@127.0.0.1:{port}", f"127.0.0.1:{port}.rebound.example", "127.0.0.1:1234567", "0.0.0.0",
    ):  # fmt: skip
        assert status(Host=name) in (400, 403), name
    assert status(Host="localhost:9999", Origin="http://localhost:9999") == 200
    others = ("http://evil.example", "null", f"https://127.0.0.1:{port}", "http://127.0.0.1:9999")
    assert {status(Origin=origin) for origin in (*others, f"http://localhost:{port}")} == {403}
    guesses = (secret[:-1], f"{secret}x", "x" * len(secret), "", secret.swapcase(), "é")
    assert {status(cookie=f"orlog={guess}") for guess in guesses} == {403}
    assert {status(cookie=cookie) for cookie in ("", secret, f"other={secret}")} == {403}
    for path in ("/", "/api/opened", f"/{'x' * 16}/api/opened", f"/{secret}/api/opened"):
        assert status(raw_path=path) == 403
    for cookie, more in (("", {"Origin": f"http://127.0.0.1:{port}"}), (None, {})):
        headers = {"Content-Type": "application/json", **more}  # not entered; not from a page
        assert served.ask("api/data/0/view", method="POST", body=VIEW, headers=headers, cookie=cookie)[0] == 403
    assert not list((tmp_path / "started").iterdir())


def test_an_address_lets_one_browser_in(serve):
    write_numbers(episodes=2)
    served = serve("lab/numbers-v1")
    query = "?" + served.address.partition("?")[2]
    # Nothing but the page can be asked for with it, and asking for that does not use it up.
    assert served.ask(f"api/opened{query}", cookie="")[0] == 403
    assert served.ask(query, cookie="", method="HEAD")[0] == 403
    assert served.ask(query, cookie="", headers={"Host": "rebound.example"})[0] == 403
    status, headers, body = served.ask(query, cookie="")
    assert (status, b"<html" in body) == (200, True)
    cookie, *attributes = headers["set-cookie"].split("; ")
    place = served.page.removeprefix(f"http://127.0.0.1:{served.port}")
    assert attributes == [f"Path={place}", "HttpOnly", "SameSite=Strict"]
    second, headers, body = served.ask(query, cookie="")
    assert (second, "set-cookie" in headers) == (403, False)
    assert b"that orlog open printed last" in body
    # Who is in stays in: another tab, loading again, and the address copied from the terminal.
    assert served.ask("api/opened", cookie=cookie)[0] == 200
    assert served.ask(query, cookie=cookie)[0] == 200


def test_nothing_but_what_was_opened_can_be_reached(serve, tmp_path):
    ds = write_numbers(episodes=2)
    (tmp_path / "started" / "secret.txt").write_text("secret")
    served = serve("lab/numbers-v1")
    outside = (
        "page/..%2fserver.py", "page/%2e%2e/server.py", "page/../server.py", "page/..\\server.py",
        f"page/{tmp_path}/started/secret.txt", f"page//{ds.folder}/manifest.json", "page/",
        "secret.txt", "../secret.txt", "api/report/0", "api/data/1/episodes", "api/data/-1/episodes",
        "page/style.css/..", "manifest.json",
    )  # fmt: skip
    for path in outside:
        status, _, body = served.ask(path)
        assert status == 404, path
        assert b"secret" not in body
        assert b"Starlette" not in body
    assert served.ask("page/style.css")[1]["content-type"].startswith("text/css")
    for method in ("PUT", "DELETE", "POST"):
        headers = {"Origin": f"http://127.0.0.1:{served.port}"}
        assert served.ask("api/opened", method=method, headers=headers)[0] == 405


def test_every_answer_says_what_a_page_may_do(serve):
    write_numbers(episodes=2)
    served = serve("lab/numbers-v1")
    for path in ("", "page/app.js", "api/opened", "api/nothing"):
        _, headers, _ = served.ask(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src 'self';" in policy
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_asks_nothing_from_anywhere_else():
    page = Path(orlog.__file__).parent / "viewer" / "page"
    for path in page.iterdir():
        if path.name.startswith("uPlot"):
            continue
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        for word in ("http:", "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval("):
            assert word not in text, (path.name, word)
    html = (page / "index.html").read_text("utf-8")
    assert "<script>" not in html
    assert "style=" not in html


def test_a_damaged_shard_is_said_in_its_place_and_the_rest_is_shown(serve):
    ds = write_robot()
    for shard in (ds.folder / "rewards").glob("c.*"):
        data = bytearray(shard.read_bytes())
        data[3] ^= 0xFF
        shard.write_bytes(data)
    camera = next((ds.folder / "observations" / "camera").glob("c.*"))
    data = bytearray(camera.read_bytes())
    data[3] ^= 0xFF
    camera.write_bytes(data)
    served = serve("lab/robot-v1")
    head = served.get("api/data/0/episode/0")
    series = {one["name"]: one for one in head["series"]}
    assert "rewards" in series["rewards"]["error"]
    assert "orlog verify" in series["rewards"]["error"]
    assert lines_of(head, "observations/position").shape == (3, 41)
    status, text = served.problem("api/data/0/episode/0/frame?column=observations/camera&step=0")
    assert status == 422
    assert "orlog verify" in text
    assert served.ask("api/data/0/episode/5/frame?column=observations/camera&step=9")[0] == 200


def test_a_dataset_that_is_deleted_while_open_is_said_to_be(serve):
    ds = write_robot()
    served = serve("lab/robot-v1")
    shutil.rmtree(ds.folder)
    head = served.get("api/data/0/episode/0")
    assert all("deleted" in one["error"] for one in head["series"] if one["name"] == "actions")
    status, text = served.problem("api/data/0/episode/0/frame?column=observations/camera&step=0")
    assert status in (404, 422)
    assert "deleted" in text
    assert served.get("api/opened")["datasets"][0]["episodes"] == 6


def test_what_cannot_be_opened_says_what_to_do(tmp_path):
    with pytest.raises(NotFoundError, match="orlog build"):
        open_all(["pointmaze/umaze-v1"])
    with pytest.raises(NotFoundError, match=r"no dataset .* no run .* no report"):
        open_all([str(tmp_path)])


def test_nested_values_are_named_though_not_shown(serve):
    space = spaces.Graph(spaces.Box(0, 1, (2,), np.float32), None)
    graph = spaces.GraphInstance(np.ones((3, 2), np.float32), None, None)
    record_episodes("lab/graphs-v1", [whole_episode([graph] * 3, np.zeros(2, np.int64))], space, spaces.Discrete(2))
    head = serve("lab/graphs-v1").get("api/data/0/episode/0")
    (told,) = head["texts"]
    assert told["name"] == "observations"
    assert "in Python" in told["error"]


def test_large_seeds_keep_their_last_digit(serve):
    record_episodes("lab/robot-v1", [dataclasses.replace(robot_episode(1, 5), seed=2**62 + 1)], ROBOT_SPACE, ARM_SPACE)
    page = serve("lab/robot-v1").get("api/data/0/episodes")
    assert page["columns"]["seeds"] == [str(2**62 + 1)]


@pytest.mark.usefixtures("home")
def test_the_command_serves_until_ctrl_c(tmp_path):
    write_numbers(episodes=2)
    started = subprocess.Popen(
        [sys.executable, "-m", "orlog.cli", "open", "lab/numbers-v1", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert started.stdout is not None
    first = started.stdout.readline().strip()
    status, cookie = enter(first)
    assert status == 200
    assert Served(first, cookie).get("api/opened")["datasets"][0]["episodes"] == 2
    assert [started.stdout.readline() for _ in range(3)][-1].startswith("A browser entered.")
    assert [enter(address)[0] for address in (first, started.stdout.readline().strip())] == [403, 200]
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=LONGEST_S)
    assert (started.returncode, said) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="BROWSER is a script")
def test_a_browser_is_given_a_file_that_only_the_user_can_read(tmp_path, home):
    write_numbers(episodes=2)
    browser, seen, files = (tmp_path / name for name in ("browser", "seen", "files"))
    files.mkdir()
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.part && mv {seen}.part {seen}\n')
    browser.chmod(0o700)
    names = {"ORLOG_HOME": home, "HOME": files, "TMPDIR": files, "BROWSER": browser}
    started = subprocess.Popen(
        [sys.executable, "-m", "orlog.cli", "open", "lab/numbers-v1"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **{name: str(path) for name, path in names.items()}},
    )
    assert started.stdout is not None
    printed = started.stdout.readline().strip()
    limit = time.monotonic() + LONGEST_S
    while not seen.exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
    # What a browser is started with is seen by every user of the machine.
    (file,) = files.iterdir()
    assert seen.read_text().strip() == file.as_uri()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (address,) = re.findall(r"http://[^\"]+", file.read_text("utf-8"))
    status, cookie = enter(address)
    assert (status, enter(address)[0], list(files.iterdir())) == (200, 403, [])
    assert Served(address, cookie).get("api/opened")["datasets"]
    assert enter(printed)[0] == 200  # the address in the terminal is another one
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=LONGEST_S)
    assert started.returncode == 0
