"""From the device to the host, where every transfer waits for everything before it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Arrays of tensors that nothing else refers to; from a GPU in one transfer."""
    if all(tensor.is_cpu for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    return in_one_transfer(tensors)


def in_one_transfer(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Arrays of tensors, which share no numbers but lie in one block of memory."""
    largest_first = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())  # aligned
    parts = [tensors[i].contiguous().flatten().view(torch.uint8) for i in largest_first]
    host = torch.cat(parts).cpu().numpy()
    ends = np.cumsum([len(part) for part in parts])
    arrays = dict(zip(largest_first, np.split(host, ends[:-1]), strict=True))
    return [
        arrays[i].view(str(tensor.dtype).removeprefix("torch.")).reshape(tensor.shape)
        for i, tensor in enumerate(tensors)
    ]


__all__ = ["in_one_transfer", "to_host"]
