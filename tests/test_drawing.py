"""Frames of slots: what depends on the scene alone is drawn once per scene."""

import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from machine_code import drawn_directly

from piwm_gym import drawing
from piwm_gym.drawing import Stills
from piwm_gym.models.autoencoder import DECODERS
from piwm_gym.systems import SYSTEMS
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel


@pytest.fixture
def lander() -> WorldModel:
    return drawn_directly("lunar_lander")


def counted(model: WorldModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many stills are drawn at once, from now on."""
    calls: list[int] = []
    draw = model.still

    def still(scene: torch.Tensor) -> Any:
        calls.append(len(scene))
        return draw(scene)

    monkeypatch.setattr(model, "still", still)
    return calls


def right(obs: np.ndarray, envs: WorldModelVectorEnv, model: WorldModel) -> bool:
    """Whether frames are those of the slots' states, drawn one by one from nothing.

    Products of matrices of other sizes have other last bits, which may round to another byte.
    """
    pairs = zip(torch.from_numpy(envs.state), envs.simulation.scene, strict=True)
    expected = np.stack([model.draw(*pair).numpy() for pair in pairs])
    return bool(np.abs(obs.astype(int) - expected).max() <= 1)


def test_stills_are_drawn_once_per_scene(
    lander: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = WorldModelVectorEnv(model=lander, num_envs=3)
    calls = counted(lander, monkeypatch)
    obs, _ = envs.reset(seed=0)
    assert calls == [3]
    envs.action_space.seed(0)
    ended = 0
    for step in range(250):
        before = len(calls)
        obs, *_, info = envs.step(envs.action_space.sample())
        fresh = int(info.get("_scene", np.zeros(3, bool)).sum())
        assert sum(calls[before:]) == fresh
        if fresh or step % 50 == 0:
            assert right(obs, envs, lander)
        ended += fresh
    assert ended
    assert len({scene.tobytes() for scene in envs.simulation.scene.numpy()}) == 3


@pytest.mark.parametrize("place", ["ground", "background"])
def test_stills_are_drawn_anew_with_other_weights(lander: WorldModel, place: str) -> None:
    envs = WorldModelVectorEnv(model=lander, num_envs=3)
    before, _ = envs.reset(seed=0)
    with torch.no_grad():
        for name, weight in lander.autoencoder.named_parameters():
            if f".{place}" in name:
                weight.mul_(-1)
    after, *_ = envs.step(envs.action_space.sample())
    assert right(after, envs, lander)
    assert np.abs(after.astype(int) - before).max() > 50


def test_a_scene_given_at_a_reset_is_drawn(lander: WorldModel) -> None:
    envs = WorldModelVectorEnv(model=lander, num_envs=3)
    envs.reset(seed=0)
    scene = np.linspace(1.0, 4.0, 11, dtype=np.float32)
    mask = np.array([False, True, False])
    obs, _ = envs.reset(options={"scene": scene, "reset_mask": mask})
    assert right(obs, envs, lander)
    obs, *_ = envs.step(envs.action_space.sample())
    assert right(obs, envs, lander)


def test_stills_are_kept_in_and_out_of_inference_mode() -> None:
    with torch.inference_mode():
        model = drawn_directly("lunar_lander")
        stills = Stills(model)
    scenes = model.system.scene(torch.rand(3, model.system.num_scene_uniforms))
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            scenes = scenes + torch.tensor([[0.0], [0.5], [0.0]])
            drawn, fresh = stills.of(scenes), model.still(scenes)
        assert drawn is not None
        assert fresh is not None
        assert (drawn.int() - fresh.int()).abs().max() <= 1


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_inference_mode_does_not_reach_other_threads(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "DECODE_CHUNK", {"cpu": 4})
    model = drawn_directly(system)
    envs, plain = (WorldModelVectorEnv(model=model, num_envs=11, output="torch") for _ in range(2))
    plain.action_space.seed(0)
    actions = [plain.action_space.sample() for _ in range(3)]
    expected = [plain.reset(seed=0)[0], *(plain.step(action)[0] for action in actions)]
    with torch.inference_mode():
        found = [envs.reset(seed=0)[0], envs.step(actions[0])[0]]
    found.append(envs.step(actions[1])[0])
    with torch.inference_mode():
        found.append(envs.step(actions[2])[0])
    assert torch.equal(torch.stack(found), torch.stack(expected))


@pytest.mark.parametrize("system", ["cartpole", "donkey_car"])
def test_systems_without_a_scene_have_no_stills_of_it(system: str) -> None:
    model = drawn_directly(system)
    assert model.still(torch.zeros(3, 0)) is None
    assert Stills(model).of(torch.zeros(3, 0)) is None


def test_stills_of_other_shapes_are_refused(lander: WorldModel) -> None:
    scenes = lander.system.scene(torch.rand(2, lander.system.num_scene_uniforms))
    states, still = torch.zeros(2, 10), lander.still(scenes)
    assert still is not None
    frames = lander.draw(states, scenes, still)
    assert torch.equal(lander.draw(states[0], scenes[0], still[0]), frames[0])
    odd = torch.cat((still.flatten()[:1], still.flatten()))[1:].view(still.shape)
    assert torch.equal(lander.draw(states, scenes, odd), frames)
    for wrong in (still[:1], still.float(), still[..., 0]):
        with pytest.raises(ValueError, match=r"still has shape .* expected uint8 .* \(2, "):
            lander.draw(states, scenes, wrong)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_frames_are_put_where_they_are_wanted(system: str, decoder: str) -> None:
    model = drawn_directly(system)
    model.autoencoder.use(decoder)
    states = model.system.initial(torch.rand(6, model.system.num_initial_uniforms))
    states = states.view(2, 3, -1)
    frames = torch.zeros(2, 3, *model.system.frame.size, 3, dtype=torch.uint8)
    assert model.draw(states, out=frames) is frames
    assert torch.equal(frames, model.draw(states))
    odd = torch.zeros(frames.numel() + 1, dtype=torch.uint8)[1:].view(frames.shape)
    assert torch.equal(model.draw(states, out=odd), frames)
    assert torch.equal(odd, frames)
    for wrong, named in ((frames[0], "out has shape .*;"), (frames.int(), "out .*int32;")):
        with pytest.raises(ValueError, match=rf"{named} expected uint8 .* \(2, 3, "):
            model.draw(states, out=wrong)
    with pytest.raises(ValueError, match=r"out has strides .* expected contiguous memory"):
        model.draw(states, out=frames.transpose(3, 2).contiguous().transpose(3, 2))


PAGE_FAULTS = """
import resource, torch
from piwm_gym.drawing import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks = [torch.ones(3 * 2**20) for _ in range(4)]  # 12 MiB each
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
keep_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc")
def test_pages_are_kept_from_one_frame_to_the_next() -> None:
    command = [sys.executable, "-c", PAGE_FAULTS]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(printed) < 100  # without it, 60,000
