"""Several processes under torchrun; every function also works in a single process."""

import os
from typing import TypeVar

import torch
import torch.distributed as dist

# Its functions keep, as a default, the process group there is when it is first imported, which
# DistributedDataParallel would do after that group was made: gloo's threads then outlive
# destroy_process_group and may abort the process as it exits.
import torch.distributed.nn.functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Value = TypeVar("Value")


def initialize() -> None:
    """Join the process group if torchrun started this process."""
    if "RANK" in os.environ and not dist.is_initialized():
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if cuda else "gloo")


def finalize() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Index of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def barrier() -> None:
    """Wait for all processes."""
    if dist.is_initialized():
        dist.barrier()


def wrap(stage: nn.Module) -> nn.Module:
    """Average gradients over the processes; a single process needs no wrapper."""
    if world_size() == 1:
        return stage
    return DistributedDataParallel(stage, broadcast_buffers=False, find_unused_parameters=True)


def agreed(value: Value) -> Value:
    """The first process's value, for decisions that all have to take alike."""
    values = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values, 0)
    return values[0]


@torch.no_grad()
def broadcast(module: nn.Module) -> None:
    """Give all processes the first one's parameters and buffers."""
    if world_size() > 1:
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor, 0)
