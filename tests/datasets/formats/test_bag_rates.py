"""Recordings of topics with rates of their own: rows by a plain loop over irregular clocks, and clocks that are wrong."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.writer import Writer

from orlog import import_dataset, load_dataset
from orlog.datasets.formats import bags
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.notes import sentences
from orlog.errors import OrlogError, SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats import test_bags
from tests.datasets.formats.reading import read_files

SECOND = 10**9
PERIODS = {"/touch": SECOND // 150, "/camera": SECOND // 30, "/cmd": SECOND // 20}
MAPPED = {
    "observation/touch": "/touch.force",
    "observation/frame": "/camera.level",
    "action": "/cmd.speed",
    "infos/touch_time": "/touch@time",
    "infos/frame_time": "/camera@time",
    "infos/time": "@time",
}


def write(path, messages):
    """Write (topic, log time, publish time, body) as MCAP with JSON, in the order in which they were recorded."""
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("P", "jsonschema", b"{}")
        channels = {topic: writer.register_channel(topic, "json", schema) for topic, *_ in messages}
        for topic, logged, published, body in sorted(messages, key=lambda message: message[1]):
            writer.add_message(channels[topic], int(logged), json.dumps(body).encode(), int(published))
        writer.finish()
    return path


def message(topic, time, number, *, delay=0):
    """Return a message of a sensor that is recorded some time after its header says that it was measured."""
    header = {"stamp": {"sec": time // SECOND, "nanosec": time % SECOND}}
    names = {"/touch": "force", "/camera": "level", "/cmd": "speed"}
    return topic, time + delay, time + delay // 2, {"header": header, names[topic]: [number + 0.5, -2.0 * number]}


def three_rates(path, delays=(0, 0, 0)):
    """Write two seconds of three sensors; the header of each is some time before its messages were recorded."""
    messages = [
        message(topic, SECOND + n * period, n, delay=delay)
        for (topic, period), delay in zip(PERIODS.items(), delays, strict=True)
        for n in range(2 * SECOND // period + 1)
    ]
    return write(path, messages), messages


def by_hand(times, values, ticks, rule):
    """Return the values at each tick and the times of the messages that they are of, by a plain loop."""
    taken, stamps = [], []
    for tick in ticks:
        before = max(n for n, time in enumerate(times) if time <= tick)
        after = min((n for n, time in enumerate(times) if time > tick), default=before)
        chosen = before
        if rule == "nearest" and times[after] - tick < abs(times[before] - tick):
            chosen = after
        value = values[chosen]
        if rule == "linear" and after != before:
            share = (tick - times[before]) / (times[after] - times[before])
            value = values[before] + share * (values[after] - values[before])
        taken.append(value)
        stamps.append(times[chosen])
    return np.array(taken), np.array(stamps)


GAPS = st.lists(st.integers(1, 4 * 10**8), min_size=2, max_size=12)


@given(gaps=st.tuples(GAPS, GAPS, GAPS), rate=st.floats(1, 40), rule=st.sampled_from(bags.RULES))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_irregular_clocks_are_resampled_as_a_plain_loop_does(tmp_path_factory, gaps, rate, rule):
    root = tmp_path_factory.mktemp("rates")
    clocks = {topic: (np.cumsum(some) + SECOND).tolist() for topic, some in zip(PERIODS, gaps, strict=True)}
    messages = [message(topic, time, n) for topic, times in clocks.items() for n, time in enumerate(times)]
    start, stop = max(times[0] for times in clocks.values()), min(times[-1] for times in clocks.values())
    options = Options(columns=MAPPED, rate=rate, resample={"*": rule})
    path = write(root / "a.mcap", messages)
    if stop < start or (stop - start) * rate / SECOND + 1 < 2:
        with pytest.raises(
            SchemaError, match=r"a\.mcap: .* rows in common .*/\w+ begins .* s (after|before) /\w+ ends"
        ):
            read_files(bags.FORMAT, path, root / "store", options)
        return
    (episode,) = read_files(bags.FORMAT, path, root / "store", options)[0]
    ticks = [start + round(n * (SECOND / rate)) for n in range(int((stop - start) * rate // SECOND) + 1)]
    values = {topic: np.array([[n + 0.5, -2.0 * n] for n in range(len(clocks[topic]))]) for topic in PERIODS}
    touch, stamps = by_hand(clocks["/touch"], values["/touch"], ticks, rule)
    frame, _ = by_hand(clocks["/camera"], values["/camera"], ticks, rule)
    np.testing.assert_allclose(episode.observations["touch"], touch, rtol=1e-12)
    np.testing.assert_allclose(episode.observations["frame"], frame, rtol=1e-12)
    action, _ = by_hand(clocks["/cmd"], values["/cmd"], ticks, "last" if rule == "linear" else rule)
    np.testing.assert_array_equal(episode.actions, action[:-1])
    assert episode.infos["touch_time"].tolist() == stamps[:-1].tolist()
    assert episode.infos["time"].tolist() == ticks[:-1]


def test_headers_undo_the_delay_of_the_recorder_and_counts_are_told(tmp_path):
    path, messages = three_rates(tmp_path / "a.mcap", delays=(0, SECOND // 10, 0))
    for clock, delay in (("log", 0.1), ("publish", 0.05), ("header", 0)):
        given = {"/camera": clock}
        dataset, report = read_files(bags.FORMAT, path, tmp_path / clock, Options(columns=MAPPED, rate=10, clock=given))
        (episode,) = dataset
        assert episode.infos["time"][0] == SECOND * (1 + delay)
        seconds, frames = (episode.infos["time"] - SECOND) / SECOND, episode.observations["frame"][:-1, 0] - 0.5
        behind = seconds - frames * PERIODS["/camera"] / SECOND - delay
        assert (behind > -1e-9).all()
        assert (behind < 1 / 30).all()
        notes = sentences(report.notes)
        assert any("Messages of /camera have the times" in text for text in notes) == (clock != "log")
        rows = len(episode) + 1
        before = sum(topic == "/touch" and time < episode.infos["touch_time"][0] for topic, time, *_ in messages)
        text = f"/touch: 0 of {rows} rows have the message of the row before again"
        assert any(
            sentence.startswith(text) and f"{before} come before the first row" in sentence for sentence in notes
        )


def test_rows_that_repeat_and_messages_after_the_last_row_are_counted(tmp_path):
    path, _ = three_rates(tmp_path / "a.mcap")
    cut = write(
        tmp_path / "b.mcap", [sent for sent in three_rates(path)[1] if sent[0] != "/cmd" or sent[1] <= 2 * SECOND]
    )
    _, report = read_files(bags.FORMAT, cut, tmp_path / "s", Options(columns=MAPPED, rate=100))
    counts = {note.columns[0]: note.values for note in report.notes if note.code == "repeated"}
    assert counts["/cmd"] == {"repeated": 80, "before": 0, "after": 0, "rows": 101}
    assert counts["/camera"]["after"] == 30
    assert counts["/touch"]["after"] == 150


def test_what_is_no_number_on_a_line_is_never_put_between_messages(tmp_path):
    bodies = [
        {
            "turn": dict.fromkeys("xyzw", 0.5 * (-1) ** n),
            "far": [float(n), float("nan") if n % 2 else float(n)],
            "pressed": n % 3 == 0,
            "speed": [float(n)],
        }
        for n in range(30)
    ]
    mapped = {"observation/turn": "/t.turn", "observation/far": "/t.far", "infos/pressed": "/t.pressed"}
    mapped |= {"infos/again": "/t.speed", "action": "/t.speed"}
    path = test_bags.write_bodies(tmp_path / "a.mcap", bodies)
    options = Options(columns=mapped, rate=20, resample={"*": "linear"})
    dataset, report = read_files(bags.FORMAT, path, tmp_path / "s", options)
    (episode,) = dataset
    last = np.arange(len(episode) + 1) // 2
    np.testing.assert_array_equal(episode.observations["turn"], np.tile(0.5 * (-1.0) ** last, (4, 1)).T)
    np.testing.assert_array_equal(episode.infos["pressed"], last[:-1] % 3 == 0)
    np.testing.assert_array_equal(episode.actions[:, 0], last[:-1])
    np.testing.assert_array_equal(episode.infos["again"], episode.actions)
    expected = np.stack([np.arange(len(episode) + 1) / 2, np.where(last % 2, np.nan, last)], 1)
    np.testing.assert_allclose(episode.observations["far"], expected, rtol=1e-12)
    (note,) = [note for note in report.notes if note.code == "interpolated"]
    assert note.columns == ("/t.far",)
    assert note.values["gap"] == pytest.approx(0.1)


def changed(path, bad):
    """Write the messages of three sensors, of which the camera's headers have other stamps."""
    messages = three_rates(path)[1]
    stamps = [body["header"]["stamp"] for topic, *_, body in messages if topic == "/camera"]
    bad(stamps)
    return write(path, messages)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (lambda stamps: stamps[10].update(sec=0), r"1 of 61 times of header.stamp .*message 10 is .* s before it"),
        (lambda stamps: stamps[10].update(stamps[9]), "message 10 is the same as it"),
        (lambda stamps: [stamp.update(sec=0, nanosec=0) for stamp in stamps], "60 of 61 times of header.stamp"),
        (lambda stamps: stamps[10].update(sec=float("nan")), r"message 10: header.stamp is {'sec': nan.*whole numbers"),
        (lambda stamps: stamps[10].update(sec=0.5), "message 10: header.stamp is .*whole numbers"),
        (lambda stamps: stamps[10].update(sec=10**12), "cannot be read"),
        (lambda stamps: stamps[10].pop("nanosec"), "message 10: header.stamp is .*whole numbers"),
    ],
)
def test_stamps_that_are_no_clock_are_refused_with_file_and_topic(tmp_path, bad, text):
    path = changed(tmp_path / "a.mcap", bad)
    options = Options(columns=MAPPED, rate=10, clock={"*": "header"})
    with pytest.raises(OrlogError, match=rf"a\.mcap, /camera.*{text}"):
        read_files(bags.FORMAT, path, tmp_path / "s", options)
    read_files(bags.FORMAT, path, tmp_path / "again", Options(columns=MAPPED, rate=10))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"clock": {"/cmd_vel": "header"}}, r"/cmd_vel, message 0: has no header.stamp; name the topics that have"),
        ({"clock": {"/joints": "header"}}, r"/joints: 189 of 190 times of header.stamp .*message 1 is the same"),
        ({"clock": {"*": "publish"}}, r"clock='publish' is known of MCAP files alone"),
        ({"clock": {"*": "sensor"}}, r"clock='sensor': expected log, header, publish"),
        ({"resample": {"/camera": "cubic"}}, r"resample={'/camera': 'cubic'}: expected last, nearest, linear"),
        ({"resample": {"/joint": "linear"}}, r"resample={'/joint': 'linear'}: .* no such topic; did you mean /joints"),
        ({"resample": {"/cmd_vel": "linear"}}, r"/cmd_vel: resample='linear' is for floats of observations"),
    ],
)
def test_rules_that_a_topic_does_not_have_are_refused(tmp_path, given, text):
    path, _ = test_bags.write_ros1(tmp_path / "drive")
    with pytest.raises(SchemaError, match=text):
        read_files(bags.FORMAT, path, tmp_path / "s", Options(columns=test_bags.MAPPED, rate=10, **given))


def test_the_command_line_and_the_library_take_both_by_topic(tmp_path):
    path, _ = three_rates(tmp_path / "a.mcap", delays=(SECOND // 20, SECOND // 10, 0))
    mapped = [word for role, topic in MAPPED.items() for word in ("--map", f"{role}={topic}")]
    clocks = ("--clock", "header", "--clock", "/touch=publish")
    rules = ("--resample", "linear", "--resample", "/camera=nearest")
    done = run("import", str(path), "lab/rates-v1", *mapped, "--rate", "10", *clocks, *rules)
    assert done.returncode == 0, done.stderr
    both = {"clock": {"*": "header", "/touch": "publish"}, "resample": {"*": "linear", "/camera": "nearest"}}
    import_dataset(path, "lab/rates-v2", columns=MAPPED, rate=10, **both)
    ours, theirs = load_dataset("lab/rates-v1"), load_dataset("lab/rates-v2")
    for name in ("touch", "frame"):
        np.testing.assert_array_equal(ours[0].observations[name], theirs[0].observations[name])
    assert "/touch.force: values in rows lie on the line between two messages" in ours.manifest.description
    refused = run("import", str(path), "lab/rates-v3", *mapped, "--rate", "10", "--clock", "/cmd")
    assert refused.returncode == 1
    assert "--clock /cmd: expected log, header, publish" in refused.stderr
