"""Compiled code as artifacts and back: a signature, the text of a wrapper, and the libraries of its kernels.

TorchInductor's output is split into these parts. A wrapper must be in a small language, or it is not compiled.

Conditions state what sizes and strides must satisfy for code to be correct. They are texts in a language of integers;
some are guards of torch's shape environment. A text has integers, names of integers, sums, differences, products,
quotients without remainder, remainders, comparisons, and, or, not; it has no calls, attributes or subscripts.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Annotated, Any

from fusioncache.backends.api import Description, GraphSource, Run
from fusioncache.backends.inductor.joined_kernels import ENTRY, Kernel, read_kernel
from fusioncache.ir import Declined, Graph, Scope, codec
from fusioncache.process import forks

_LONGEST_CONDITION = 10_000
_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)


def check_condition(text: str, names: Collection[str]) -> None:
    """Checks that a text is in the language and has no other names.

    Raises:
        Declined: names what is not allowed.
    """
    unknown = set(_compile_condition(text).co_names).difference(names)
    if unknown:
        raise Declined(f"a condition with the name {min(unknown)[:60]}", Scope.STORING)


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Returns the value of a text for these integers, which may be symbolic.

    Raises:
        Declined: if it is not in the language.
        NameError, ZeroDivisionError: if a name has no value, or something is divided by zero.
    """
    return eval(_compile_condition(text), {"__builtins__": {}}, dict(values))


def _compile_condition(text: str) -> CodeType:
    if len(text) > _LONGEST_CONDITION:
        raise Declined("a long condition", Scope.STORING)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Declined("a condition that is no Python", Scope.STORING) from error
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or (isinstance(node, ast.Constant) and type(node.value) not in (int, bool)):
            raise Declined(f"a condition with {type(node).__name__}", Scope.STORING)
    return compile(tree, "<a condition on sizes>", "eval", dont_inherit=True)


TORCH_FUNCTIONS = {
    "assert_size_stride": "assert_size_stride",
    "empty_strided_cpu": "_empty_strided_cpu",
    "reinterpret_tensor": "_reinterpret_tensor",
}
"""The functions that a wrapper may call besides kernels, with their names in ``torch._C._dynamo.guards``."""
OPERATIONS = ("mm", "bmm", "addmm", "baddbmm")
"""Torch functions that a wrapper may call as attributes of TorchInductor's ``extern_kernels``."""
EXTERNAL = "extern_kernels"
_OPERATIONS = frozenset((EXTERNAL, operation) for operation in OPERATIONS)
_KEYWORDS = frozenset({"out", "alpha", "beta"})
RESERVED = frozenset({"call", "torch", "args", EXTERNAL, *TORCH_FUNCTIONS})
"""Names that no kernel may have."""
_STATEMENTS = (ast.Assign, ast.Delete, ast.Expr, ast.Return)
_EXPRESSIONS = (
    ast.Call,
    ast.Name,
    ast.Tuple,
    ast.List,
    ast.Constant,
    ast.UnaryOp,
    ast.USub,
    # Arithmetic on sizes, in code for any sizes.
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Attribute,
    ast.keyword,
)
_CONTEXTS = (ast.Load, ast.Store, ast.Del)
_LONGEST = 4_000_000
_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


def check_wrapper(wrapper: str, kernels: Collection[str]) -> CodeType:
    """Compiles the text of a wrapper of these kernels, after a check that it does nothing else.

    Raises:
        Declined: names what is not allowed.
    """
    if len(wrapper) > _LONGEST:
        raise Declined("a long wrapper", Scope.STORING)
    try:
        tree = ast.parse(wrapper)
        code = compile(tree, "<TorchInductor's wrapper, kept>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Declined("a wrapper that is no Python", Scope.STORING) from error
    match tree.body:
        case [
            ast.FunctionDef("call", ast.arguments([], [ast.arg("args", None)], None, [], [], None, []), body, [], None)
        ]:
            _check_body(body, {*TORCH_FUNCTIONS, *kernels})
        case _:
            raise Declined("a wrapper that is no single function", Scope.STORING)
    return code


def _check_body(body: Sequence[ast.stmt], functions: set[str]) -> None:
    if any(not isinstance(statement, _STATEMENTS) for statement in body):
        raise Declined("a wrapper with control flow", Scope.STORING)
    nodes = [node for statement in body for node in ast.walk(statement)]
    given = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    if given & {*functions, *RESERVED}:
        raise Declined("a wrapper that redefines what it uses", Scope.STORING)
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    called = {id(part) for function in calls for part in (function, getattr(function, "value", None))}
    for node in nodes:
        if id(node) not in called:
            _check_node(node, functions, {*given, "torch", "args"})


def _check_node(node: ast.AST, functions: set[str], values: set[str]) -> None:
    """Checks any node except those that name the called function."""
    match node:
        case ast.Attribute(ast.Name("torch"), dtype, ast.Load()) if dtype in _DTYPES:
            pass
        case ast.Attribute():
            raise Declined(f"a wrapper that uses {node.attr[:60]}", Scope.STORING)
        case ast.Call(ast.Name(name), _, []) if name in functions:
            pass
        case ast.Call(ast.Attribute(ast.Name(name), operation), _, keywords) if (name, operation) in _OPERATIONS:
            if not _KEYWORDS.issuperset(keyword.arg for keyword in keywords):
                raise Declined(f"a wrapper that calls {operation} in another way", Scope.STORING)
        case ast.Call():
            raise Declined(
                f"a wrapper that calls {getattr(node.func, 'attr', getattr(node.func, 'id', ''))[:60]}", Scope.STORING
            )
        case ast.Name(name) if name not in values:
            raise Declined(f"a wrapper that uses {name[:60]}", Scope.STORING)
        case ast.Constant(value) if type(value) not in (int, float, bool, type(None)):
            raise Declined(f"a wrapper with a literal of type {type(value).__name__}", Scope.STORING)
        case _ if not isinstance(node, _STATEMENTS + _EXPRESSIONS + _CONTEXTS):
            raise Declined(f"a wrapper with {type(node).__name__}", Scope.STORING)


def define(code: CodeType, kernels: Mapping[str, Any]) -> Run:
    """Returns the function that a checked text defines.

    Neither it nor the kernels hold state, so threads may call it at the same time. Autograd and autocast act on
    dispatched operations, so both are off if the wrapper contains any.
    """
    import torch

    guards = torch._C._dynamo.guards
    names = {name: getattr(guards, theirs) for name, theirs in TORCH_FUNCTIONS.items()}
    operations = SimpleNamespace(**{name: getattr(torch, name) for name in OPERATIONS})
    names |= {"__builtins__": {}, "torch": torch, EXTERNAL: operations, **kernels}
    exec(code, names)
    run = names["call"]
    if EXTERNAL not in run.__code__.co_names:
        return run

    def run_as_it_is(args: Sequence[Any]) -> Sequence[Any]:
        with torch.no_grad(), torch._C._DisableAutocast():
            return run(args)

    return run_as_it_is


@dataclass(frozen=True, slots=True)
class Package:
    """The parts of TorchInductor's code for a graph. Some of its kernels may not be compiled yet.

    Attributes:
        wrapper: the function that calls the kernels, as text.
        code: the same, compiled.
        functions: the kernels that the wrapper calls, by name: compiled or collected ones.
        source: the kernels' C++, for people. Nothing depends on it, and it may be empty.
        outputs: how many the wrapper returns.
        conditions: on sizes and strides, if it is code for any sizes.
        alone_seconds: estimate of the seconds to compile the graph alone.
    """

    wrapper: str
    code: CodeType
    functions: Mapping[str, Any]
    source: str
    outputs: int
    conditions: tuple[str, ...] = ()
    alone_seconds: float = 0.0

    def read_kernels(self) -> dict[str, Kernel]:
        """Returns the kernels by their names in the wrapper. Compiles a collected one alone if it is not compiled yet.

        Raises:
            Declined: if a kernel is in no library.
        """
        return {name: read_kernel(function) for name, function in self.functions.items()}


@dataclass(frozen=True, slots=True)
class Fakes:
    """Arguments without data, for tracing a function.

    Attributes:
        mode: the mode in which they are made.
        args: tensors and symbolic integers. No two are the same tensor, as code for f(x, x) must be right for f(x, y).
    """

    mode: Any
    args: Sequence[Any]


def fake(inputs: Iterable[TensorKind], mode: Any = None) -> Fakes:
    """Returns fake tensors of these kinds, made in a mode, by default in a new one. Sizes may be symbolic."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [
            torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype), device="cpu")
            for dtype, sizes, strides in inputs
        ]
    return Fakes(mode, fakes)


def lower(function: Callable[..., Any], fakes: Fakes, mode: str | None) -> Package:
    """Returns TorchInductor's code for a function of torch operations. Kernels that are not collected are compiled.

    Raises:
        Declined: if the code could not be stored.
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
    return Package(wrapper, code, functions, _cpp(source, functions), outputs)


def compile_graph(function: Callable[..., Any], fakes: Fakes, mode: str | None) -> Any:
    """Returns TorchInductor's ``CompiledFxGraph``, which torch.compile calls once its guards have passed.

    The pipeline is that of torch.compile from AOTAutograd on. Dynamo is left out: Thunder's function is straight-line
    code, so tracing it gives a graph whose parameters and results are exactly the region's.
    """
    import torch
    from torch._dynamo.convert_frame import compile_lock
    from torch._functorch import config as functorch_config
    from torch._guards import TracingContext, tracing
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
        patches: dict[str, Any] = list_mode_options(mode) if mode else {}
        # A hit in AOTAutograd's cache would bypass ``inner``. TorchInductor's cache of graphs ignores the number of
        # threads, which decides how code sums. Its cache of libraries is used.
        patches["fx_graph_cache"] = patches["fx_graph_remote_cache"] = False
        # TorchInductor does not find the environment of symbols by itself if no argument is a tensor.
        context = tracing(TracingContext(fakes.mode)) if fakes.mode.shape_env else nullcontext()
        with context, functorch_config.patch(enable_autograd_cache=False):
            compile_fx(traced, fakes.args, config_patches=patches, inner_compile=inner)

    with compile_lock, torch.no_grad():
        no_autocast(lower)()
    if len(found) != 1:
        raise Declined(f"{len(found)} graphs in place of one", Scope.STORING)
    return found[0]


def check_operations(external: Any) -> None:
    """Raises an error if an operation is not torch's, because TorchInductor lets users replace them.

    Raises:
        Declined: if one was replaced.
    """
    import torch

    own = {name: getattr(torch, name) for name in OPERATIONS}
    if any(getattr(external, name, function) is not function for name, function in own.items()):
        raise Declined("an operation that was replaced", Scope.STORING)


def read_wrapper(source: str) -> tuple[str, int]:
    """Returns the text of the function in TorchInductor's module, and the number of its outputs."""
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
    """Returns the C++ of kernels, each below its name, as far as TorchInductor's module contains it."""
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


FORMAT = 5

_SIGNATURE, _WRAPPER, _KERNEL = "signature.json", "wrapper.py", "kernel-{}.so"
_SOURCE = "kernels.cpp"
"""The kernels' C++, for people. No digest includes it, and loading ignores it."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MOST_LOADED = 64
"""The most libraries whose bytes are held, so that each is loaded only once."""

_Identifier = Annotated[str, _NAME]

TensorKind = tuple[str, tuple[int, ...], tuple[int, ...]]
"""Dtype, sizes and strides of a tensor."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments that artifacts are for, and the digests of all artifacts.

    Attributes:
        inputs: dtype, sizes and strides of each argument.
        outputs: how many there are.
        threads: the number of threads for which the code divides its work.
        kernels: for each one its name, the number of its library, and its name in the library.
        libraries: the digest of each.
        wrapper: its digest.
        conditions: on sizes and strides, if it is code for any sizes.
    """

    inputs: tuple[TensorKind, ...]
    outputs: int
    threads: int
    kernels: tuple[tuple[_Identifier, int, _Identifier], ...]
    libraries: tuple[str, ...]
    wrapper: str
    conditions: tuple[str, ...]

    def validate(self) -> None:
        """Raises ``ValueError`` if two kernels have one name, or one has a reserved name or an unknown library."""
        names = {name for name, _, _ in self.kernels}
        if len(names) != len(self.kernels) or RESERVED & names:
            raise ValueError("has kernels of reserved names, or of one name")
        if any(library >= len(self.libraries) for _, library, _ in self.kernels):
            raise ValueError("has a kernel in an unknown library")


def pack(package: Package, kernels: Mapping[str, Kernel], inputs: tuple[TensorKind, ...]) -> dict[str, bytes]:
    """Returns the artifacts of compiled code.

    Args:
        package: the code.
        kernels: the kernels that its wrapper calls.
        inputs: the kinds of arguments that it was compiled for.
    """
    import torch

    text = package.wrapper.encode()
    libraries = list(dict.fromkeys(kernel.library for kernel in kernels.values()))
    signature = Signature(
        inputs,
        package.outputs,
        torch.get_num_threads(),
        tuple((name, libraries.index(kernel.library), kernel.name) for name, kernel in kernels.items()),
        tuple(map(_digest, libraries)),
        _digest(text),
        package.conditions,
    )
    files = {_KERNEL.format(number): library for number, library in enumerate(libraries)}
    if package.source:
        files[_SOURCE] = package.source.encode(errors="replace")
    return {_SIGNATURE: codec.encode(signature, format=FORMAT), _WRAPPER: text, **files}


def read_signature(artifacts: Mapping[str, bytes]) -> Signature:
    """Returns the signature among artifacts.

    Raises:
        ValueError: if it does not exist of this format.
    """
    if _SIGNATURE not in artifacts:
        raise ValueError(f"artifacts without {_SIGNATURE}")
    return codec.decode(Signature, artifacts[_SIGNATURE], "signature", format=FORMAT)


def unpack(artifacts: Mapping[str, bytes], signature: Signature) -> tuple[bytes, list[bytes]]:
    """Returns the wrapper, and the libraries.

    Raises:
        ValueError: if one is missing or damaged.
    """
    files = ((_KERNEL.format(number), digest) for number, digest in enumerate(signature.libraries))
    libraries = [_read_whole(artifacts, file, digest) for file, digest in files]
    return _read_whole(artifacts, _WRAPPER, signature.wrapper), libraries


def check_arguments(signature: Signature, graph: Graph, args: Sequence[Any], *, any_size: bool) -> None:
    """Checks that code is for this graph and these arguments, which need not be plain tensors.

    Args:
        signature: of the code.
        graph: the graph.
        args: the arguments.
        any_size: whether the code is for any sizes and layouts.

    Raises:
        ValueError: names the mismatch.
    """
    import torch

    if not all(isinstance(arg, torch.Tensor) and arg.device.type == "cpu" for arg in args):
        raise ValueError("stored code is for tensors on the CPU")
    found = tuple((str(arg.dtype).removeprefix("torch."), tuple(arg.shape), tuple(arg.stride())) for arg in args)
    if any_size:
        types = [[(dtype, len(sizes)) for dtype, sizes, _ in inputs] for inputs in (signature.inputs, found)]
        if types[0] != types[1]:
            raise ValueError("stored code is for arguments of other types")
    elif signature.inputs != found or len(graph.inputs) != len(args):
        raise ValueError("stored code is for arguments of another layout")
    if signature.outputs != len(graph.outputs):
        raise ValueError("stored code has another number of outputs")
    if signature.threads != torch.get_num_threads():
        raise ValueError("stored code is for another number of threads")


def describe(artifacts: Mapping[str, bytes]) -> Description:
    """See ``Backend.describe``. A wrapper that only makes views has no kernels and no source."""
    sources = tuple(
        GraphSource(name, language, artifacts[name].decode(errors="replace"))
        for name, language in ((_SOURCE, "cpp"), (_WRAPPER, "python"))
        if name in artifacts
    )
    return Description(sources, lacks_source=_SOURCE not in artifacts and _KERNEL.format(0) in artifacts)


def _read_whole(artifacts: Mapping[str, bytes], name: str, digest: str) -> bytes:
    content = artifacts.get(name)
    if content is None or _digest(content) != digest:
        raise ValueError(f"{name} is missing or damaged")
    return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_ADDRESS = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
"""The variable from which a library reads, while it is loaded, the address of the function for data pointers."""

_loading = forks.lock()


def load_kernels(signature: Signature, libraries: Sequence[bytes]) -> dict[str, Any]:
    """Returns the kernels of libraries, by their names in the wrapper.

    Raises:
        ImportError: if a library does not load.
    """
    modules = list(map(load_module, libraries))
    return {name: find_kernel(modules[number], function) for name, number, function in signature.kernels}


@lru_cache(_MOST_LOADED)
def load_module(library: bytes) -> Any:
    """Loads a library once for all regions with a kernel in it. Its file exists only during the load.

    Raises:
        ImportError: if it does not load.
    """
    with tempfile.TemporaryDirectory(prefix="fusioncache-", ignore_cleanup_errors=True) as folder:
        return load_library(library, Path(folder))


def find_kernel(module: Any, name: str) -> Any:
    """Returns a kernel of a library.

    Raises:
        ImportError: if the library has no kernel of this name.
    """
    kernel = getattr(module, name, None)
    if kernel is None:
        raise ImportError("no kernel in it")
    return kernel


def load_library(library: bytes, folder: Path) -> Any:
    """Loads one library, as TorchInductor does, from a file in this folder."""
    import torch

    # For a path that they have seen before, both the system and Python return the library that they already loaded.
    number = uuid.uuid4().hex
    path, name = folder / f"{number}.so", f"fusioncache_{number}.{ENTRY}"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o700), "wb") as file:
        file.write(library)
    with _loading:
        os.environ[_ADDRESS] = str(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)
        loader = importlib.machinery.ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_loader(name, loader, origin=str(path))
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules.pop(name, None)  # such a module adds itself
    return module
