import base64
import io
import json
import math
import re

import numpy as np
import pytest
from PIL import Image

from piwm_gym.courses import get_course
from piwm_gym.donkey_sim import Quirks, ServerSettings
from piwm_gym.donkey_sim.messages import SCENES, node_message, read_position, telemetry_message
from piwm_gym.donkey_sim.protocol import MessageParser, ProtocolError, encode, number
from piwm_gym.donkey_sim.session import Session
from piwm_gym.donkey_sim.simulator import Telemetry

# Framing

TEXTS = ["", "a", "{", "}", '"', "\\", "}{", '\\"', "é✓", "\n", '{"x": "}"}']


def random_message(rng: np.random.Generator) -> dict:
    def text() -> str:
        return "".join(rng.choice(TEXTS, rng.integers(0, 5)))

    fields = {text() + str(i): text() for i in range(rng.integers(0, 4))}
    if rng.random() < 0.3:
        fields["nested"] = {text(): {"deep": [text(), {}]}}
    return {"msg_type": text(), **fields}


@pytest.mark.parametrize("seed", range(60))
def test_any_split_gives_the_same_messages(seed):
    rng = np.random.default_rng(seed)
    sent = [random_message(rng) for _ in range(rng.integers(1, 8))]
    between = [b"", b"\n", b" \r\n", b'"', b"}", b","]
    data = b"".join(
        json.dumps(message, ensure_ascii=bool(rng.integers(2))).encode()
        + between[rng.integers(len(between))]
        for message in sent
    )
    cuts = np.sort(rng.integers(0, len(data) + 1, rng.integers(0, 30))).tolist()
    parser, got = MessageParser(), []
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        got += parser.feed(data[start:stop])
    assert got == sent
    parser, got = MessageParser(), []
    for byte in data:
        got += parser.feed(bytes([byte]))
    assert got == sent
    assert parser.malformed == 0


@pytest.mark.parametrize("seed", range(20))
def test_noise_never_breaks_the_parser(seed):
    rng = np.random.default_rng(seed)
    parser = MessageParser(limit=10_000)
    for _ in range(20):
        noise = rng.choice(list(b'{}"\\ab:1,\xff\n'), rng.integers(0, 60))
        parser.feed(bytes(noise.tolist()))


def test_malformed_objects_are_skipped():
    parser = MessageParser()
    deep = b'{"a":' * 20000 + b"1" + b"}" * 20000
    for bad in (b'{"a": }', b"{1}", b'{"a": "\xff"}', b"{'a': 1}"):
        assert parser.feed(bad + b'{"a":"1"}') == [{"a": "1"}]
    assert parser.malformed == 4
    roomy = MessageParser(limit=1 << 20)
    assert roomy.feed(deep + b"{}") == [{}]


def test_messages_without_end_are_refused():
    parser = MessageParser(limit=100)
    assert parser.feed(b"x" * 1000) == []
    assert parser.feed(b"{}" * 1000) == [{}] * 1000
    parser.feed(b'{"a": "')
    with pytest.raises(ProtocolError, match="more than 100 bytes and has not ended"):
        parser.feed(b"x" * 100)


def test_clients_numbers_are_strings():
    message = {"a": "0.5", "b": 0.5, "c": "x", "d": "nan", "e": "inf", "f": "-1e-3", "g": None}
    got = [number(message, key) for key in "abcdefgh"]
    assert got == [0.5, None, None, None, None, -1e-3, None, None]


def test_decimal_commas():
    message = {"a": 1.5, "b": -0.25, "n": 3, "s": "1.5", "e": 1e-5, "z": 2.75}
    assert encode(message) == b'{"a":1.5,"b":-0.25,"n":3,"s":"1.5","e":1e-05,"z":2.75}\n'
    text = encode(message, decimal_comma=True)
    assert text == b'{"a":1,5,"b":-0,25,"n":3,"s":"1.5","e":1E-05,"z":2,75}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"a": math.nan})


# Contents

MOVING = Telemetry(
    time=1.25,
    x=1.0,
    y=2.0,
    heading=0.3,
    speed=-0.5,
    lateral_speed=0.1,
    yaw_rate=0.4,
    acceleration=2.0,
    cte=-0.125,
    hit="cone-3",
    steering=0.25,
    throttle=-0.5,
    node=7,
)
OLD = {"msg_type", "steering_angle", "throttle", "speed", "image", "hit", "time"}
PLACE = {"pos_x", "pos_y", "pos_z", "cte"}


@pytest.mark.parametrize(("generation", "scale"), [(2019, 8), (2021, 8), (2022, 1)])
def test_telemetry_of_each_generation(generation, scale):
    course = get_course("hall")
    message = telemetry_message(MOVING, b"picture", course, generation, True)
    assert base64.b64decode(message["image"]) == b"picture"
    assert (message["pos_x"], message["pos_z"]) == (1.0 * scale, 2.0 * scale)
    assert message["speed"] == pytest.approx(math.hypot(0.5, 0.1) * scale, abs=1e-6)
    assert message["cte"] == -1.0  # simulator units in every generation
    assert (message["hit"], message["time"]) == ("cone-3", 1.25)
    assert (message["steering_angle"], message["throttle"]) == (0.25, -0.5)
    if generation == 2019:
        assert set(message) == OLD | PLACE
        return
    assert message["yaw"] == pytest.approx(90 - math.degrees(0.3))
    assert (message["vel_x"], message["vel_z"]) == (-0.1 * scale, -0.5 * scale)
    assert message["accel_z"] == 2.0 * scale
    assert (message["activeNode"], message["totalNodes"]) == (7, len(course.path))
    assert ("gyro_w" in message) == (generation == 2021)
    if generation == 2022:
        assert message["gyro_y"] == -0.4
    else:
        assert message["gyro_w"] ** 2 + message["gyro_y"] ** 2 == pytest.approx(1)
        assert 2 * math.asin(message["gyro_y"]) / 0.05 == pytest.approx(-0.4, abs=1e-4)
    short = telemetry_message(MOVING, b"", course, generation, False)
    assert set(message) - set(short) == PLACE | {"vel_x", "vel_y", "vel_z"}


@pytest.mark.parametrize("index", [0, 31, 100])
def test_nodes_and_positions_agree(index):
    course = get_course("meadow")
    node = node_message(course, index)
    assert node["pos_x"] == pytest.approx(8 * course.path[index, 0], abs=1e-5)
    pose = read_position({key: str(value) for key, value in node.items()}, 9.0)
    assert pose == pytest.approx((*course.path[index], course.headings[index]), abs=1e-5)
    kept = read_position({"pos_x": "8", "pos_z": "-4"}, 0.7)
    assert kept == pytest.approx((1.0, -0.5, 0.7))
    assert read_position({"pos_x": 8, "pos_z": "-4"}, 0.7) is None


# Conversation


class Talk:
    """A session whose answers are kept."""

    def __init__(self, **settings) -> None:
        self.answers: list[dict] = []
        chosen = {"course": "hall", "clock": "lockstep"} | settings
        self.session = Session(ServerSettings(**chosen), self)
        self.session.start()

    def send(self, message: dict) -> None:
        self.answers.append(message)

    def say(self, kind: object, **fields) -> list[dict]:
        """Send a message; what came back."""
        before = len(self.answers)
        self.session.handle({"msg_type": kind, **fields})
        return self.answers[before:]

    def load(self, scene: str = "generated_track") -> list[dict]:
        return self.say("load_scene", scene_name=scene)

    def control(self, steering="0", throttle="0", brake="0") -> dict:
        (answer,) = (
            m
            for m in self.say("control", steering=steering, throttle=throttle, brake=brake)
            if m["msg_type"] == "telemetry"
        )
        return answer


def kinds(answers: list[dict]) -> list[str]:
    return [answer["msg_type"] for answer in answers]


def image(message: dict) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(message["image"])))


def test_handshake():
    talk = Talk()
    assert talk.answers == [{"msg_type": "scene_selection_ready", "loaded": "1"}]
    assert talk.say("get_protocol_version") == [{"msg_type": "protocol_version", "version": "2"}]
    (names,) = talk.say("get_scene_names")
    assert names["scene_names"] == list(SCENES)
    assert SCENES[:4] == ("generated_road", "warehouse", "sparkfun_avc", "generated_track")
    assert talk.say("control", steering="0", throttle="1", brake="0") == []
    assert talk.load("nowhere") == []
    assert kinds(talk.load()) == ["car_loaded", "telemetry"]
    assert talk.load() == []  # there is a scene already
    assert talk.session.simulator.course.name == "hall"
    for kind in ("car_config", "lidar_config", "racer_info", "nonsense", None, 3, "telemetry"):
        assert talk.say(kind, a="1") == []
    assert kinds(talk.say("exit_scene")) == ["scene_selection_ready"]
    assert kinds(talk.load("meadow")) == ["car_loaded", "telemetry"]
    assert talk.session.simulator.course.name == "meadow"
    talk.say("quit_app")
    assert talk.session.quit


def test_each_control_is_answered_once_and_moves_the_clock():
    talk = Talk()
    talk.load()
    times = [talk.control("0.1", "0.5")["time"] for _ in range(20)]
    assert np.allclose(np.diff(times), 0.05)
    last = talk.control("5", "-3", "0")
    assert (last["steering_angle"], last["throttle"]) == (1.0, -1.0)
    kept = talk.say("control", steering=0.25, throttle="x")[0]  # numbers must be strings
    assert (kept["steering_angle"], kept["throttle"]) == (1.0, -1.0)


def test_reset_and_set_position():
    talk = Talk()
    start = talk.load()[-1]
    for _ in range(20):
        moved = talk.control("0", "1")
    assert abs(moved["pos_x"] - start["pos_x"]) > 0.1
    (back,) = talk.say("reset_car")
    assert (back["pos_x"], back["pos_z"], back["speed"]) == (start["pos_x"], start["pos_z"], 0)
    assert back["time"] > moved["time"]
    (node,) = talk.say("node_position", n="40")
    (put,) = talk.say("set_position", **{k: str(v) for k, v in node.items() if k != "msg_type"})
    assert (put["pos_x"], put["pos_z"]) == pytest.approx(
        (node["pos_x"] / 8, node["pos_z"] / 8), abs=1e-5
    )
    assert put["activeNode"] in (39, 40)
    for message in ({"n": "-1"}, {"n": "9999"}, {"n": "1.5"}, {}):
        assert talk.say("node_position", **message) == []
    bare = Talk(extended_telemetry=False)
    bare.load()
    assert bare.say("set_position", pos_x="0", pos_y="0", pos_z="0") == []


def test_camera_configuration(caplog):
    talk = Talk()
    talk.load()
    talk.say("cam_config", img_w="80", img_h="64", img_d="1", img_enc="PNG", fov="0", offset_y="0")
    picture = image(talk.control())
    assert (picture.size, picture.format, picture.mode) == ((80, 64), "PNG", "L")
    camera = talk.session.simulator.renderer.settings
    assert (camera.fov, camera.up) == (90, 0.2)
    talk.say("cam_config", img_d="3", img_enc="TGA", fov="70", offset_y="1.6", rot_x="20")
    picture = image(talk.control())
    assert (picture.size, picture.format, picture.mode) == ((80, 64), "TGA", "RGB")
    camera = talk.session.simulator.renderer.settings
    assert (camera.fov, camera.up, camera.pitch) == (70, 0.2, 20)
    for ignored in ({"img_w": "x"}, {"img_w": 40}, {"rot_x": "nan"}, {"offset_y": "1e999"}):
        talk.say("cam_config", **ignored)
        assert talk.session.simulator.renderer.settings == camera
    assert not caplog.messages


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"img_w": "100000"}, "width and height are 100000 x 120"),
        ({"img_h": "1e300"}, "expected 8 to 1024 pixels"),
        ({"img_w": "0.5"}, "width and height are 0 x 120"),
        ({"fov": "179"}, "fov is 179.0"),
        ({"offset_y": "1e6"}, "up 125000.0.*: 0 of 120 rows see the ground"),
        ({"offset_z": "1e300"}, "ahead is 1.25e[+]299"),
        ({"rot_x": "90"}, "pitch 90.0"),
    ],
)
def test_impossible_cameras_are_complained_of(asked, complaint, caplog):
    talk = Talk()
    talk.load()
    talk.say("cam_config", **asked)
    (said,) = caplog.messages
    assert re.search(f"cam_config ignored: .*{complaint}", said)
    assert image(talk.control()).size == (160, 120)


FIELDS = {
    "control": ("steering", "throttle", "brake"),
    "set_position": ("pos_x", "pos_y", "pos_z", "Qx", "Qy", "Qz", "Qw"),
    "node_position": ("index", "n"),
    "cam_config": ("img_w", "img_h", "img_d", "img_enc", "fov", "offset_y", "offset_z", "rot_x"),
    "set_random_seed": ("seed",),
    "step_mode": ("step_mode", "time_step"),
    "load_scene": ("scene_name",),
}
ODD = (
    "0",
    "-1",
    "1e-300",
    "1e200",
    "-1e200",
    "1e308",
    "1e999",
    "nan",
    "1_0",
    "",
    "\ud800",
    7,
    None,
)


@pytest.mark.parametrize("kind", FIELDS)
def test_no_message_ends_the_simulator(kind):
    talk, rng = Talk(), np.random.default_rng(0)
    talk.load()
    same = [dict.fromkeys(FIELDS[kind], value) for value in (*ODD, ["a"], {})]
    mixed = [
        {name: ODD[rng.integers(len(ODD))] for name in FIELDS[kind] if rng.random() < 0.8}
        for _ in range(60)
    ]
    huge = [{"pos_x": "1e308", "pos_z": "1e308", "Qx": "1e200", "Qz": "-1e200"}]
    huge[0] |= {"Qy": "1e200", "Qw": "1e200"}
    for fields in same + mixed + huge:
        talk.say(kind, **fields)
        talk.say("reset_car")  # a seed takes effect here
    assert talk.session.simulator is not None
    talk.session.lockstep = True
    encode(talk.control())


def test_step_mode_switches_the_clock():
    talk = Talk(clock="realtime")
    assert kinds(talk.load()) == ["car_loaded"]
    assert talk.say("control", steering="0", throttle="1", brake="0") == []
    talk.say("step_mode", step_mode="synchronous", time_step="0.1")
    assert not talk.session.lockstep
    talk.say("step_mode", step_mode="synchronous", time_step="0.05")
    assert talk.control()["time"] == 0.05
    talk.say("step_mode", step_mode="asynchronous", time_step="0.05")
    assert talk.say("control", steering="0", throttle="1", brake="0") == []


def test_laps_are_reported():
    talk = Talk()
    talk.load()
    while kinds(talk.answers).count("collision_with_starting_line") < 2:
        t = talk.session.simulator.telemetry
        path = talk.session.simulator.course.path
        x, y = path[(t.node + 6) % len(path)]
        angle = math.atan2(y - t.y, x - t.x) - t.heading
        curvature = 2 * math.sin(angle) / math.hypot(x - t.x, y - t.y)
        wheel = curvature * 0.2 * (1 + (t.speed / 1.35) ** 2)
        talk.control(str(-wheel / math.radians(16)), str(0.6 * (1.2 - t.speed) + 0.2))
        assert t.time < 60
    first, second = (
        m["timeStamp"] for m in talk.answers if m["msg_type"] == "collision_with_starting_line"
    )
    assert 0 < first < 2
    assert second - first == pytest.approx(talk.session.simulator.course.length / 1.2, rel=0.15)


def test_same_messages_same_bytes():
    def talk() -> list[bytes]:
        one = Talk(seed=4)
        one.load()
        for i in range(20):
            one.control(str(i / 20), "0.5")
        one.say("reset_car")
        return [encode(answer) for answer in one.answers]

    assert talk() == talk()


# Quirks


def test_latency_delays_telemetry():
    plain, late = Talk(), Talk(quirks=Quirks(latency=2))
    plain.load()
    late.load()
    for _ in range(8):
        plain.control("0.5", "0.5")
        late.control("0.5", "0.5")
    now = [m["time"] for m in plain.answers if m["msg_type"] == "telemetry"]
    then = [m["time"] for m in late.answers if m["msg_type"] == "telemetry"]
    assert now == then
    moves = [m["steering_angle"] for m in late.answers if m["msg_type"] == "telemetry"]
    assert moves[:4] == [0, 0, 0, 0.5]


def test_stale_frames_after_reset():
    talk = Talk(quirks=Quirks(stale_frames=3))
    start = talk.load()[-1]["pos_x"]
    for _ in range(20):
        talk.control("0", "1")
    seen = talk.say("reset_car") + [talk.control() for _ in range(4)]
    away = [abs(m["pos_x"] - start) > 0.1 for m in seen]
    assert away == [True, True, True, False, False]


def test_speed_may_survive_a_reset():
    talk = Talk(quirks=Quirks(keep_speed=True, repeat_car_loaded=2))
    assert kinds(talk.load()) == ["car_loaded"] * 3 + ["telemetry"]
    for _ in range(20):
        talk.control("0", "1")
    assert talk.say("reset_car")[-1]["speed"] > 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"role": "both"},
        {"role": ["dial"]},
        {"clock": "slow"},
        {"generation": 2020},
        {"host": ""},
        {"host": "a" * 70},
        {"port": -1},
        {"port": "9091"},
        {"seed": -1},
        {"seed": 1.5},
        {"connect_timeout": math.nan},
        {"connect_timeout": 0},
        {"connect_timeout": 10**400},
        {"car": {"delay": 1}},
        {"camera": None},
        {"quirks": "drop"},
    ],
)
def test_impossible_settings(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))} is .*; expected"):
        ServerSettings(**change)
    with pytest.raises(ValueError, match="latency is -1; expected a whole number, 0 or more"):
        Quirks(latency=-1)
    with pytest.raises(ValueError, match="unknown fault 'dorp'.*did you mean 'drop'"):
        Quirks(fault="dorp")
