import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from piwm_gym.courses import get_course
from piwm_gym.systems import get_system
from training.courses import check_near, choose_course, read_path
from training.dataset import load_dataset
from training.import_donkey import import_tub, main
from training.importers import Report, read_telemetry, read_tub, tub_version
from training.importers.course import course, local_motion
from training.importers.records import Records, drives
from training.importers.sampling import sample
from training.training_data import system_of

SYSTEM = get_system("donkey_car")
NATIVE = SYSTEM.frame.native
DT = 0.05
RADIUS, SPEED = 2.0, 1.0


def picture(path: Path, number: int, size: tuple[int, int] = NATIVE) -> None:
    """A gradient that differs from record to record."""
    rows = np.arange(size[0])[:, None, None] + np.zeros((*size, 3))
    Image.fromarray(((rows + 3 * number) % 200 + 20).astype(np.uint8)).save(path, quality=90)


def record(number: int, *, poses: bool = True, **changes: object) -> dict[str, object]:
    """A record of a car that turns right, clockwise seen from above, on a circle."""
    angle = SPEED / RADIUS * DT * number
    position = {
        "pos/pos_x": RADIUS * (1 - math.cos(angle)),
        "pos/pos_z": RADIUS * math.sin(angle),
        "pos/speed": SPEED,
    }
    return {
        "cam/image_array": f"{number}_cam-image_array_.jpg",
        "user/angle": 0.5,
        "user/throttle": 0.25,
        "user/mode": "user",
        **(position if poses else {}),
        **changes,
    }


def circle(folder: Path, points: int = 125) -> Path:
    """The path of :func:`record`'s car as a file, in its driving order."""
    file = folder / "circle.csv"
    angles = 2 * math.pi * np.arange(points) / points
    path = RADIUS * np.column_stack((1 - np.cos(angles), np.sin(angles)))
    file.write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in path.tolist()))
    return file


def write_v1(folder: Path, count: int, **options: bool) -> Path:
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps({"inputs": [], "types": [], "start": 0}))
    for i in range(count):
        content = record(i, milliseconds=round(1000 * DT * i), **options)
        (folder / f"record_{i}.json").write_text(json.dumps(content))
        picture(folder / f"{i}_cam-image_array_.jpg", i)
    return folder


def write_v2(folder: Path, count: int, deleted: tuple[int, ...] = (), **options: bool) -> Path:
    (folder / "images").mkdir(parents=True)
    last = {"paths": ["catalog_0.catalog"], "current_index": count, "deleted_indexes": deleted}
    manifest = [[], [], {}, {"created_at": 0}, last]
    (folder / "manifest.json").write_text("\n".join(map(json.dumps, manifest)))
    lines = []
    for i in range(count):
        extra = {"_index": i, "_session_id": "s", "_timestamp_ms": 10**12 + round(1000 * DT * i)}
        lines.append(json.dumps(record(i, **extra, **options)))
        picture(folder / "images" / f"{i}_cam-image_array_.jpg", i)
    (folder / "catalog_0.catalog").write_text("\n".join(lines) + "\n")
    (folder / "catalog_0.catalog_manifest").write_text("{}")
    return folder


@pytest.mark.parametrize(("write", "version"), [(write_v1, 1), (write_v2, 2)])
def test_a_tub_becomes_a_data_set(tmp_path, write, version):
    tub, out, report = write(tmp_path / "tub", 25), tmp_path / "out", Report()
    assert tub_version(tub) == version
    import_tub(tub, out, report, path=circle(tmp_path), steps=11)
    data = load_dataset(out)
    assert data.frames.shape == (2, 12, *SYSTEM.frame.size, 3)
    assert data.actions.shape == (2, 11, 2)
    np.testing.assert_allclose(data.actions, np.broadcast_to([0.5, 0.25], (2, 11, 2)))
    assert data.manifest["missing_states"] == []
    assert report.dropped == {"drive too short, or rest of one, for a trajectory": 1}
    x, y, theta, v = (
        data.states[..., SYSTEM.state_names.index(n)] for n in ("x", "y", "theta", "v")
    )
    angle = SPEED / RADIUS * DT * np.arange(24).reshape(2, 12)
    np.testing.assert_allclose(x, RADIUS * (1 - np.cos(angle)), atol=1e-5)
    np.testing.assert_allclose(y, RADIUS * np.sin(angle), atol=1e-5)
    np.testing.assert_allclose(theta, np.pi / 2 - angle, atol=0.01)
    np.testing.assert_allclose(v, SPEED, atol=1e-6)
    assert (np.diff(theta) < 0).all(), "positive steering turns right, which lowers theta"


def test_the_same_import_again_changes_nothing(tmp_path):
    tub, out = write_v2(tmp_path / "tub", 12), tmp_path / "out"
    manifest = import_tub(tub, out, Report(), path=circle(tmp_path), steps=5)
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in out.iterdir()}
    report = Report()
    assert import_tub(tub, out, report, path=circle(tmp_path), steps=5) == manifest
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in out.iterdir()} == before
    assert report.read == 0
    with pytest.raises(ValueError, match="other options; choose another --out"):
        import_tub(tub, out, Report(), path=circle(tmp_path), steps=6)


def test_a_damaged_import_is_repaired(tmp_path):
    tub, out = write_v2(tmp_path / "tub", 12), tmp_path / "out"
    import_tub(tub, out, Report(), path=circle(tmp_path), steps=5)
    whole = (out / "shard-00000.npz").read_bytes()
    (out / "shard-00000.npz").write_bytes(whole[:100])
    with pytest.raises(ValueError, match=r"sha256.*training\.import_donkey"):
        load_dataset(out)
    import_tub(tub, out, Report(), path=circle(tmp_path), steps=5)
    assert (out / "shard-00000.npz").read_bytes() == whole


def test_without_poses_states_are_missing_and_said_to_be(tmp_path):
    out = tmp_path / "out"
    import_tub(write_v1(tmp_path / "tub", 12, poses=False), out, Report(), course="hall", steps=5)
    with pytest.raises(ValueError, match="holds no x, y, theta, v: the source had no such"):
        load_dataset(out)
    data = load_dataset(out, allow_missing_states=True)
    assert data.manifest["missing_states"] == ["x", "y", "theta", "v"]
    assert np.isnan(data.states[..., SYSTEM.estimated]).all()
    assert data.frames.std() > 0


def test_junk_costs_records_not_the_import(tmp_path):
    tub = write_v2(tmp_path / "tub", 40, deleted=(3,))
    images = tub / "images"
    (images / "5_cam-image_array_.jpg").unlink()
    path = images / "7_cam-image_array_.jpg"
    path.write_bytes(path.read_bytes()[:300])
    picture(images / "9_cam-image_array_.jpg", 9, (60, 80))
    (images / "._11_cam-image_array_.jpg").write_bytes(b"\0")
    (tub / "._catalog_0.catalog").write_bytes(b"\0\1")
    lines = (tub / "catalog_0.catalog").read_text().splitlines()
    lines[13] = lines[13][:40]
    lines[15] = "[1, 2]"
    lines[17] = lines[17].replace('"user/angle": 0.5', '"user/angle": null')
    lines[19] = lines[19].replace("_timestamp_ms", "_time")
    lines[21] = lines[21].replace('"user/angle": 0.5', '"user/angle": 1.7')
    lines.insert(30, lines[29])
    (tub / "catalog_0.catalog").write_text("\n".join(lines) + '\n{"_index": 40, "cam/im')
    report = Report()
    records = read_tub(tub, NATIVE, report)
    assert report.dropped == {
        "deleted by its owner": 1,
        "picture is missing": 1,
        "picture cannot be decoded": 1,
        "picture is not 160 x 120 pixels": 1,
        "cut-off or malformed JSON": 3,
        "no usable steering or throttle": 1,
        "no usable timestamp": 1,
        "same index as an earlier record": 1,
    }
    assert report.read == 42 == len(records) + sum(report.dropped.values())
    assert report.notes["commands beyond -1 to 1, clipped"] == 1
    assert report.notes["files of other systems (._*), skipped"] == 2
    assert records.actions.max() == 1.0


ABSURD = (10**400, -(10**400), 1e308, -1e308, math.inf, math.nan, "12", "", None, True, [1], {})


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("_timestamp_ms", "no usable timestamp"),
        ("user/angle", "no usable steering or throttle"),
        ("user/throttle", "no usable steering or throttle"),
        ("pos/pos_x", "no pose, though most records have one"),
        ("pos/speed", None),
        ("pilot/angle", None),
        ("user/mode", None),
        ("_session_id", None),
        ("_index", None),
    ],
)
def test_an_absurd_value_costs_a_record_at_most(tmp_path, key, reason):
    tub = write_v2(tmp_path / "tub", 36)
    path = tub / "catalog_0.catalog"
    lines = path.read_text().splitlines()
    for i, value in enumerate(ABSURD, start=12):
        lines[i] = json.dumps(json.loads(lines[i]) | {key: value})
    path.write_text("\n".join(lines))
    report = Report()
    import_tub(tub, tmp_path / "out", report, path=circle(tmp_path), steps=5)
    lost = {why: n for why, n in report.dropped.items() if not why.startswith("drive too short")}
    assert lost == ({} if reason is None else {reason: len(ABSURD)})
    assert len(load_dataset(tmp_path / "out").actions) >= 4


def test_a_timestamp_before_all_time_costs_its_record(tmp_path):
    tub = write_v1(tmp_path / "tub", 4)
    (tub / "record_2.json").write_text(json.dumps(record(2, milliseconds=-100)))
    report = Report()
    assert len(read_tub(tub, NATIVE, report)) == 3
    assert report.dropped == {"no usable timestamp": 1}


def folder(path: Path) -> None:
    path.mkdir()


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def circular(path: Path) -> None:
    path.symlink_to(path)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(128, 256)))


def empty(path: Path) -> None:
    path.write_bytes(b"")


UNREADABLE = (folder, dangling, circular, pipe)
MAKERS = (*UNREADABLE, binary, empty)
posix = pytest.mark.skipif(os.name != "posix", reason="makes links and pipes")


@posix
def test_records_and_pictures_that_are_no_files_cost_a_record_each(tmp_path):
    tub = write_v1(tmp_path / "tub", 30)
    for i, make in enumerate(MAKERS, start=10):
        for name in (f"record_{i}.json", f"{i + 8}_cam-image_array_.jpg"):
            (tub / name).unlink()
            make(tub / name)
    report = Report()
    import_tub(tub, tmp_path / "out", report, path=circle(tmp_path), steps=5)
    assert report.dropped["file cannot be read"] == len(UNREADABLE)
    assert report.dropped["cut-off or malformed JSON"] == 2
    pictures = (report.dropped[f"picture {what}"] for what in ("is missing", "cannot be decoded"))
    assert sum(pictures) == len(MAKERS)
    assert report.read == 30
    assert len(load_dataset(tmp_path / "out").actions) == 2


@posix
def test_catalogs_that_are_no_files_cost_their_own_records(tmp_path):
    tub = write_v2(tmp_path / "tub", 12)
    for i, make in enumerate(MAKERS, start=1):
        make(tub / f"catalog_{i}.catalog")
    report = Report()
    import_tub(tub, tmp_path / "out", report, path=circle(tmp_path), steps=5)
    note = "catalogs that cannot be read, so their records are not known"
    assert report.notes[note] == len(UNREADABLE)
    assert report.dropped == {"cut-off or malformed JSON": 1}
    assert len(load_dataset(tmp_path / "out").actions) == 2


@posix
@pytest.mark.parametrize("make", MAKERS)
def test_a_manifest_that_is_no_file_deletes_nothing(tmp_path, make):
    tub = write_v2(tmp_path / "tub", 3)
    (tub / "manifest.json").unlink()
    make(tub / "manifest.json")
    assert len(read_tub(tub, NATIVE, Report())) == 3


@pytest.mark.parametrize("last", ['{"deleted_indexes": [1e999, NaN]}', "5", "{}", "[" * 9**5])
def test_a_damaged_manifest_deletes_nothing(tmp_path, last):
    tub = write_v2(tmp_path / "tub", 3)
    (tub / "manifest.json").write_text("[]\n" * 4 + last)
    report = Report()
    assert len(read_tub(tub, NATIVE, report)) == 3
    assert "manifest unreadable, so no record is known to be deleted" in report.notes


def test_a_picture_outside_the_tub_is_not_opened(tmp_path):
    tub = write_v1(tmp_path / "tub", 2)
    picture(tmp_path / "secret.jpg", 9)
    content = json.loads((tub / "record_1.json").read_text()) | {"cam/image_array": "../secret.jpg"}
    (tub / "record_1.json").write_text(json.dumps(content))
    report = Report()
    assert len(read_tub(tub, NATIVE, report)) == 1
    assert report.dropped == {"picture is missing": 1}


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({"user/mode": "user", "pilot/angle": -0.3, "pilot/throttle": 0.1}, (0.5, 0.25)),
        ({"user/mode": "local", "pilot/angle": -0.3, "pilot/throttle": 0.1}, (-0.3, 0.1)),
        ({"user/mode": "local_angle", "pilot/angle": -0.3, "pilot/throttle": 0.1}, (-0.3, 0.25)),
        ({"user/mode": "local", "pilot/angle": 0.0, "pilot/throttle": 0.0}, (0.5, 0.25)),
    ],
)
def test_the_command_that_acted_is_taken(tmp_path, changes, command):
    tub = write_v1(tmp_path / "tub", 1)
    content = json.loads((tub / "record_0.json").read_text()) | changes
    (tub / "record_0.json").write_text(json.dumps(content))
    np.testing.assert_allclose(read_tub(tub, NATIVE, Report()).actions, [command])


def table(times: np.ndarray, positions: np.ndarray | None = None) -> Records:
    n = len(times)
    along = np.column_stack((SPEED * times, np.zeros(n)))
    return Records(
        times=times,
        actions=np.zeros((n, 2)),
        positions=along if positions is None else positions,
        speeds=np.full(n, SPEED),
        episodes=np.zeros(n, np.int64),
    )


def test_pauses_jumps_and_restarted_clocks_cut_a_drive():
    times = np.concatenate((np.arange(10), np.arange(20, 30), np.arange(5))) * DT
    records = table(times)
    records.positions[14:] += 3.0
    report = Report()
    assert [len(d) for d in drives(records, 0.15, report)] == [10, 4, 6, 5]
    assert report.splits == {
        "pause of more than 0.15 s": 1,
        "car was moved": 1,
        "clock went backwards": 1,
    }


def test_a_loop_faster_than_the_telemetry_writes_repeats():
    twice = np.repeat(np.arange(20), 2)
    times = DT / 2 * np.arange(40)
    records = table(times, np.column_stack((SPEED * DT * twice, 0.0 * twice)))
    report = Report()
    (trajectory,) = sample(records, SYSTEM, 19, report)
    assert report.dropped == {"same pose as the record before": 20}
    np.testing.assert_allclose(np.diff(trajectory.records.times), DT)


def test_records_denser_than_the_time_step_are_thinned_and_jitter_does_not_add_up():
    jitter = np.random.default_rng(0).uniform(-0.004, 0.004, 200)
    report = Report()
    (trajectory,) = sample(table(np.arange(200) * DT / 2 + jitter), SYSTEM, 99, report)
    drift = trajectory.records.times - trajectory.records.times[0] - DT * np.arange(100)
    assert abs(drift).max() <= DT / 2
    assert report.dropped["between two time steps"] == 99


@pytest.mark.parametrize("interval", [1 / 60, 1 / 40, 0.051, 0.05, 0.049])
def test_rates_that_give_the_time_step_are_sampled_evenly(interval):
    trajectories = sample(table(np.arange(200) * interval), SYSTEM, 10, Report())
    assert trajectories
    for trajectory in trajectories:
        assert abs(np.diff(trajectory.records.times) - DT).max() < 0.0011
        speed = np.diff(trajectory.states[:, 0]) / np.diff(trajectory.records.times)
        np.testing.assert_allclose(speed, SPEED, rtol=1e-6)


@pytest.mark.parametrize(("interval", "rate"), [(0.1, "10"), (1 / 30, "30"), (0.067, "14.9")])
def test_a_recording_at_another_rate_is_refused_with_both_rates(interval, rate):
    with pytest.raises(
        ValueError, match=rf"{interval:.3g} s apart \({rate} a second.*expected.*0\.05 s.*20, 40"
    ):
        sample(table(np.arange(100) * interval), SYSTEM, 10, Report())


def test_the_error_of_another_rate_names_the_tub(tmp_path, capsys):
    tub = write_v1(tmp_path / "tub", 12)
    for path in tub.glob("record_*.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"milliseconds": 2 * content["milliseconds"]}))
    with pytest.raises(SystemExit):
        main(tub, tmp_path / "out", path=circle(tmp_path), steps=5)
    assert f"{tub}: the records are 0.1 s apart" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_heading_and_speed_of_a_noisy_circle():
    times = np.arange(100) * DT
    angle = SPEED / RADIUS * times
    noise = np.random.default_rng(1).normal(0, 0.002, (100, 2))
    path = RADIUS * np.column_stack((np.cos(angle), np.sin(angle))) + noise
    heading, speed = course(times, path)
    error = np.angle(np.exp(1j * (heading - angle - np.pi / 2)))
    assert abs(error[3:-3]).max() < 0.04
    np.testing.assert_allclose(speed[3:-3], SPEED, atol=0.04)


def test_no_later_record_influences_the_past():
    times = np.arange(40) * DT
    path = np.random.default_rng(2).normal(size=(40, 2))
    later = path.copy()
    later[21:] += 5.0
    at = times[20:21]
    for a, b in zip(
        local_motion(times, path, at, 0.3, 0.0),
        local_motion(times, later, at, 0.3, 0.0),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


HEADER = "Episode;Step;Time;Steering;Throttle;TargetSpeed;SpeedX;SpeedY;SpeedZ;PosX;PosY;PosZ\n"


def row(i: int, steering: float = 0.5) -> str:
    """Straight away from the camera's back, along -z."""
    time = f"2020-10-22T18:21:{DT * i:09.6f}"
    return f"1;{i};{time};{steering};0.2;0.5;0;0;-1;0.5;0;{-DT * i}\n"


def test_telemetry_rows_axes_and_junk(tmp_path):
    path = tmp_path / "drive.csv.gz"
    junk = "1;5;2020-10-22T18:21:01;None;0.2;0.5;0;0;-1;0;0;0\n1;6;yesterday;0\n"
    junk += "1;7;2020-10-22T18:21:01;nan;0.2;0.5;0;0;-1;0;0;0\n"
    junk += "1;8;2020-10-22T18:21:01;0;0.2;0.5;0;0;-1;1e308;0;0\n"
    junk += "1e300;9;2020-10-22T18:21:01;0;0.2;0.5;0;0;-1;0;0;0\n"
    path.write_bytes(
        gzip.compress((HEADER + "".join(map(row, range(9))) + row(9, 3.0) + junk).encode())
    )
    report = Report()
    records = read_telemetry(path, report)
    assert len(records) == 10
    np.testing.assert_allclose(np.diff(records.times), DT, atol=1e-6)
    np.testing.assert_allclose(records.positions[:, 1], DT * np.arange(10))
    np.testing.assert_allclose(records.speeds, 1.0)
    assert records.actions.max() == 1.0
    heading, _ = course(records.times, records.positions)
    np.testing.assert_allclose(heading, np.pi / 2)
    assert report.read == 15
    assert report.dropped == {
        "row with a missing or malformed number": 2,
        "row with a number that is not finite, or absurd": 3,
    }


def test_a_cut_off_gzip_gives_its_beginning(tmp_path):
    rng = np.random.default_rng(3)
    text = HEADER + "".join(row(i, rng.uniform(-1, 1)) for i in range(900))
    path = tmp_path / "drive.csv.gz"
    path.write_bytes(gzip.compress(text.encode())[:-2000])
    report = Report()
    assert 0 < len(read_telemetry(path, report)) < 900
    assert sum(report.notes.values()) == 1


def test_the_command_recognises_what_it_gets(tmp_path, capsys):
    main(write_v1(tmp_path / "tub", 12), tmp_path / "frames", path=circle(tmp_path), steps=5)
    assert "12 records read, 12 kept" in capsys.readouterr().err
    main(tmp_path / "tub", tmp_path / "frames", path=circle(tmp_path), steps=5)
    assert "imported before" in capsys.readouterr().err
    path = tmp_path / "drive.csv"
    path.write_text(HEADER + "".join(map(row, range(9))))
    main(path, tmp_path / "telemetry")
    assert (tmp_path / "telemetry" / "telemetry.npz").exists()
    assert json.loads((tmp_path / "telemetry" / "report.json").read_text())["records"] == 9


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothing", None, "does not exist; expected a tub's folder or a CSV file"),
        ("notes.txt", "hello", "is not recognised; expected a folder with record_"),
        ("drive.csv", "a;b\n1;2\n", "has no column 'Episode'"),
        ("empty.csv", HEADER, "holds no usable row of 0"),
        ("damaged.csv.gz", "not gzip", "cannot be read"),
    ],
)
def test_bad_sources_are_explained(tmp_path, capsys, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit):
        main(path, tmp_path / "out")
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_trajectory_says_why(tmp_path):
    tub = write_v1(tmp_path / "tub", 12)
    with pytest.raises(ValueError, match=r"no trajectory of 50 steps(.|\n)*too short.*: 12"):
        import_tub(tub, tmp_path / "out", Report(), path=circle(tmp_path))


def test_data_are_judged_by_the_path_that_was_given(tmp_path):
    """Nothing else tells what was driven; another path is another data set, for training, too."""
    tub, file = write_v1(tmp_path / "tub", 12), circle(tmp_path)
    import_tub(tub, tmp_path / "one", Report(), path=file, steps=5)
    data = load_dataset(tmp_path / "one")
    path = read_path(file).path
    np.testing.assert_array_equal(system_of(data.manifest).asset.numpy(), path.astype(np.float32))
    assert data.manifest["course"] == data.description["course"] == "circle.csv"
    with pytest.raises(ValueError, match="other options; choose another --out"):
        import_tub(tub, tmp_path / "one", Report(), path=circle(tmp_path, 120), steps=5)
    import_tub(tub, tmp_path / "two", Report(), path=file, steps=5)
    other = load_dataset(tmp_path / "two")
    assert other.description != data.description
    assert other.description["sha256"] == data.description["sha256"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither of --course and --path given; expected one, .*meadow.*header x,y"),
        ({"course": "hall", "path": Path("x.csv")}, "both of --course and --path given"),
        ({"course": "haul"}, "did you mean 'hall'"),
        ({"course": "hills"}, r"x from -6\.20 to 6\.20 m; expected -5 to 5"),
        ({"course": "hall"}, r"\d\d% of the records \(expected: at most 10%\).*'hall'.* 0\.763 m"),
    ],
)
def test_a_course_that_cannot_have_been_driven_is_refused(tmp_path, capsys, given, message):
    tub = write_v1(tmp_path / "tub", 40)
    with pytest.raises(ValueError, match=message):
        import_tub(tub, tmp_path / "out", Report(), steps=5, **given)
    with pytest.raises(SystemExit):
        main(tub, tmp_path / "out", steps=5, **given)
    assert capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_positions_in_other_units_are_recognised(tmp_path):
    tub = write_v1(tmp_path / "tub", 40)
    for path in tub.glob("record_*.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({k: 8 * v if "pos/" in k else v for k, v in content.items()}))
    file = circle(tmp_path)
    with pytest.raises(
        ValueError, match=r"other units.*with --units-per-metre 8 the median would be"
    ):
        import_tub(tub, tmp_path / "out", Report(), path=file, steps=5)
    import_tub(tub, tmp_path / "out", Report(), path=file, steps=5, units_per_metre=8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "begins with ''; expected the header 'x,y'"),
        ("1,2\n3,4\n", "begins with '1,2'"),
        ("x,y\n", "path has shape"),
        ("x,y\n1,2,3\n", "too many values"),
        ("x,y\n0,0\n1,zero\n", "'zero'"),
        ("x,y\n" + "".join(f"{i},0\n" for i in range(20)), "expected a closed path"),
        ("x,y\n" + "0,nan\n" * 20, "finite"),
    ],
)
def test_a_file_without_a_path_is_refused(tmp_path, content, message):
    file = tmp_path / "path.csv"
    file.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        choose_course(None, file)
    assert str(file) in str(error.value)


def test_a_built_in_course_is_the_same_from_a_file(tmp_path):
    file, course = tmp_path / "hall.csv", get_course("hall")
    np.savetxt(file, course.path, "%.17g", ",", header="x,y", comments="")
    np.testing.assert_array_equal(choose_course(None, file).path, course.path)


def test_records_beyond_the_ranges_are_dropped_and_counted():
    """A car that drives out of the ranges and back: no trajectory bridges the gap."""
    out = np.concatenate((np.linspace(4, 6, 40, endpoint=False), np.linspace(6, 4, 40)))
    along = table(np.arange(80) * DT, np.column_stack((out, np.linspace(0, 0.4, 80))))
    along.speeds[5] = 3.5
    along.speeds[7] = np.nan
    report = Report()
    trajectories = sample(along, SYSTEM, 10, report)
    assert report.dropped["x beyond -5 to 5 m"] == int((out > 5).sum())
    assert report.dropped["v beyond 0 to 3 m/s"] == 1
    assert trajectories
    for trajectory in trajectories:
        assert trajectory.states[:, 0].max() <= 5
        assert abs(np.diff(trajectory.records.times) - DT).max() < 1e-6
    assert 11 * len(trajectories) + sum(report.dropped.values()) == 80


@pytest.mark.parametrize(("driven", "other"), [("meadow", "hall"), ("random-5", "meadow")])
def test_drives_of_another_course_are_told_apart(driven, other):
    """On the road all the time, up to 0.6 m beside the path."""
    course = get_course(driven)
    right = np.column_stack((np.sin(course.headings), -np.cos(course.headings)))
    weave = 0.6 * np.sin(np.arange(len(right)) / 7)
    positions = course.path + weave[:, None] * right
    assert check_near(course, positions, 1.0) == 0
    with pytest.raises(ValueError, match=f"{other}.*another course was driven"):
        check_near(get_course(other), positions, 1.0)
