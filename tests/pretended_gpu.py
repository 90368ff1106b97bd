"""Tensors that lie on a GPU which is not there, so that what is true of GPUs is tested everywhere.

Torch lets Python play a device ("PrivateUse1"). A tensor of this one holds a tensor on the CPU.
What mixes the two devices fails as it does on a GPU, and what a GPU's host would have to wait for
is counted. Kernels and speed are the CPU's: numbers are its own bits, and nothing is compiled.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("pretended")
_module: Any = torch.get_device_module("pretended")
_module.get_amp_supported_dtype = lambda: [torch.bfloat16]
_module.device_count = lambda: 0  # to keep its state of random numbers, which there is none of
DEVICE = torch.device("pretended:0")

_aten = torch.ops.aten
WAITING = {
    _aten._local_scalar_dense.default,  # item, bool, int, float
    _aten._unique2.default,
    _aten.bincount.default,
    _aten.equal.default,
    _aten.masked_select.default,
    _aten.nonzero.default,
    _aten.repeat_interleave.Tensor,
}
"""Operations whose result, or its size, the host has to know."""
INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
"""They take indices from the CPU, and have to count what a mask selects."""
COPYING = {_aten._to_copy.default, _aten.copy_.default}

waits: Counter[str] = Counter()
"""How often the host would have waited, by operation, since it was last cleared."""


class OnGpu(Tensor):
    """A tensor on :data:`DEVICE` with the numbers of one on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGpu":
        made: OnGpu = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """The one thing that it lies about to Python."""
        return True

    def tolist(self) -> Any:
        """Not an operation of torch's, so the dispatch does not see it."""
        waits["tolist"] += 1
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(operation, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Sees what no tensor of ours takes part in: what makes them."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(operation, args, kwargs or {})


def _run(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [tensor for tensor in given if isinstance(tensor, OnGpu)]
    asked = kwargs.get("device")
    there = bool(ours) if asked is None else torch.device(asked).type == DEVICE.type
    if operation is _aten.copy_.default:
        there = isinstance(args[0], OnGpu)
    _check(operation, given, ours)
    if _waits(operation, args, ours, there):
        waits[str(operation)] += 1
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = operation(*tree_map(_held, args), **tree_map(_held, kwargs))
    if not there:
        return result
    result = tree_map(_laid_there, result)
    return return_and_correct_aliasing(operation, args, kwargs, result) if ours else result


def _check(operation: Any, given: list[Tensor], ours: list[OnGpu]) -> None:
    """Single numbers on the CPU may go with tensors on a GPU, nothing else."""
    on_cpu = [tensor for tensor in given if not isinstance(tensor, OnGpu) and tensor.dim()]
    if ours and on_cpu and operation not in COPYING | INDEXING:
        raise RuntimeError(f"{operation} of tensors on {DEVICE} and on cpu")


def _waits(operation: Any, args: Any, ours: list[OnGpu], there: bool) -> bool:
    """Whether a GPU's host would have waited."""
    if operation in COPYING:  # memory that is not pinned is copied while the host waits
        source = args[1] if operation is _aten.copy_.default else args[0]
        return isinstance(source, OnGpu) != there
    if operation in INDEXING:
        masks = [i for i in args[1] if i is not None and (i.dtype == torch.bool or i.is_cpu)]
        return bool(ours and masks)
    return bool(ours) and operation in WAITING


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnGpu) else value


def _laid_there(value: Any) -> Any:
    return OnGpu(value) if isinstance(value, Tensor) and not isinstance(value, OnGpu) else value


def held(values: Any) -> Any:
    """Nested values with the tensors on the CPU instead of those on the GPU."""
    return tree_map(_held, values)


@contextmanager
def pretended_gpu() -> Iterator[torch.device]:
    """There is a GPU: this device. Modules that move there get new parameters."""
    waits.clear()
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)  # what torch.tensor makes goes through the dispatch
    try:
        with _Factories():
            yield DEVICE
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)


__all__ = ["DEVICE", "OnGpu", "held", "pretended_gpu", "waits"]
