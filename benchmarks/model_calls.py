"""What the throughput benchmark measures of world models without an environment around them."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.contenders import COMPILED, STEPS, drawn_actions
from benchmarks.floor import of_products, of_rollout
from benchmarks.stopwatch import Call, Subject, Work
from piwm_gym.drawing import DECODE_CHUNK
from piwm_gym.models import build_autoencoder
from piwm_gym.systems import System
from piwm_gym.world_model import WorldModel

WINDOW = 20
HORIZON = 15
ROLLOUT = f"WorldModel.rollout, {HORIZON} steps"
HORIZONS = (1, 5, 15, 50, 150)
PLANNED = 1024
BY_HORIZON = f"rollouts of {PLANNED} states"
"""What ``HORIZONS`` are the batches of."""
SCALES = (1, 2, 4)
"""Sides of frames; patches and cells of tokens have to tile all of them."""
BY_PIXELS = "decoded frames"
"""What pixels are the batches of."""


def starts(system: System, count: int, device: str) -> tuple[Tensor, Tensor | None]:
    """(n, D) states in which episodes start, and their (n, S) scenes, if any."""
    scene = None
    if system.scene_variables:
        scene = system.scene(torch.rand(count, system.num_scene_uniforms)).to(device)
    keyword = {} if scene is None else {"scene": scene}
    uniforms = torch.rand(count, system.num_initial_uniforms).to(device)
    return system.initial(uniforms, **keyword), scene


def of_frame(model: WorldModel, batch: int = 256) -> Work:
    """Multiply-adds of a frame in the middle of an episode.

    What depends on the scene alone has been drawn before.
    """
    state, scene = starts(model.system, batch, model.device.type)
    still = None if scene is None else model.still(scene)
    return of_products(lambda: model.draw(state, scene, still), batch)


def encoding(model: WorldModel, batches: tuple[int, ...]) -> Iterator[Subject]:
    """State estimation from windows of uint8 frames."""
    system, device = model.system, model.device.type
    for n in batches:
        states = starts(system, n, device)[0][:, None].expand(-1, WINDOW, -1)
        actions = torch.from_numpy(drawn_actions(system.action_space, (n, WINDOW - 1))).to(device)
        call = torch.no_grad()(partial(model.encode, model.draw(states), actions))
        yield Subject(f"states from {WINDOW} frames", "WorldModel.encode", call, n, "torch", device)


def rollouts(
    model: WorldModel,
    sizes: tuple[int, ...],
    compiled: bool,
    horizons: tuple[int, ...] = HORIZONS,
) -> Iterator[Subject]:
    """Whole horizons in one call, as planners use them; then compiled ones.

    Args:
        model: Not compiled yet; it is afterwards.
        sizes: Numbers of states, over a horizon of ``HORIZON``.
        compiled: Whether to compile, which is for the CPU only.
        horizons: Of ``PLANNED`` states.
    """
    device, work = model.device.type, of_rollout(model.system)
    for suffix in ("", COMPILED) if compiled and device == "cpu" else ("",):
        for n in {*sizes, PLANNED} if suffix else ():
            model.compile_rollout(n)
        for n in sizes:
            call, name = rollout_call(model, n, HORIZON), f"{ROLLOUT}{suffix}"
            yield Subject(STEPS, name, call, n * HORIZON, "torch", device, n, work)
        for horizon in horizons:
            call, name = rollout_call(model, PLANNED, horizon), f"WorldModel.rollout{suffix}"
            whole = work * (PLANNED * horizon)
            yield Subject(BY_HORIZON, name, call, 1, "torch", device, horizon, whole)


def rollout_call(model: WorldModel, count: int, horizon: int) -> Call:
    """Roll so many states out over a horizon."""
    system, device = model.system, model.device.type
    state, scene = starts(system, count, device)
    actions = torch.from_numpy(drawn_actions(system.action_space, (count, horizon))).to(device)
    return torch.no_grad()(partial(model.rollout, state, actions, scene=scene))


def decoders(model: WorldModel, scales: tuple[int, ...] = SCALES) -> Iterator[Subject]:
    """Untrained decoders like the model's, for frames several times as large per side."""
    device = model.device.type
    n = DECODE_CHUNK[device]
    for scale in scales:
        system = enlarged(model.system, scale)
        autoencoder = build_autoencoder(model.config.autoencoder, system).eval().to(device)
        autoencoder.use(model.autoencoder.decodes_by)
        state, scene = starts(system, n, device)
        seen = state[:, system.visible]
        with torch.no_grad():
            seen = seen if scene is None else torch.cat((seen, scene), dim=-1)
            still = None if scene is None else autoencoder.still(seen)
        call = torch.no_grad()(partial(autoencoder.draw_frames, seen, still))
        work, pixels = of_products(call, n), math.prod(system.frame.size)
        yield Subject(BY_PIXELS, "untrained decoder", call, n, "torch", device, pixels, work)


def enlarged(system: System, scale: int) -> System:
    """The same system with frames so many times as large per side."""
    height, width = system.frame.size
    larger = copy.copy(system)
    # What all systems of a class share, this one has for itself.
    vars(larger)["frame"] = replace(system.frame, size=(scale * height, scale * width))
    return larger


__all__ = [
    "BY_HORIZON",
    "BY_PIXELS",
    "PLANNED",
    "decoders",
    "encoding",
    "of_frame",
    "rollouts",
]
