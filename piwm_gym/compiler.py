"""Pure functions of tensors as machine code: for a CPU, or as kernels in a CUDA graph."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, library, nn
from torch.func import functional_call, functionalize
from torch.fx import GraphModule

Function = Callable[..., tuple[Tensor, ...]]
Step = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
_ONE_AT_A_TIME = Lock()
"""Neither tracing nor torch's compiler is made for several threads."""
ROUNDED = ("cos", "exp", "log", "sigmoid", "sin", "sqrt", "tan", "tanh")
"""Functions whose last bits are others where torch's compiler writes them."""


class CompilationError(RuntimeError):
    """Torch's compiler is there and fails: its C++ compiler does not work, or its cache."""


def available(device: torch.device) -> bool:
    """Whether torch has what it needs to compile: a C++ compiler, or Triton on a GPU."""
    if device.type == "cuda":
        return importlib.util.find_spec("triton") is not None
    return device.type == "cpu" and cpp_compiler() is not None


def cpp_compiler() -> str | None:
    """Path of a C++ compiler, that of the variable CXX if there is one."""
    names = filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++"))
    return next(filter(None, map(shutil.which, names)), None)


def host_code(
    function: Function, inputs: tuple[Tensor, ...], whole: bool = False, exact: bool = False
) -> Step:
    """Machine code for the CPU.

    Not by way of ``torch.compile``, whose checks before each call cost more than a small batch,
    nor with other checks: later inputs must have the example's shapes, types and strides.

    Args:
        function: Without side effects.
        inputs: An example of its arguments.
        whole: Whether it mostly computes integers. Torch's vectors of 64-bit integers are several
            times slower than what a C++ compiler makes of plain loops, which are asked for then.
        exact: Whether every bit has to be that of the function itself, which costs a little.

    Raises:
        CompilationError: It cannot be compiled here.
    """
    function(*inputs)  # what is cached at its first use must be there, or it would be traced
    with _ONE_AT_A_TIME, _compiling():
        compiled = _compile_for_host(function, inputs, whole, exact)
    call = getattr(compiled, "current_callable", None) or compiled  # without what debugs it
    return lambda inputs: call(list(inputs))


def _compile_for_host(
    function: Function, inputs: tuple[Tensor, ...], whole: bool, exact: bool
) -> Any:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
    if exact:
        graph = _with_rounded(graph)
    patch = {
        "cpp.simdlen": 1 if whole else None,
        "assert_indirect_indexing": False,
        "size_asserts": False,
    }
    with config.patch(patch):
        return compile_fx_inner(graph, list(inputs))


@contextmanager
def _compiling() -> Iterator[None]:
    """One kind of error for the many that torch raises."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise CompilationError(f"{type(error).__name__}: {reason}") from error


def _with_rounded(graph: GraphModule) -> GraphModule:
    """A graph that leaves some functions to torch, each once for the same numbers."""
    from torch.fx.passes.dialect.common.cse_pass import CSEPass

    done = CSEPass()(graph)
    assert done is not None
    once = done.graph_module
    for node in once.graph.nodes:
        node.target = _LEFT.get(node.target, node.target)
    once.recompile()
    return once


_OPERATIONS = library.Library("piwm_gym", "DEF")
for _name in ROUNDED:  # the same under names that torch's compiler does not know
    _OPERATIONS.define(f"{_name}(Tensor x) -> Tensor")
    _OPERATIONS.impl(_name, getattr(torch, _name), "CPU")
    _OPERATIONS.impl(_name, torch.empty_like, "Meta")
_LEFT = {
    getattr(torch.ops.aten, name).default: getattr(torch.ops.piwm_gym, name).default
    for name in ROUNDED
}


def cuda_graph(function: Function, inputs: tuple[Tensor, ...]) -> Step:
    """Kernels for a GPU, recorded in a CUDA graph.

    ``torch.compile`` cannot read all of the equations' Python, and refuses a ninth version of
    what it could read: it gets a graph of tensor operations, which is code of its own every time.

    Raises:
        CompilationError: It cannot be compiled here.
    """
    function(*inputs)  # as for the CPU
    with _ONE_AT_A_TIME, _compiling():
        from torch.fx.experimental.proxy_tensor import make_fx

        graph = make_fx(function)(*inputs)
        compiled = torch.compile(graph, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):  # it is recorded at the second run
            compiled(*inputs)
    return lambda inputs: tuple(x.clone() for x in compiled(*inputs))  # the next run overwrites


def with_weights(module: nn.Module, count: int) -> tuple[Function, tuple[Tensor, ...]]:
    """A module as a function of ``count`` inputs and its weights, and these weights.

    As inputs, not as constants: machine code in torch's cache then serves all checkpoints.
    """
    weights = dict((*module.named_parameters(), *module.named_buffers()))

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(weights, given[count:], strict=True))
        return functional_call(module, named, given[:count])

    # What is computed in place would not be compiled but left to torch.
    return functionalize(function), tuple(weight.detach() for weight in weights.values())


__all__ = [
    "CompilationError",
    "Function",
    "Step",
    "available",
    "cpp_compiler",
    "cuda_graph",
    "host_code",
    "with_weights",
]
