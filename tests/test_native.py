"""Straight-line code as machine code: the numbers of the same lines in Python."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_scalar import equations

from piwm_gym import compiler, shared_object, solo
from piwm_gym.env import WorldModelEnv
from piwm_gym.native import Native
from piwm_gym.scalar import scalar_code, write_down

pytestmark = pytest.mark.skipif(
    not compiler.available(torch.device("cpu")), reason="needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where compiled code is kept in these tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shared_object.shared_object.cache_clear()
    yield tmp_path / "piwm-gym"
    shared_object.shared_object.cache_clear()


def test_it_gives_the_numbers_of_the_function() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(5, generator=generator)
    code = Native(write_down(equations, (torch.ones(1, 3), torch.tensor([7]), table)))
    assert code.load()
    for i in range(300):
        x, integer = torch.randn(1, 3, generator=generator), torch.tensor([i * 3**33 % 2**62 - 5])
        wanted = equations(x, integer, table)
        found = code(list(x[0].numpy()), integer.tolist(), list(table.numpy()))
        for result, numbers in zip(wanted, found, strict=True):
            assert result.flatten().tolist() == list(numbers)


def test_what_is_not_finite_stays_so() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / 0, x.clamp(-1, 1), torch.where(x > torch.inf, 1.0, -x), torch.maximum(x, -x)

    written = write_down(function, (torch.ones(1),))
    code, lines = Native(written), scalar_code(written)
    assert code.load()
    for value in (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 2.0):
        with np.errstate(all="ignore"):
            wanted = np.concatenate(lines([np.float32(value)]))
        found = np.concatenate(code([value]))
        assert np.array_equal(wanted, found, equal_nan=True)
        assert np.array_equal(np.signbit(wanted), np.signbit(found)) or np.isnan(value)


def fly(plain: WorldModelEnv, quick: WorldModelEnv, steps: int, done: Callable[[], bool]) -> None:
    """Compare episodes bit by bit, for so many steps and until something is done."""
    rng = np.random.default_rng(0)
    assert np.array_equal(plain.reset(seed=5)[0], quick.reset(seed=5)[0])
    deadline = time.monotonic() + 60
    while steps > 0 or not done():
        assert time.monotonic() < deadline
        action = int(rng.integers(plain.action_space.n))  # type: ignore[attr-defined]
        a, b = plain.step(action), quick.step(action)
        assert np.array_equal(a[0], b[0])
        assert a[1:4] == b[1:4]
        assert np.array_equal(a[4]["state"], b[4]["state"])
        if a[2]:
            assert np.array_equal(plain.reset()[0], quick.reset()[0])
        steps -= 1


def in_machine_code(env: WorldModelEnv) -> bool:
    assert env.simulation._solo is not None
    return isinstance(env.simulation._solo._code, Native)


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander"])
def test_single_environments_step_by_it(make_tiny: Any, system: str) -> None:
    model = make_tiny(system=system)
    plain, quick = (WorldModelEnv(model=model, obs_type="state", compile=c) for c in (False, True))
    assert in_machine_code(quick)
    fly(plain, quick, 600, lambda: True)
    assert not in_machine_code(plain)


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander"])
def test_many_steps_are_compiled_in_the_background(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr(solo, "MANY", 20)
    monkeypatch.setattr(solo, "FEW", 2)
    model = make_tiny(system=system)
    plain, quick = (WorldModelEnv(model=model, obs_type="state", compile=c) for c in (False, None))
    fly(plain, quick, 19, lambda: True)
    assert not in_machine_code(quick)
    after = count()
    fly(plain, quick, 300, lambda: in_machine_code(quick) and next(after) > 200)


@pytest.mark.parametrize("broken", ["compiler", "folder", "object"])
def test_without_machine_code_steps_go_on(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch, cache: Path, broken: str
) -> None:
    monkeypatch.setattr(solo, "MANY", 5)
    monkeypatch.setattr(solo, "FEW", 2)
    if broken == "compiler":
        monkeypatch.setattr(shared_object, "cpp_compiler", lambda: "false")
    elif broken == "folder":
        cache.write_text("a file")
    else:
        monkeypatch.setattr(shared_object, "FLAGS", ("-E",))  # no machine code
    model = make_tiny()
    plain, quick = (WorldModelEnv(model=model, obs_type="state", compile=c) for c in (False, None))
    fly(plain, quick, 50, lambda: not quick.simulation._solo._countdown)  # type: ignore[union-attr]
    assert not in_machine_code(quick)
    with pytest.warns(UserWarning, match="compiler fails, or .*; steps run uncompiled"):
        WorldModelEnv(model=model, obs_type="state", compile=True)


def test_machine_code_is_kept_for_other_processes(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    source = 'extern "C" int seven() { return 7; }'
    made = shared_object.shared_object(source).load()
    assert made is not None
    assert made.seven() == 7
    assert [path.suffix for path in cache.iterdir()] == [".so"]
    assert cache.stat().st_mode & 0o077 == 0
    shared_object.shared_object.cache_clear()
    monkeypatch.setattr(subprocess, "Popen", None)  # it is not compiled again
    kept = shared_object.shared_object(source)
    assert kept.ready
    assert kept.load().seven() == 7  # type: ignore[union-attr]


def test_nothing_is_written_where_there_is_no_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "~")  # what stays of it without one
    monkeypatch.chdir(tmp_path)
    made = shared_object.shared_object("int main() {}")
    assert made.ready
    assert made.load() is None
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_loaded_is_made_anew_by_the_next_process(cache: Path) -> None:
    source = 'extern "C" int seven() { return 7; }'
    begun = shared_object.SharedObject(source)._process
    assert begun is not None
    assert begun.wait() == 0
    (path,) = cache.iterdir()
    path.write_bytes(b"")
    assert shared_object.SharedObject(source).load() is None
    made = shared_object.SharedObject(source).load()
    assert made is not None
    assert made.seven() == 7


def test_one_source_compiled_twice_at_once_is_one_object(cache: Path) -> None:
    both = [shared_object.SharedObject("int twice = 2;") for _ in range(2)]
    assert all(made.load() is not None for made in both)
    assert len(list(cache.iterdir())) == 1


def test_interrupted_steps_leave_nothing_wrong_behind(make_tiny: Any) -> None:
    """Exceptions may come at any moment, as from a signal; the step is then made once more."""
    plain, quick = (
        WorldModelEnv(model=make_tiny(system="lunar_lander"), obs_type="state", compile=c)
        for c in (False, True)
    )
    plain.reset(seed=0)
    quick.reset(seed=0)
    native = quick.simulation._solo._code  # type: ignore[union-attr]
    questions = native._asked

    def interrupted(function: Any) -> Any:
        def ask(x: torch.Tensor, out: torch.Tensor) -> None:
            out.fill_(7.0)
            raise KeyboardInterrupt

        return lambda x, out: ask(x, out) if rng.random() < 0.3 else function(x, out=out)

    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(200):
        native._asked = [
            [(interrupted(function), *rest) for function, *rest in some] for some in questions
        ]
        before, action = quick.snapshot(), int(rng.integers(4))
        while True:
            try:
                found = quick.step(action)
                break
            except KeyboardInterrupt:
                lost += 1
                quick.restore(before)
        wanted = plain.step(action)
        assert np.array_equal(wanted[0], found[0])
        assert wanted[1:4] == found[1:4]
        if found[2]:
            assert np.array_equal(plain.reset()[0], quick.reset()[0])
    assert lost > 50


def test_what_was_compiled_in_inference_mode_serves_out_of_it(make_tiny: Any) -> None:
    model = make_tiny()
    plain = WorldModelEnv(model=model, obs_type="state", compile=False)
    with torch.inference_mode():
        quick = WorldModelEnv(model=model, obs_type="state", compile=True)
    fly(plain, quick, 50, lambda: True)


@pytest.mark.filterwarnings("ignore:.*You are calling 'step")
def test_what_is_not_a_number_stays_so_in_machine_code(make_tiny: Any) -> None:
    model = make_tiny(system="lunar_lander")
    seen = []
    for compiled in (False, True):
        env = WorldModelEnv(model=model, obs_type="state", compile=compiled)
        env.reset(seed=0, options={"state": [0, 5, 3e38, 0, 0, 0, 0, 0, 0, 0]})
        seen.append([env.step(2)[:4] for _ in range(12)])
    assert np.isnan(seen[0][-1][0][0])
    for a, b in zip(*seen, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1:], b[1:])


ENDING = """
import sys
from piwm_gym import shared_object
shared_object.PATIENCE = int(sys.argv[1])
shared_object.shared_object("int seven() { return 7; }")
"""


@pytest.mark.parametrize("patience", [60, 0])
def test_the_end_of_python_waits_for_a_compiler_for_a_while(cache: Path, patience: int) -> None:
    command = [sys.executable, "-W", "error", "-c", ENDING, str(patience)]
    done = subprocess.run(command, check=True, timeout=100, stderr=subprocess.PIPE)
    assert not done.stderr
    assert not patience or [path.suffix for path in cache.iterdir()] == [".so"]
