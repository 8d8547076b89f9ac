"""Compiles a graph with TorchInductor and takes the result apart: the wrapper, and the libraries that it calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from fusioncache.backends.inductor.joined_kernels import Kernel, read_kernel
from fusioncache.backends.inductor.language import EXTERNAL, OPERATIONS, TORCH_FUNCTIONS, check_wrapper
from fusioncache.ir import Declined, Scope


@dataclass(frozen=True, slots=True)
class Package:
    """A compiled graph, taken apart.

    Attributes:
        wrapper: the function that calls the kernels, as text.
        code: the same, compiled.
        kernels: that the wrapper calls, by the names that it has for them.
        source: the kernels' C++, for people. Nothing depends on it, and it may be empty.
        outputs: how many the wrapper returns.
        alone_seconds: estimate of what compiling the graph alone takes, if it was compiled together with others.
    """

    wrapper: str
    code: CodeType
    kernels: Mapping[str, Kernel]
    source: str
    outputs: int
    alone_seconds: float | None = None

    @property
    def functions(self) -> dict[str, Any]:
        """The kernels' functions, by the same names."""
        return {name: kernel.function for name, kernel in self.kernels.items()}


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph that TorchInductor wrote code for. Of its kernels some may not be compiled yet.

    Attributes:
        wrapper: as in ``Package``.
        code: the same.
        functions: what the wrapper calls, by name: compiled kernels, and collected ones.
        source: as in ``Package``.
        outputs: the same.
    """

    wrapper: str
    code: CodeType
    functions: Mapping[str, Any]
    source: str
    outputs: int

    def pack(self) -> Package:
        """Returns the package. A kernel that was collected and not compiled is compiled alone.

        Raises:
            Declined: if a kernel is in no library.
        """
        kernels = {name: read_kernel(function) for name, function in self.functions.items()}
        return Package(self.wrapper, self.code, kernels, self.source, self.outputs)


@dataclass(frozen=True, slots=True)
class Fakes:
    """Arguments without numbers in them, to trace a function with.

    Attributes:
        mode: that they are made in.
        args: tensors, each by itself, as code for f(x, x) must be right for f(x, y), and symbolic integers.
    """

    mode: Any
    args: Sequence[Any]


def fake(args: Sequence[Any]) -> Fakes:
    """Returns fakes of tensors, of the same layouts."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=arg.device) for arg in args]
    return Fakes(mode, fakes)


def make_package(function: Callable[..., Any], fakes: Fakes, mode: str | None) -> Package:
    """Compiles, for such arguments, a function of torch operations that returns a list of tensors."""
    return lower(function, fakes, mode).pack()


def lower(function: Callable[..., Any], fakes: Fakes, mode: str | None) -> Lowered:
    """Has TorchInductor write code for a function of torch operations, and compile kernels that are not collected.

    Raises:
        Declined: if the code could not be kept.
    """
    compiled = compile_graph(function, fakes, mode)
    source = getattr(compiled, "source_code", None)
    if source is None:
        raise Declined("nothing to compile", Scope.STORING)
    if compiled.mutated_input_idxs:
        raise Declined("in-place effects", Scope.STORING)
    if compiled.constants or compiled.torchbind_constants:
        raise Declined("constant tensors", Scope.STORING)
    wrapper, outputs = read_wrapper(source)
    call = compiled.current_callable
    values = getattr(getattr(call, "__func__", call), "__globals__", {})
    functions = {
        name: values[name] for name in _names_of_calls(wrapper) if name not in TORCH_FUNCTIONS and name in values
    }
    code = check_wrapper(wrapper, functions)
    check_operations(values.get(EXTERNAL))
    return Lowered(wrapper, code, functions, _cpp(source, functions), outputs)


def compile_graph(function: Callable[..., Any], fakes: Fakes, mode: str | None) -> Any:
    """Makes what torch.compile calls once its guards have passed: TorchInductor's ``CompiledFxGraph``.

    The way there is that of torch.compile from AOTAutograd on. Dynamo is left out: Thunder's function is straight-line
    code, which tracing alone turns into a graph. Its parameters and results then are the region's, one for one.
    """
    import torch
    from torch._dynamo.convert_frame import compile_lock
    from torch._functorch import config as functorch_config
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch.fx.experimental.proxy_tensor import make_fx

    from fusioncache.thunder_adapter.api import no_autocast

    found = []

    def inner(*args: Any, **kwargs: Any) -> Any:
        found.append(compile_fx_inner(*args, **kwargs))
        return found[-1]

    def lower() -> None:
        with fakes.mode:
            traced = make_fx(function)(*fakes.args)
        options = list_mode_options(mode) if mode else {}
        # A hit in AOTAutograd's cache would go round ``inner``. TorchInductor's own cache of graphs stays out of it, as
        # there is no context of Dynamo's; its cache of libraries does not.
        with functorch_config.patch(enable_autograd_cache=False):
            compile_fx(traced, fakes.args, inner_compile=inner, config_patches=options)

    with compile_lock:
        torch.no_grad()(no_autocast(lower))()
    if len(found) != 1:
        raise Declined(f"{len(found)} graphs in place of one", Scope.STORING)
    return found[0]


def check_operations(external: Any) -> None:
    """Refuses operations that are not torch's own: TorchInductor lets them be replaced."""
    import torch

    if any(
        getattr(external, name, own) is not own for name, own in ((name, getattr(torch, name)) for name in OPERATIONS)
    ):
        raise Declined("an operation that was replaced", Scope.STORING)


def read_wrapper(source: str) -> tuple[str, int]:
    """Reads the function in the module that TorchInductor wrote, as a text of its own, and counts its outputs."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "call"
    ]
    if len(functions) != 1:
        raise Declined("a wrapper in several parts", Scope.STORING)
    body = [statement for statement in functions[0].body if ast.unparse(statement) != "args.clear()"]
    if not body or not isinstance(body[-1], ast.Return) or not isinstance(body[-1].value, ast.Tuple):
        raise Declined("a wrapper without a plain return", Scope.STORING)
    outputs = body[-1].value.elts
    body[-1] = ast.Return(ast.List(outputs, ast.Load()))
    text = "\n    ".join(["def call(args):", *(line for node in body for line in ast.unparse(node).splitlines())])
    return text + "\n", len(outputs)


def _cpp(source: str, kernels: Collection[str]) -> str:
    """Collects the C++ of kernels, each below its name, as far as it is in the module that TorchInductor wrote."""
    texts = []
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign([ast.Name(name)], ast.Call(args=[*_, ast.Constant(str(text))])) if name in kernels:
                texts.append(f"// {name}\n{text.strip()}\n")
    return "\n".join(texts)


def _names_of_calls(wrapper: str) -> list[str]:
    """Returns the names of the functions that a wrapper calls, in order, each once."""
    calls = [node.func for node in ast.walk(ast.parse(wrapper)) if isinstance(node, ast.Call)]
    return list(dict.fromkeys(function.id for function in calls if isinstance(function, ast.Name)))
