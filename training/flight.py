"""Which trajectories show which learnables, judged by what the encoder read.

free       in free motion from the first frame to the last: they show the motion
grounded   free for the context, from which the start is estimated, and not free later: they show
           what happens on the ground

Systems without a ground move freely always.
"""

import torch
from jaxtyping import Bool
from torch import Tensor

from piwm_gym.systems import System
from training.fit import Batch

CONTEXT = 10
"""Frames from which the start of a rollout is estimated."""


def scene_of(batch: Batch) -> Tensor | None:
    """(N, S) scenes of a batch, or None where the system has none."""
    scene = batch.get("scene")
    return scene if scene is not None and scene.shape[-1] else None


def free_frames(system: System, batch: Batch) -> Bool[Tensor, "N T"]:
    """Whether each frame was taken in free motion."""
    configurations = batch["configurations"]
    state = configurations.new_zeros(*configurations.shape[:-1], len(system.variables))
    state[..., system.visible] = configurations
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


def grounded_trajectories(system: System, batch: Batch) -> Batch:
    """The trajectories that are free for the context and reach the ground later."""
    free = free_frames(system, batch)
    keep = free[:, :CONTEXT].all(1) & ~free.all(1)
    return {name: tensor[keep] for name, tensor in batch.items()}


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
    "grounded_trajectories",
    "pieces",
    "scene_of",
]
