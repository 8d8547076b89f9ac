"""A graph as a standalone script that runs without fusioncache: for bug reports to compiler developers.

The script needs Thunder. Writing it needs neither Thunder nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import Template as Text

from fusioncache.ir import Arg, Const, Graph, NumberType, Op, Ref, TensorType, ValueType, refs_in

_SYMBOLIC_SIZE = 8
_TORCH_NAMES = {"bool8": "bool"}
"""Dtypes whose names in torch and Thunder differ."""
_NUMBERS = {"int": "2", "float": "2.0", "bool": "False", "complex": "2j"}
_SCRIPT = Text('''\
"""The template $name alone, with random inputs$about.

Needs torch and lightning-thunder, and nvFuser for --executor nvfuser. Not fusioncache.
    python repro.py --executor eager
"""

import argparse
import importlib.util
import statistics
import sys
import time
import types

import thunder
import thunder.core.prims as prims
import thunder.torch as ltorch
import torch
from thunder.core import devices, dtypes

HAS_GPU = torch.cuda.is_available()
DEVICE = "$device" if HAS_GPU else "cpu"
THUNDER_DEVICE = devices.Device(DEVICE)


def template($parameters):
$body


def arguments():
    return [
$arguments
    ]


def tensor(dtype, *shape):
    if dtype.is_floating_point:
        return torch.randn(shape, device=DEVICE).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, device=DEVICE, dtype=dtype)
    return torch.randint(0, 2, shape, device=DEVICE).to(dtype)


def executors(name):
    if name == "eager":
        return [thunder.pytorch_executor]
    if name == "inductor":
        from thunder.executors.torch_compile import torch_compile_ex

        return [torch_compile_ex, thunder.pytorch_executor]
    return [nvfuser(), thunder.pytorch_executor]


def nvfuser():
    import nvfuser_direct

    if importlib.util.find_spec("nvfuser") is None:
        # Thunder 0.2.6 asks a module of this name for a function that is in nvfuser_direct by now.
        shim = types.ModuleType("nvfuser")
        shim.compute_tensor_descriptor = nvfuser_direct.compute_tensor_descriptor
        shim.version = nvfuser_direct.version
        shim.__spec__ = importlib.machinery.ModuleSpec("nvfuser", None)
        sys.modules["nvfuser"] = shim
    from thunder.executors.nvfuserex_impl import ex

    return ex


def seconds(function, values):
    start = time.perf_counter()
    function(*values)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    best = "nvfuser" if HAS_GPU and importlib.util.find_spec("nvfuser_direct") else "eager"
    parser.add_argument("--executor", choices=["nvfuser", "inductor", "eager"], default=best)
    parser.add_argument("--calls", type=int, default=20, help="how many calls to time after the first")
    options = parser.parse_args()
    torch.manual_seed(0)
    values = arguments()
    function = thunder.jit(template, executors=executors(options.executor))
    first = seconds(function, values)
    later = [seconds(function, values) for _ in range(options.calls)]
    print(f"executor {options.executor}, device {DEVICE}, torch {torch.__version__}, thunder {thunder.__version__}")
    print(f"first call   {first:.6f} s")
    if later:
        print(f"later calls  {statistics.median(later):.6f} s (median of {len(later)})")


if __name__ == "__main__":
    main()
''')


def write_script(name: str, graph: Graph, arities: Sequence[int]) -> str:
    """Returns the text of the script.

    Args:
        name: of the template.
        graph: without parameters.
        arities: of its residual chains, which are written out in the graph.
    """
    device = next((type_.device for type_ in graph.inputs if isinstance(type_, TensorType)), "cpu")
    terms = ", ".join(map(str, arities))
    return _SCRIPT.substitute(
        name=name,
        about=f" and {terms} residual terms" if arities else "",
        device=device,
        parameters=", ".join(f"t{number}" for number in range(len(graph.inputs))),
        body="\n".join(f"    {line}" for line in _body(graph)),
        arguments="\n".join(f"        {_argument(type_)}," for type_ in graph.inputs),
    )


def _body(graph: Graph) -> Iterator[str]:
    for size in range(len(graph.inputs), graph.first_result):
        yield f"t{size} = {_size(graph, size)}"
    yield from (_statement(op, first) for op, first in graph.results())
    outputs = ", ".join(f"t{number}" for number in graph.outputs)
    yield f"return ({outputs}{',' if len(graph.outputs) == 1 else ''})"


def _size(graph: Graph, size: int) -> str:
    """Returns the expression of a symbolic size: a dimension of an input."""
    for number, type_ in enumerate(graph.inputs):
        for path, index in refs_in(type_):
            if index == size:
                return f"t{number}.shape[{path.lstrip('.')}]"
    raise ValueError(f"no input has the size %{size}")


def _statement(op: Op, first: int) -> str:
    results = [f"t{first + index}" if type_ else "_" for index, type_ in enumerate(op.outputs)]
    args = [_source(arg) for arg in op.args] + [f"{name}={_source(arg)}" for name, arg in op.kwargs]
    return f"{', '.join(results)} = {_function(op.name)}({', '.join(args)})"


def _function(name: str) -> str:
    space, _, function = name.partition(".")
    if space == "nvfuser":
        return f"nvfuser().opmap[{function!r}]"
    return f"{'ltorch' if space == 'torch' else space}.{function}"


def _source(arg: Arg) -> str:
    """Returns an argument as Python source."""
    if isinstance(arg, Ref):
        return f"t{arg.index}"
    if isinstance(arg, tuple):
        return f"({', '.join(map(_source, arg))}{',' if len(arg) == 1 else ''})"
    return _literal(arg)


def _literal(const: Const) -> str:
    match const.kind:
        case "float":
            return _float(const.text)
        case "complex":
            return f"complex({', '.join(map(_float, const.text.split()))})"
        case "str":
            return repr(const.text)
        case "dtype":
            return f"dtypes.{const.text}"
        case "torch.dtype":
            return f"torch.{const.text}"
        case "device":
            return "THUNDER_DEVICE"
    return const.text


def _float(text: str) -> str:
    value = repr(float.fromhex(text))
    return value if value[-1].isdigit() else f"float({value!r})"


def _argument(type_: ValueType) -> str:
    if isinstance(type_, NumberType):
        return _NUMBERS[type_.python_type]
    sizes = [str(_SYMBOLIC_SIZE if isinstance(size, Ref) else size) for size in type_.shape]
    dtype = type_.dtype.removesuffix("_")
    return f"tensor({', '.join([f'torch.{_TORCH_NAMES.get(dtype, dtype)}', *sizes])})"
