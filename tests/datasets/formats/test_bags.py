"""Recordings of robots: messages as rosbags itself stores and reads them, sampled by a plain loop."""

import contextlib
import dataclasses
import json
import shutil
import sqlite3

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rosbags import rosbag1, rosbag2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from orlog import OrlogError, import_dataset, load_dataset
from orlog.base.files import hash_file
from orlog.datasets.formats import bags
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.notes import sentences
from orlog.datasets.formats.ros_messages import decode_message
from orlog.errors import IntegrityError, SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats.reading import everything, read_files

START = 1_700_000_000 * 10**9
MAPPED = {"observation/image": "/camera", "observation/arm": "/joints.position", "action": "/cmd_vel"}
ROS1, ROS2 = get_typestore(Stores.ROS1_NOETIC), get_typestore(Stores.ROS2_HUMBLE)


def drive(store, *, seed=0, encoding="rgb8"):
    """Return what a robot published: time, topic, type and message."""
    rng, types = np.random.default_rng(seed), store.types
    clock = types["builtin_interfaces/msg/Time"](sec=1, nanosec=2)
    header = types["std_msgs/msg/Header"]
    more = {"seq": 0} if "seq" in header.__dataclass_fields__ else {}
    vector, found = types["geometry_msgs/msg/Vector3"], []

    def at(period, count, jitter):
        times = START + (np.arange(count) * period * 1e9).astype(np.int64)
        return times + rng.integers(0, jitter, count)

    for time in at(0.05, 40, 10**6).tolist():
        linear, angular = (vector(*rng.normal(size=3)) for _ in range(2))
        twist = types["geometry_msgs/msg/Twist"](linear=linear, angular=angular)
        found.append((time, "/cmd_vel", "geometry_msgs/msg/Twist", twist))
    for time in at(0.033, 60, 10**7).tolist():
        pixels = rng.integers(0, 255, 4 * 10).astype("u1")
        image = types["sensor_msgs/msg/Image"](
            header=header(stamp=clock, frame_id="cam", **more),
            height=4,
            width=3,
            encoding=encoding,
            is_bigendian=0,
            step=10,
            data=pixels,
        )
        found.append((time, "/camera", "sensor_msgs/msg/Image", image))
    for time in at(0.01, 190, 10**6).tolist():
        joints = types["sensor_msgs/msg/JointState"](
            header=header(stamp=clock, frame_id="", **more),
            name=["a", "b"],
            position=rng.normal(size=2),
            velocity=np.zeros(0),
            effort=rng.normal(size=2),
        )
        found.append((time, "/joints", "sensor_msgs/msg/JointState", joints))
    return sorted(found, key=lambda one: one[0])


def write_ros1(path, **how):
    messages = drive(ROS1, **how)
    path = path.with_suffix(".bag")
    writer = rosbag1.Writer(path)
    writer.set_compression(rosbag1.Writer.CompressionFormat.LZ4)
    with writer:
        topics = {topic: kind for _, topic, kind, _ in messages}
        connections = {topic: writer.add_connection(topic, kind, typestore=ROS1) for topic, kind in topics.items()}
        for time, topic, kind, message in messages:
            writer.write(connections[topic], time, bytes(ROS1.serialize_ros1(message, kind)))
    return path, messages


def write_ros2(path, *, plugin="MCAP", **how):
    path.parent.mkdir(exist_ok=True)
    messages = drive(ROS2, **how)
    storage = rosbag2.StoragePlugin[plugin]
    with rosbag2.Writer(path, version=9, storage_plugin=storage) as writer:
        topics = {topic: kind for _, topic, kind, _ in messages}
        connections = {topic: writer.add_connection(topic, kind, typestore=ROS2) for topic, kind in topics.items()}
        for time, topic, kind, message in messages:
            writer.write(connections[topic], time, bytes(ROS2.serialize_cdr(message, kind)))
    return path, messages


def write_mcap(path, **how):
    """Write a lone MCAP file."""
    folder, messages = write_ros2(path, **how)
    return next(folder.glob("*.mcap")), messages


def sampled(messages, rate):
    """Return the last message of each topic at each point in time, by a plain loop."""
    by_topic = {}
    for one in messages:
        by_topic.setdefault(one[1], []).append(one)
    start = max(one[0][0] for one in by_topic.values())
    stop = min(one[-1][0] for one in by_topic.values())
    rows, number = [], 0
    while (tick := start + round(number * 1e9 / rate)) <= stop:
        last = {t: [m for m in several if m[0] <= tick][-1][3] for t, several in by_topic.items()}
        twist, image = last["/cmd_vel"], last["/camera"]
        rows.append(
            {
                "arm": np.asarray(last["/joints"].position),
                "image": image.data.reshape(4, 10)[:, :9].reshape(4, 3, 3),
                "action": np.array([getattr(way, axis) for way in (twist.linear, twist.angular) for axis in "xyz"]),
            }
        )
        number += 1
    return rows


@pytest.mark.parametrize(
    ("write", "how", "rate"),
    [
        (write_ros1, {}, 10.0),
        (write_ros2, {}, 7.3),
        (write_ros2, {"plugin": "SQLITE3"}, 10.0),
        (write_mcap, {"encoding": "bgr8"}, 7.3),
    ],
)
def test_rows_are_those_of_a_plain_loop(tmp_path, rate, write, how):
    path, messages = write(tmp_path / "drive", **how)
    dataset, found = read_files(bags.FORMAT, path, tmp_path / "store", Options(columns=MAPPED, rate=rate))
    rows = sampled(messages, rate)
    (one,) = dataset
    assert len(one) == len(rows) - 1
    for part in ("arm", "image"):
        values = np.stack([row[part] for row in rows])
        if part == "image" and "encoding" in how:
            values = values[..., ::-1]
        np.testing.assert_array_equal(one.observations[part], values)
    np.testing.assert_array_equal(one.actions, np.stack([row["action"] for row in rows])[:-1])
    said = " ".join(sentences(found.notes))
    assert "/camera: " in said
    for left in ("/joints.effort", "/joints.header.frame_id"):
        assert left in said  # left out, not named
    assert "/joints.position" not in said
    assert "/joints.name" not in said
    assert dataset.dimension_names["observations/arm"] == ["a", "b"]


@pytest.mark.parametrize("write", [write_ros1, write_mcap])
def test_a_part_of_a_message_stands_for_all_its_numbers(tmp_path, write):
    path, messages = write(tmp_path / "drive")
    mapped = {"observation": "/joints.position", "action": "/cmd_vel.linear"}
    dataset, found = read_files(bags.FORMAT, path, tmp_path / "store", Options(columns=mapped, rate=10))
    (one,) = dataset
    assert one.actions.shape[1] == 3
    twists = [m for _, topic, _, m in messages if topic == "/cmd_vel"]
    linear = {(m.linear.x, m.linear.y, m.linear.z) for m in twists}
    assert {tuple(row) for row in one.actions.tolist()} <= linear
    assert "/cmd_vel.angular.x" in " ".join(sentences(found.notes))


def test_what_lies_beside_messages_is_named(tmp_path):
    from mcap.writer import Writer

    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("P", "jsonschema", b"{}")
        channel = writer.register_channel("/pose", "json", schema, metadata={"frame": "base"})
        for number in range(30):
            body = {"x": [float(number), 1.0], "mode": "walk"}
            writer.add_message(channel, number * 10**8, json.dumps(body).encode(), number * 10**8)
        writer.add_attachment(0, 0, "calibration.yaml", "text/yaml", b"k: 1")
        writer.add_metadata("robot", {"serial": "7"})
        writer.finish()
    mapped = {"observation": "/pose.x", "action": "/pose.x"}
    _, found = read_files(bags.FORMAT, tmp_path / "a.mcap", tmp_path / "store", Options(columns=mapped, rate=10))
    left = "/pose.mode, /pose@frame, the attachment calibration.yaml, the metadata robot"
    assert f"Left out, not named: {left}." in sentences(found.notes)


@pytest.mark.parametrize("as_files", [True, False])
def test_several_recordings_are_episodes_in_the_order_of_their_numbers(tmp_path, tmp_path_factory, as_files):
    store = tmp_path_factory.mktemp("made") / "store"
    written = [write_mcap(tmp_path / f"run{number}", seed=number) for number in (2, 10)]
    files = [path.rename(tmp_path / f"{path.parent.name}.mcap") for path, _ in written]
    for path, _ in written:
        shutil.rmtree(path.parent)
    dataset, _ = read_files(bags.FORMAT, files[::-1] if as_files else tmp_path, store, Options(columns=MAPPED, rate=20))
    for one, (_, messages) in zip(dataset, written, strict=True):
        np.testing.assert_array_equal(one.actions, np.stack([row["action"] for row in sampled(messages, 20)])[:-1])


DEFINITION = """
bool b
int8 i8
uint16 u16
int64 i64
float32 f32
string text
float64 f64
uint8[3] triple
float32[] many
string[] words
time when
pkg/Inner[] inners
pkg/Inner one
================================================================================
MSG: pkg/Inner
int8 small
float64[2] wide
"""


@given(seed=st.integers(0, 10**6), is_ros1=st.booleans(), text=st.text(max_size=5))
def test_messages_are_decoded_as_rosbags_does(seed, is_ros1, text):
    rng = np.random.default_rng(seed)
    store = get_typestore(Stores.ROS1_NOETIC if is_ros1 else Stores.ROS2_HUMBLE)
    parsed = get_types_from_msg(DEFINITION, "pkg/msg/Outer")
    store.register(parsed)
    clock = store.types["builtin_interfaces/msg/Time"]
    inner, outer = store.types["pkg/msg/Inner"], store.types["pkg/msg/Outer"]

    def some():
        return inner(small=int(rng.integers(-128, 127)), wide=rng.normal(size=2))

    message = outer(
        b=bool(rng.integers(2)),
        i8=-3,
        u16=int(rng.integers(2**16)),
        i64=int(rng.integers(-(2**62), 2**62)),
        f32=float(np.float32(rng.normal())),
        text=text.replace("\0", ""),
        f64=float(rng.normal()),
        triple=rng.integers(0, 255, 3).astype("u1"),
        many=rng.normal(size=int(rng.integers(5))).astype("f4"),
        words=["x" * int(n) for n in rng.integers(0, 4, int(rng.integers(4)))],
        when=clock(sec=int(rng.integers(2**31)), nanosec=7),
        inners=[some() for _ in range(int(rng.integers(3)))],
        one=some(),
    )
    pack = store.serialize_ros1 if is_ros1 else store.serialize_cdr
    data = bytes(pack(message, "pkg/msg/Outer"))
    found = decode_message(data, "pkg/msg/Outer", parsed, is_ros1=is_ros1)
    for name in ("b", "i8", "u16", "i64", "f32", "text", "f64", "words"):
        assert found[name] == getattr(message, name), name
    for name in ("triple", "many"):
        np.testing.assert_array_equal(found[name], getattr(message, name))
    assert (found["when"]["sec"], found["when"]["nanosec"]) == (message.when.sec, 7)
    for one, expected in zip([*found["inners"], found["one"]], [*message.inners, message.one], strict=True):
        assert one["small"] == expected.small
        np.testing.assert_array_equal(one["wide"], expected.wide)


def test_definitions_are_not_run(tmp_path):
    """A definition whose default value is a program stays a text."""
    kind = "pkg/msg/Evil"
    text = f'float64 x\nstring S=open({str(tmp_path / "ran")!r}, "w")\n'
    data = b"\0\1\0\0" + np.float64(3).tobytes()
    parsed = get_types_from_msg(text, kind)
    assert decode_message(data, kind, parsed, is_ros1=False) == {"x": 3.0}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"rate": None}, r"give the rows a second as rate=; messages a second: .*/cmd_vel 20"),
        *(({"rate": rate}, "rows in common .* 2,147,483,648; /camera begins") for rate in (0.1, 1e300)),
        *(({"rate": rate}, "a number above 0") for rate in (0.0, -1.0, np.nan, np.inf)),
        ({"columns": {}}, "/cmd_vel  geometry_msgs/msg/Twist, 40 messages"),
        ({"columns": {**MAPPED, "action": "/cmd_val"}}, "no column '/cmd_val'"),
        ({"columns": {**MAPPED, "action": "/joints.velocity"}}, "no column '/joints.velocity'"),
    ],
)
def test_what_is_missing_is_said(tmp_path, changed, text):
    path, _ = write_mcap(tmp_path / "drive")
    options = Options(**{"columns": MAPPED, "rate": 10.0, **changed})
    with pytest.raises(SchemaError, match=text):
        read_files(bags.FORMAT, path, tmp_path / "store", options)


def test_the_command_line_takes_the_rate(tmp_path):
    path, _ = write_mcap(tmp_path / "drive")
    shown = run("import", str(path), "lab/drive-v1")
    assert shown.returncode == 1
    assert "/joints  sensor_msgs/msg/JointState, 190 messages" in shown.stderr
    assert "--map observation=NAMES --map action=NAME" in shown.stderr
    mapped = [word for role, topic in MAPPED.items() for word in ("--map", f"{role}={topic}")]
    done = run("import", str(path), "lab/drive-v1", *mapped, "--rate", "10", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "bags" in done.stdout


JOINTS = ["pan", "lift", "elbow"]
DYNAMIC = """
std_msgs/Header header
string[] joint_names
control_msgs/InterfaceValue[] interface_values
================================================================================
MSG: control_msgs/InterfaceValue
string[] interface_names
float64[] values
"""
MODELS = "string[] name\ngeometry_msgs/Pose[] pose"
CONTROLLER = "std_msgs/Header header\nstring[] joint_names\ntrajectory_msgs/JointTrajectoryPoint actual"
NAMED = {
    "control_msgs/msg/DynamicJointState": DYNAMIC,
    "gazebo_msgs/msg/ModelStates": MODELS,
    "control_msgs/msg/JointTrajectoryControllerState": CONTROLLER,
}


def value(name, number):
    """Return what a joint is at in a message, which no other is at in any."""
    return sum(map(ord, name)) * 1000.0 + number


def message_of(kind, names, number, *, store=ROS2, **more):
    """Return a message that names numbers, of one of the types that do."""
    types = store.types
    clock = types["builtin_interfaces/msg/Time"](sec=1, nanosec=2)
    zero = types["builtin_interfaces/msg/Duration"](sec=0, nanosec=0)
    seq = {"seq": 0} if store is ROS1 else {}
    header = types["std_msgs/msg/Header"](stamp=clock, frame_id="", **seq)
    vector, turn = types["geometry_msgs/msg/Vector3"], types["geometry_msgs/msg/Quaternion"]
    values = np.array([value(name, number) for name in names])
    none = np.zeros(0)
    made = types[kind]
    if kind.endswith("JointState") and "Dynamic" not in kind:
        fields = {"position": values, "velocity": none, "effort": none, **more}
        return made(header=header, name=names, **fields)
    if kind.endswith("TFMessage"):
        return made(
            transforms=[
                types["geometry_msgs/msg/TransformStamped"](
                    header=header,
                    child_frame_id=name,
                    transform=types["geometry_msgs/msg/Transform"](
                        translation=vector(one, 0.0, 0.0), rotation=turn(0.0, 0.0, 0.0, 1.0)
                    ),
                )
                for name, one in zip(names, values, strict=True)
            ]
        )
    point = types["trajectory_msgs/msg/JointTrajectoryPoint"](
        positions=values, velocities=none, accelerations=none, effort=none, time_from_start=zero
    )
    if kind.endswith("JointTrajectory"):
        return made(header=header, joint_names=names, points=[point] * len(names))
    if kind.endswith("ControllerState"):
        return made(header=header, joint_names=names, actual=point)
    if kind.endswith("ModelStates"):
        pose, place = types["geometry_msgs/msg/Pose"], types["geometry_msgs/msg/Point"]
        poses = [pose(position=place(one, 0.0, 0.0), orientation=turn(0.0, 0.0, 0.0, 1.0)) for one in values]
        return made(name=names, pose=poses)
    inner = types["control_msgs/msg/InterfaceValue"]
    order = ["position", "effort"][:: 1 if number % 2 else -1]
    both = [
        inner(interface_names=order, values=np.array([one if way == "position" else -1 for way in order]))
        for one in values
    ]
    return made(header=header, joint_names=names, interface_values=both)


def write_named(path, sent, *, store=ROS2):
    """Write messages, and an action beside them at 10 Hz from their first to their last one."""
    first, last = min(one[0] for one in sent), max(one[0] for one in sent)
    vector = store.types["geometry_msgs/msg/Vector3"]
    still = store.types["geometry_msgs/msg/Twist"](vector(1.0, 2.0, 3.0), vector(0.0, 0.0, 0.0))
    for time in range(first, last + 1, 10**8):
        sent = [*sent, (time, "/cmd_vel", "geometry_msgs/msg/Twist", still)]
    writer = (
        rosbag1.Writer(path.with_suffix(".bag"))
        if store is ROS1
        else rosbag2.Writer(path, version=9, storage_plugin=rosbag2.StoragePlugin.MCAP)
    )
    pack = store.serialize_ros1 if store is ROS1 else store.serialize_cdr
    with writer:
        topics = {topic: kind for _, topic, kind, _ in sent}
        connections = {topic: writer.add_connection(topic, kind, typestore=store) for topic, kind in topics.items()}
        for time, topic, kind, message in sorted(sent, key=lambda one: one[0]):
            writer.write(connections[topic], time, bytes(pack(message, kind)))
    return path.with_suffix(".bag") if store is ROS1 else path


def read_named(path, store, field, **columns):
    mapped = {"observation": field, "action": "/cmd_vel.linear", **columns}
    return read_files(bags.FORMAT, path, store, Options(columns=mapped, rate=10))


for kind, text in NAMED.items():
    ROS2.register(get_types_from_msg(text, kind))


@pytest.mark.parametrize(
    ("store", "kind", "field", "ending"),
    [
        (ROS1, "sensor_msgs/msg/JointState", ".position", ""),
        (ROS2, "sensor_msgs/msg/JointState", ".position", ""),
        (ROS1, "trajectory_msgs/msg/JointTrajectory", ".points.0.positions", ""),
        (ROS2, "trajectory_msgs/msg/JointTrajectory", ".points.0.positions", ""),
        (ROS2, "control_msgs/msg/JointTrajectoryControllerState", ".actual.positions", ""),
        (ROS2, "control_msgs/msg/DynamicJointState", ".interface_values.*.position", ""),
        (ROS2, "gazebo_msgs/msg/ModelStates", ".pose.*.position.x", ".position.x"),
        (ROS2, "tf2_msgs/msg/TFMessage", ".transforms.*.translation.x", ".transform.translation.x"),
    ],
)
def test_numbers_are_told_apart_by_name(tmp_path, store, kind, field, ending):
    orders = [JOINTS, JOINTS[::-1], ["lift", "pan", "elbow"]]
    sent = [(START + n * 10**8, "/t", kind, message_of(kind, orders[n % 3], n, store=store)) for n in range(9)]
    dataset, found = read_named(write_named(tmp_path / "a", sent, store=store), tmp_path / "s", f"/t{field}")
    names = dataset.dimension_names["observations"]
    assert dataset.dimension_names["actions"] == ["linear.x", "linear.y", "linear.z"]
    for column, name in enumerate(names):
        joint = next(one for one in JOINTS if one in name)
        assert name.endswith(ending)
        np.testing.assert_array_equal(dataset[0].observations[:, column], [value(joint, n) for n in range(9)])
    assert {one for one in JOINTS for name in names if one in name} == {*JOINTS}
    assert "/t: all of its 9 messages are in rows" in " ".join(sentences(found.notes))


@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_publishers_on_one_topic_have_columns_of_their_own(tmp_path_factory, data):
    """Each number of a row is that of the last message that names it, by a plain loop."""
    folder = tmp_path_factory.mktemp("named")
    sets = data.draw(st.sampled_from([[["a", "b"], ["c"]], [["x"], ["a", "b", "c"], ["d", "e"]]]))
    order = data.draw(st.permutations([*range(len(sets))] * 6))
    kind, sent, latest = "sensor_msgs/msg/JointState", [], []
    for number, which in enumerate(order):
        names = data.draw(st.permutations(sets[which]))
        time = START + number * 37_000_000
        sent.append((time, "/t", kind, message_of(kind, names, number)))
        latest.append((time, names, number))
    path = write_named(folder / "a", sent)
    try:
        dataset, _ = read_named(path, folder / "s", "/t.position")
    except SchemaError as error:
        assert "rows in common" in str(error)  # noqa: PT017 (a set may end before another begins)
        return
    names = dataset.dimension_names["observations"]
    assert sorted(names) == sorted(one for several in sets for one in several)
    first = {name: min(t for t, several, _ in latest if name in several) for name in names}
    for row, values in enumerate(dataset[0].observations):
        tick = max(first.values()) + row * 10**8
        expected = [value(name, max(n for t, several, n in latest if name in several and t <= tick)) for name in names]
        assert values.tolist() == expected


def states(*named):
    kind = "sensor_msgs/msg/JointState"
    return [
        (START + number * 10**8, "/t", kind, message_of(kind, names, number, **more))
        for number, (names, more) in enumerate(named)
    ]


def test_one_publisher_may_leave_out_a_field_and_a_joint_may_be_named(tmp_path):
    speeds = {"velocity": np.array([1.0, 2.0])}
    sent = states(*[(["a", "b"], speeds), (["grip"], {})] * 5)
    path = write_named(tmp_path / "a", sent)
    dataset, _ = read_named(path, tmp_path / "s", "/t.position", **{"infos/speed": "/t.velocity"})
    assert dataset.dimension_names["infos/speed"] == ["a", "b"]
    assert dataset.dimension_names["observations"] == ["a", "b", "grip"]
    assert dataset[0].infos["speed"].tolist() == [[1, 2]] * len(dataset[0])
    dataset, found = read_named(path, tmp_path / "again", "/t.position.grip,/t.position.a")
    assert dataset.dimension_names["observations"] == ["grip", "a"]
    assert dataset[0].observations[0].tolist() == [value("grip", 1), value("a", 0)]
    assert "Left out, not named: /t.header.stamp.sec, /t.header.stamp.nanosec, /t.position.b, /t.velocity" in " ".join(
        sentences(found.notes)
    )


def test_messages_that_name_nothing_are_left_out_and_told(tmp_path):
    sent = states(([], {}), *[(["a", "b"], {})] * 5, ([], {}), (["b", "a"], {}))
    dataset, found = read_named(write_named(tmp_path / "a", sent), tmp_path / "s", "/t.position")
    assert dataset[0].observations[:, 0].tolist() == [value("a", n) for n in (1, 2, 3, 4, 5, 5, 7)]
    assert "/t: 2 of its 8 messages are in no row" in " ".join(sentences(found.notes))


@pytest.mark.parametrize(
    ("sent", "field", "text"),
    [
        (
            [(["a", "b"], {}), (["a", "c"], {})],
            "position",
            r"messages that name a, b and messages that name a, c both have position.a in turn; .*: /t.position.b,/t.position.c\.",
        ),
        ([(["a", "b"], {}), (["a"], {})], "position", "name a, b and messages that name a both have"),
        (
            [(["a", "b"], {}), ([], {"position": np.ones(2)})],
            "position",
            "name the numbers of position, and others do not",
        ),
        ([(["a", "a"], {})], "position", "name has 'a' twice"),
        (
            [(["a", "b"], {"velocity": np.ones(2)}), (["a", "b"], {})],
            "velocity",
            r"4 of 8 messages have no velocity; .*: /t.position\.",
        ),
        (
            [(["a", "b"], {}), (["a", "b"], {"position": np.ones(3)})],
            "position",
            r"expected \(2,\) in each message, found",
        ),
    ],
)
def test_names_that_do_not_fit_each_other_are_refused(tmp_path, sent, field, text):
    path = write_named(tmp_path / "a", states(*sent * 4))
    with pytest.raises(SchemaError, match=text):
        read_named(path, tmp_path / "s", f"/t.{field}")


def write_bodies(path, bodies):
    """Write messages in JSON at 10 Hz."""
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("P", "jsonschema", b"{}")
        channel = writer.register_channel("/t", "json", schema)
        for n, body in enumerate(bodies):
            writer.add_message(channel, n * 10**8, json.dumps(body).encode(), n * 10**8)
        writer.finish()
    return path


SPEED = {"velocity": np.array([1.0, 2.0])}


@pytest.mark.parametrize(
    ("lacking", "field"), [([0, 1, 2], "/t"), ([5, 6, 7], "/t.velocity.a"), ([4, 8, 2], "/t.velocity,/t.position")]
)
def test_fields_that_some_messages_lack_are_refused_with_counts(tmp_path, lacking, field):
    sent = states(*[(["a", "b"], {} if n in lacking else SPEED) for n in range(10)])
    path = write_named(tmp_path / "a", sent)
    with pytest.raises(SchemaError, match=r"/t: 3 of 10 messages have no velocity; ") as raised:
        read_named(path, tmp_path / "s", field)
    advice = str(raised.value).partition("Map what can be read: ")[2].removesuffix(".")
    assert "/t.position" in advice.split(",")
    dataset, found = read_named(path, tmp_path / "again", "/t.position")
    assert len(dataset[0]) == 10 - 1
    assert "/t.velocity" in next(one for one in sentences(found.notes) if "Left out, not named" in one)


@pytest.mark.parametrize("first", [{}, {"x": [1.0, 2.0]}, {"mode": "walk"}])
def test_fields_of_json_come_from_all_messages(tmp_path, first):
    bodies = [first, *[{"x": [float(n), 2.0], "y": 1.0} for n in range(9)]]
    path = write_bodies(tmp_path / "a.mcap", bodies)
    lack = "y" if "x" in first else "x; 1 of 10 messages have no y"
    with pytest.raises(SchemaError, match=f"/t: 1 of 10 messages have no {lack}"):
        read_named(path, tmp_path / "s", "/t", action="/t")
    if "x" in first:
        dataset, _ = read_named(path, tmp_path / "again", "/t.x", action="/t.x")
        assert dataset[0].observations.shape == (10, 2)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("sensor_msgs/msg/JointState", "/t.position.{}"),
        ("tf2_msgs/msg/TFMessage", "/t.transforms.{}.transform.translation.x"),
    ],
)
def test_a_number_of_two_senders_is_refused_and_those_of_each_are_read(tmp_path, kind, field):
    sets = [["a", "b", "grip"], ["grip", "c"]]
    sent = [
        (START + number * 25_000_000, "/t", kind, message_of(kind, sets[number % 2], number)) for number in range(40)
    ]
    path = write_named(tmp_path / "a", sent)
    for name, of in (("a", 0), ("b", 0), ("c", 1)):
        dataset, _ = read_named(path, tmp_path / name, field.format(name))
        for row, at in enumerate(dataset[0].observations[:, 0] - value(name, 0)):
            assert at % 2 == of
            assert abs(at - 4 * row) <= 2
    text = "messages that name a, b, grip and messages that name c, grip both have .*grip.* in turn"
    with pytest.raises(SchemaError, match=text):
        read_named(path, tmp_path / "s", field.format("grip"))


def test_models_that_appear_are_read_from_then_on_and_told(tmp_path):
    kind = "gazebo_msgs/msg/ModelStates"
    sent = [(START + n * 10**8, "/t", kind, message_of(kind, ["arm", "box"][: 1 + n // 3], n)) for n in range(6)]
    path = write_named(tmp_path / "a", sent)
    for field, first in (("/t.pose.arm", 0), ("/t.pose", 3)):
        dataset, found = read_named(path, tmp_path / str(first), field)
        expected = [value("arm", n) for n in range(first, 6)]
        assert dataset[0].observations[:, 0].tolist() == expected
        told = next(note for note in found.notes if note.code == "names_change")
        assert "/t.pose.arm.position.x" in told.columns
        assert not any("box" in name for name in told.columns)
    with pytest.raises(SchemaError, match=r"no column '/t.pose.lamp'"):
        read_named(path, tmp_path / "s", "/t.pose.lamp", action="/t.pose.lamp")


def test_whole_numbers_of_json_are_those_that_were_written(tmp_path):
    """A first 1 does not cut 1.5; time stamps keep their digits."""

    def write(last):
        bodies = [{"x": x, "ns": START + 1 if n < 2 else last} for n, x in enumerate((1, 1.5, 2))]
        return write_bodies(tmp_path / "a.mcap", bodies)

    mapped = {"action": "/t.x", "infos/ns": "/t.ns"}
    dataset, _ = read_named(write(START + 3), tmp_path / "s", "/t.x", **mapped)
    assert dataset[0].observations[:, 0].tolist() == [1, 1.5, 2]
    assert dataset[0].infos["ns"].tolist() == [START + 1] * 2
    with pytest.raises(SchemaError, match=r"/t.ns at row 2: 0.5 does not fit int64"):
        read_named(write(0.5), tmp_path / "again", "/t.x", **mapped)
    for last, message in ((2**70, "integer of more than 64 bits"), ([0.5, 2**53 + 1], "at row 1, which")):
        with pytest.raises(OrlogError, match=message):
            read_named(write(last), tmp_path / "again", "/t.x", **mapped)


def test_recordings_of_other_orders_have_that_of_the_first(tmp_path):
    paths = [
        write_named(tmp_path / f"run{n}", states(*[(names, {})] * 4))
        for n, names in enumerate((["a", "b"], ["b", "a"], ["a", "c"]))
    ]
    dataset, _ = read_named(paths[:2], tmp_path / "s", "/t.position")
    for one in dataset:
        assert one.observations[0].tolist() == [value("a", 0), value("b", 0)]
    with pytest.raises(SchemaError, match=r"run2, /t.position: holds a, c; before it held a, b"):
        read_named(paths, tmp_path / "again", "/t.position")


def lone(path):
    """Return the database of a bag whose metadata.yaml was lost."""
    folder, messages = write_ros2(path, plugin="SQLITE3")
    (folder / "metadata.yaml").unlink()
    return next(folder.glob("*.db3")), messages


def with_wal(path, *, beside=True):
    """Return a bag in WAL mode; its last messages lie in the WAL, or with `beside` false in the database again."""
    folder, messages = write_ros2(path, plugin="SQLITE3")
    file = next(folder.glob("*.db3"))
    kept = folder.with_name("kept")
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA wal_autocheckpoint=0")
        last = database.execute("SELECT * FROM messages WHERE id > 200").fetchall()
        database.execute("DELETE FROM messages WHERE id > 200")
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.executemany("INSERT INTO messages VALUES (?, ?, ?, ?)", last)
        database.commit()
        shutil.copytree(folder, kept)  # as a crash leaves it
    if not beside:
        return folder, messages
    (kept / f"{file.name}-shm").unlink()
    assert (kept / f"{file.name}-wal").stat().st_size
    return kept, messages


@pytest.mark.parametrize(
    "make", [lone, with_wal, lambda path: with_wal(path, beside=False)], ids=["lone", "wal", "checked"]
)
def test_databases_are_read_whole_and_left_as_they_are(tmp_path, make):
    made, messages = make(tmp_path / "bags" / "drive")
    folder = (tmp_path / "bags").rename(tmp_path / "bags #1")  # a sign that SQLite takes for its own
    path = folder / made.relative_to(tmp_path / "bags")
    before = everything([folder], tmp_path / "store")
    dataset, _ = read_files(bags.FORMAT, path, tmp_path / "store", Options(columns=MAPPED, rate=10))
    assert everything([folder], tmp_path / "store") == before
    expected = np.stack([row["arm"] for row in sampled(messages, 10)])
    np.testing.assert_array_equal(dataset[0].observations["arm"], expected)


@pytest.mark.parametrize("is_lone", [False, True])
def test_a_wal_counts_as_read_and_is_in_the_lineage(tmp_path, is_lone):
    folder, _ = with_wal(tmp_path / "drive")
    wal = next(folder.glob("*.db3-wal"))
    wal.with_name(wal.name.replace("-wal", "-shm")).write_bytes(b"shared memory")
    if is_lone:
        (folder / "metadata.yaml").unlink()
    path = wal.with_name(wal.name.removesuffix("-wal")) if is_lone else folder
    how = {"columns": MAPPED, "rate": 10}
    found = []
    before = load_dataset(import_dataset(path, "lab/a-v1", on_found=found.append, **how)).manifest
    assert "Not read" not in " ".join(sentences(found[0].notes))
    assert f"sha256:{hash_file(wal)}" in [one.digest for one in before.lineage] or not is_lone
    wal.write_bytes(wal.read_bytes() + b"0")  # a frame that was not written whole, which is not read
    after = load_dataset(import_dataset(path, "lab/b-v1", **how)).manifest
    assert [one.digest for one in after.lineage] != [one.digest for one in before.lineage]


def test_a_file_that_is_no_recording_is_refused(tmp_path):
    path = tmp_path / "a.bag"
    path.write_bytes(b"#ROSBAG V1.0")
    with pytest.raises(SchemaError, match=r"a\.bag: holds no recording"):
        read_files(bags.FORMAT, path, tmp_path / "s", Options(columns=MAPPED, rate=10))


def test_a_database_of_a_bag_names_the_bag(tmp_path):
    folder, _ = write_ros2(tmp_path / "drive", plugin="SQLITE3")
    with pytest.raises(SchemaError, match=f"a part of the bag .*: orlog import {folder} NAME"):
        read_files(bags.FORMAT, next(folder.glob("*.db3")), tmp_path / "s", Options(columns=MAPPED, rate=10))


@pytest.mark.parametrize("plugin", ["MCAP", "SQLITE3"])
def test_counts_that_differ_from_the_metadata_are_refused_or_told(tmp_path, plugin):
    folder, _ = write_ros2(tmp_path / "drive", plugin=plugin)
    metadata = folder / "metadata.yaml"
    text = metadata.read_text()
    metadata.write_text(text.replace("message_count: 190", "message_count: 200"))
    options = Options(columns=MAPPED, rate=10)
    with pytest.raises(SchemaError, match=r"/joints: holds 190 messages, but its metadata says 200. partial=True"):
        read_files(bags.FORMAT, folder, tmp_path / "s", options)
    _, found = read_files(bags.FORMAT, folder, tmp_path / "part", dataclasses.replace(options, partial=True))
    assert "Read in part, as asked for: drive, /joints: holds 190 messages" in " ".join(sentences(found.notes))
    metadata.write_text(text.replace("message_count: 190", "message_count: 100"))
    _, found = read_files(bags.FORMAT, folder, tmp_path / "more", options)
    assert "/joints: holds 190 messages, but its metadata says 100; all of them were read." in " ".join(
        sentences(found.notes)
    )


@pytest.mark.parametrize("others", [True, False])
def test_messages_that_are_not_read_are_named_before_topics_are_offered(tmp_path, others):
    from mcap.writer import Writer

    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("foxglove.Pose", "protobuf", b"")
        for topic, encoding in [("/pose", "protobuf"), *([("/grip", "json")] if others else [])]:
            channel = writer.register_channel(topic, encoding, schema)
            writer.add_message(channel, 1, b"{}", 1)
        writer.finish()
    shown = run("import", str(tmp_path / "a.mcap"), "lab/a-v1").stderr
    before, offer, topics = shown.partition("The topics of")
    assert "convert these topics to either, if you need them: /pose (protobuf)." in before
    assert bool(offer) == ("/grip" in topics) == others
    assert "/pose" not in topics
    with pytest.raises(SchemaError, match="messages in protobuf are not read"):
        read_named(tmp_path / "a.mcap", tmp_path / "s", "/pose", action="/pose")


def endless(file):
    """Make the table of messages one that is computed and never ends."""
    file.execute("ALTER TABLE messages RENAME TO others")
    rows = "SELECT 1 AS id UNION ALL SELECT id + 1 FROM n"
    file.execute(
        f"CREATE VIEW messages AS WITH RECURSIVE n(id) AS ({rows}) SELECT id, 1 AS topic_id, "
        "id AS timestamp, zeroblob(1000000000) AS data FROM n"
    )


def triggered(file):
    file.execute("CREATE TRIGGER grow AFTER INSERT ON messages BEGIN SELECT zeroblob(9); END")


@pytest.mark.parametrize("change", [endless, triggered])
def test_a_database_that_computes_what_it_holds_is_refused(tmp_path, change):
    path, _ = write_ros2(tmp_path / "drive", plugin="SQLITE3")
    (database,) = path.glob("*.db3")
    with contextlib.closing(sqlite3.connect(database)) as file, file:
        change(file)
    options = Options(columns=MAPPED, rate=20)
    with pytest.raises(IntegrityError, match="computes what it holds"):
        read_files(bags.FORMAT, path, tmp_path / "store", options)
