"""Cells of the tables of speed from numbers that one can divide in one's head."""

from pathlib import Path

import pytest

from training.results import MISSING, Results
from training.speed_rows import (
    COMPILED,
    FRAMES,
    SPEED_ROWS,
    VECTOR,
    Rate,
    against,
    costs,
    over_the_floor,
    rate,
)

THROUGHPUT = """measure,subject,output,device,batch,per_second,per_processor_second,floor_per_second
frames,"piwm-gym, gymnasium.make_vec",torch,cpu,1024,1000,500,2000
frames,"piwm-gym, gymnasium.make_vec",numpy,cpu,1024,900,450,2000
frames,"piwm-gym, gymnasium.make_vec, compiled",torch,cpu,1024,1500,800,
frames,"piwm-gym, gymnasium.make_vec",torch,cuda,1024,9000000,9000000,
frames,"real, AsyncVectorEnv",numpy,cpu,2,100,9999,
"""
COSTS = """subject,device,value
"a step with a frame, 1024 slots, over the floor",cpu,4.02
"a step with a frame, 1024 slots, over the floor, compiled",cpu,2.5
make,cpu,1.5
"""
OURS, THEIRS = Rate(VECTOR, 1024, FRAMES), Rate("real, AsyncVectorEnv", 2, FRAMES)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    (tmp_path / "toy-throughput.csv").write_text(THROUGHPUT)
    (tmp_path / "toy-costs.csv").write_text(COSTS)
    return Results(tmp_path, "toy")


def test_rates_are_compared_by_wall_clock_with_tensors_from_a_cpu(results: Results) -> None:
    assert against(OURS, THEIRS)(results, "") == "10.0 x"
    assert against(OURS, THEIRS, 0)(results, COMPILED) == "15 x"
    arrays = Rate(VECTOR, 1024, FRAMES, output="numpy")
    assert against(arrays, THEIRS)(results, "") == "9.0 x"


def test_rates_of_others_have_no_compiled_form(results: Results) -> None:
    assert rate(THEIRS)(results, "") == "100"
    assert rate(THEIRS)(results, COMPILED) == ""
    assert rate(Rate("nobody", 1))(results, "") == MISSING


def test_the_floor_is_reported_as_measured(results: Results) -> None:
    assert over_the_floor(results, "") == "4.0 x"
    assert over_the_floor(results, COMPILED) == "2.5 x"


def test_what_nobody_measured_says_so(results: Results) -> None:
    assert against(Rate(VECTOR, 64), THEIRS)(results, "") == MISSING
    assert against(OURS, Rate("gymnax", 64))(results, "") == MISSING


def test_without_measurements_all_cells_say_so(tmp_path: Path) -> None:
    for figure, _, cell in SPEED_ROWS["cartpole"]:
        assert cell(Results(tmp_path, "cartpole"), "") == MISSING, figure


def test_costs_stand_once(results: Results) -> None:
    cell = costs("{:.1f} s".format, "make")
    assert (cell(results, ""), cell(results, COMPILED)) == ("1.5 s", "")
