"""Tensors of several types in one transfer."""

import numpy as np
import torch

from piwm_gym.transfer import in_one_transfer, to_host

TENSORS = (
    torch.tensor([[True], [False], [True]]),
    torch.arange(12, dtype=torch.float32).view(3, 4).t(),  # not contiguous
    torch.arange(6, dtype=torch.uint8).view(3, 2, 1),
    torch.tensor([-1, 2**40]),
    torch.zeros(0, 5),
)


def test_arrays_are_the_tensors() -> None:
    for arrays in (in_one_transfer(TENSORS), to_host(TENSORS)):
        for array, tensor in zip(arrays, TENSORS, strict=True):
            assert array.dtype == tensor.numpy().dtype
            assert np.array_equal(array, tensor.numpy())


def test_one_block_holds_arrays_that_are_aligned_and_apart() -> None:
    arrays = in_one_transfer(TENSORS)
    assert all(array.flags.aligned and array.flags.writeable for array in arrays)
    kept = [array.copy() for array in arrays]
    arrays[0][:] = False
    assert all(np.array_equal(a, b) for a, b in zip(arrays[1:], kept[1:], strict=True))
