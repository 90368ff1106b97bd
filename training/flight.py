"""Which trajectories show which learnables, judged by what the encoder read.

free       trajectories in free motion from the first frame to the last: they show the motion
grounded   windows from shortly before a trajectory leaves free motion: they show what happens on
           the ground

Systems without a ground move freely always.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from piwm_gym.systems import System
from training.fit import Batch

CONTEXT = 10
"""Frames from which the start of a rollout is estimated."""
AFTER = 40
"""Frames of a grounded window from where it leaves free motion. The first impact hardly tells how
strong legs are; whether the rocking that follows brings the hull down does."""


def scene_of(batch: Batch) -> Tensor | None:
    """(N, S) scenes of a batch, or None where the system has none."""
    scene = batch.get("scene")
    return scene if scene is not None and scene.shape[-1] else None


def states_at_rest(system: System, visible: Float[Tensor, "*B C"]) -> Float[Tensor, "*B D"]:
    """States that look so and do not move."""
    states = visible.new_zeros(*visible.shape[:-1], len(system.variables))
    states[..., system.visible] = visible
    return states


def free_frames(system: System, batch: Batch) -> Bool[Tensor, "N T"]:
    """Whether each frame was taken in free motion."""
    state = states_at_rest(system, batch["configurations"])
    scene = scene_of(batch)
    return system.in_free_motion(state, None if scene is None else scene[:, None])


def free_trajectories(system: System, batch: Batch) -> Batch:
    """The trajectories in free motion throughout, without their scenes.

    Raises:
        ValueError: There are none.
    """
    keep = free_frames(system, batch).all(1)
    if not keep.any():
        raise ValueError(
            f"none of {len(keep)} trajectories is in free motion throughout by the encoder's "
            "reading; train the encoder longer or collect more"
        )
    return {name: tensor[keep] for name, tensor in batch.items() if name != "scene"}


def grounded_windows(system: System, batch: Batch) -> Batch:
    """The context before a trajectory first leaves free motion, and AFTER frames from there.

    Longer windows tell less: what happened before the touch blurs what it did. Where the
    trajectory ends earlier, its last frame is repeated.

    Returns:
        The batch's tensors, and ``valid`` (N, AFTER): whether a frame after the context is one.
    """
    free = free_frames(system, batch)
    first = (~free).int().argmax(1)
    keep = ~free.all(1) & (first >= CONTEXT)
    index = first[keep, None] - CONTEXT + torch.arange(CONTEXT + AFTER, device=free.device)
    windows = {name: _at(batch[name][keep], index) for name in ("configurations", "labels")}
    windows["actions"] = _at(batch["actions"][keep], index[:, :-1])
    windows["valid"] = index[:, CONTEXT:] < free.shape[1]
    return {name: tensor[keep] for name, tensor in batch.items() if name == "scene"} | windows


def _at(tensor: Tensor, index: Tensor) -> Tensor:
    """(N, L, ...) entries of an (N, T, ...) tensor at times (N, L); the last one beyond its end."""
    rows = torch.arange(len(tensor), device=tensor.device)[:, None]
    return tensor[rows, index.clamp(max=tensor.shape[1] - 1)]


def pieces(batch: Batch, frames: int) -> Batch:
    """Trajectories cut into windows of ``frames`` that share their end frames; the rest is left.

    A batch with shorter trajectories stays whole.
    """
    total = batch["labels"].shape[1]
    if total < frames:
        return batch
    firsts = range(0, total - frames + 1, frames - 1)
    lengths = {"configurations": frames, "labels": frames, "actions": frames - 1}
    return {
        name: torch.cat([batch[name][:, first : first + length] for first in firsts])
        for name, length in lengths.items()
    }


__all__ = [
    "CONTEXT",
    "free_frames",
    "free_trajectories",
    "grounded_windows",
    "pieces",
    "scene_of",
    "states_at_rest",
]
