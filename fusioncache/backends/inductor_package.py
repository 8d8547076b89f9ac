"""TorchInductor's code as bytes that another process can load.

What TorchInductor makes of a graph on the CPU is one shared library a kernel and a Python function, the wrapper, that
allocates and calls them. Both are kept: the libraries as they are, the wrapper as text. Loading neither compiles nor
unpickles; it needs a few functions of torch's C extension and no module of TorchInductor.

The text is one of a small language: allocations, views, kernel calls. It is checked when it is kept and again when it
is loaded, so that a wrapper that does anything else is never kept. That is no protection against an attacker: kernels
are machine code, and whoever can write them can do anything. Load only what is trusted as much as the program itself.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from fusioncache.backends.inductor import Inductor
from fusioncache.backends.made import Made, NotKept
from fusioncache.ir import Graph, TensorType

FORMAT = 1

Run = Callable[[Sequence[Any]], Any]

_SIGNATURE, _WRAPPER, _KERNEL = "signature.json", "wrapper.py", "kernel-{}.so"
_ENTRY = "kernel"
"""What TorchInductor calls the module in each library, and the function in it."""
_ADDRESS = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
"""The variable in which a library looks, while it is loaded, for the function that gives a tensor's address."""

_TORCH_FUNCTIONS = {
    "assert_size_stride": "assert_size_stride",
    "empty_strided_cpu": "_empty_strided_cpu",
    "reinterpret_tensor": "_reinterpret_tensor",
}
"""What a wrapper may call besides kernels, with its name in ``torch._C._dynamo.guards``."""
_STATEMENTS = (ast.Assign, ast.Delete, ast.Expr, ast.Return)
_EXPRESSIONS = (ast.Call, ast.Name, ast.Tuple, ast.List, ast.Constant, ast.UnaryOp, ast.USub, ast.Attribute)
_CONTEXTS = (ast.Load, ast.Store, ast.Del)
_LONGEST = 4_000_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)

_counter = itertools.count()
_loading = threading.Lock()


class InductorKeeper:
    """Compiles as ``Inductor`` does, bit for bit, and gives the code as bytes as well.

    Args:
        backend: whose code to keep.
        scratch: where libraries lie for the moment of being loaded; the system's directory for temporary files if None.
            It must be on a file system that code may be run from.
    """

    def __init__(self, backend: Inductor, scratch: Path | None = None):
        self._backend = backend
        self._scratch = scratch

    def environment(self) -> Mapping[str, str]:
        """What kept code depends on beyond ``Inductor.environment``: ingredients of a key, by name."""
        import torch
        from torch._inductor import config

        build = f"{torch.__version__} {torch.version.git_version} C++11 ABI {torch._C._GLIBCXX_USE_CXX11_ABI}"
        settings = [f"threads {torch.get_num_threads()}", f"float32 {torch.get_float32_matmul_precision()}"]
        settings += [f"deterministic {torch.are_deterministic_algorithms_enabled()}"]
        settings += [f"{name} {value!r}" for name, value in sorted(config.save_config_portable().items())]
        return {
            "inductor format": str(FORMAT),
            "inductor torch": build,
            "inductor python": str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag),
            "inductor platform": _platform(),
            "inductor processor": f"{torch.backends.cpu.get_cpu_capability()} {_vector_units()}\n{_processor()}",
            "inductor compiler": _compiler(tuple(map(str, filter(None, _listed(config.cpp.cxx))))),
            "inductor settings": hashlib.sha256("\n".join(settings).encode()).hexdigest(),
        }

    def compile(self, graph: Graph, args: Sequence[Any]) -> Made:
        """The compiled graph and the artifacts to load it from, or the reason why there are none.

        Raises:
            Whatever ``Inductor.compile`` raises, which is asked where code cannot be kept.
        """
        from fusioncache.backends.bound_symbols import bind
        from fusioncache.backends.torch_function import torch_function

        try:
            _refuse_unkeepable(graph, args)
            bound = bind(graph)
            function = torch_function(bound.bound_symbols, bound.inputs, bound.outputs)
            package = _package(function, args, self._backend._mode)
            if package.outputs != len(graph.outputs):
                raise NotKept("outputs of TorchInductor's own")
            run = _function(package.code, package.kernels)
            run(args)  # what cannot run shows here
            return Made(run, _artifacts(package, args), None)
        except NotKept as refusal:
            reason = str(refusal)
        except Exception as error:  # a region that fails here may well work with torch.compile
            reason = f"{type(error).__name__} where its code is to be kept"
        return Made(self._backend.compile(graph, args), None, reason)

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """The function that was kept as these artifacts. Nothing is compiled, nothing is run.

        Raises:
            ValueError: if they are none of this format, or not for this graph and arguments of this layout.
            OSError: if there is no room for temporary files.
        """
        signature = _read_signature(artifacts)
        _refuse_unfitting(signature, graph, args)
        libraries = {
            name: _whole(artifacts, _KERNEL.format(at), sha) for at, (name, sha) in enumerate(signature.kernels)
        }
        wrapper = _whole(artifacts, _WRAPPER, signature.wrapper)
        try:
            code = _checked(wrapper.decode(), libraries)
            return _function(code, _loaded(libraries, self._scratch))
        except ImportError as error:
            raise ValueError(f"a kernel that does not load: {error}") from error


# --- making -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Package:
    """A compiled graph: the wrapper, as text and as code, and by name the kernels that it calls and their libraries."""

    wrapper: str
    code: CodeType
    kernels: Mapping[str, Any]
    libraries: Mapping[str, bytes]
    outputs: int


def _refuse_unkeepable(graph: Graph, args: Sequence[Any]) -> None:
    if not all(isinstance(type_, TensorType) for type_ in graph.inputs):
        raise NotKept("a number among the inputs")
    if not args:
        raise NotKept("no inputs")
    if (problem := _no_plain_tensor(args)) is not None:
        raise NotKept(problem)
    # Thunder names in-place operations as torch does. What slips through is found again in what was compiled.
    if any(op.name.endswith("_") and not op.name.endswith("__") for op in graph.ops):
        raise NotKept("in-place effects")


def _no_plain_tensor(args: Sequence[Any]) -> str | None:
    """What is among the arguments that kernels, which read memory as it lies there, cannot read."""
    import torch

    for arg in args:
        if type(arg) not in (torch.Tensor, torch.nn.Parameter):
            return f"an argument of type {type(arg).__name__}"
        if arg.device.type != "cpu":
            return f"a tensor on a device of type {arg.device.type}"
        if arg.layout != torch.strided or arg.is_quantized or arg.is_conj() or arg.is_neg():
            return "a tensor that is not stored plainly"
    return None


def _package(function: Callable[..., Any], args: Sequence[Any], mode: str | None) -> _Package:
    """A function of torch operations, which takes tensors and returns a list of them, compiled for such arguments."""
    compiled = _compiled(function, args, mode)
    source = getattr(compiled, "source_code", None)
    if source is None:
        raise NotKept("nothing to compile")
    if compiled.mutated_input_idxs:
        raise NotKept("in-place effects")
    if compiled.constants or compiled.torchbind_constants:
        raise NotKept("constant tensors")
    wrapper, outputs = _wrapper(source)
    call = compiled.current_callable
    values = getattr(getattr(call, "__func__", call), "__globals__", {})
    kernels = {name: values[name] for name in _called(wrapper) if name not in _TORCH_FUNCTIONS and name in values}
    code = _checked(wrapper, kernels)
    libraries = {name: _library(kernel) for name, kernel in kernels.items()}
    return _Package(wrapper, code, kernels, libraries, outputs)


def _compiled(function: Callable[..., Any], args: Sequence[Any], mode: str | None) -> Any:
    """What torch.compile calls once its guards have passed: TorchInductor's ``CompiledFxGraph``.

    The way there is that of torch.compile from AOTAutograd on. Dynamo is left out: Thunder's function is straight-line
    code, which tracing alone turns into a graph. Its parameters and results then are the region's, one for one.
    """
    import torch
    from thunder.executors.torchex import no_autocast
    from torch._dynamo.convert_frame import compile_lock
    from torch._functorch import config as functorch_config
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    found = []

    def inner(*args: Any, **kwargs: Any) -> Any:
        found.append(compile_fx_inner(*args, **kwargs))
        return found[-1]

    def lower() -> None:
        # Fakes of its own for every argument: code for f(x, x) must be right for f(x, y).
        with FakeTensorMode(allow_non_fake_inputs=True):
            fakes = [torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=arg.device) for arg in args]
            traced = make_fx(function)(*fakes)
        options = list_mode_options(mode) if mode else {}
        # A hit in AOTAutograd's cache would go round ``inner``. TorchInductor's own cache of graphs stays out of it, as
        # there is no context of Dynamo's; its cache of libraries does not.
        with functorch_config.patch(enable_autograd_cache=False):
            compile_fx(traced, fakes, inner_compile=inner, config_patches=options)

    with compile_lock:
        torch.no_grad()(no_autocast(lower))()
    if len(found) != 1:
        raise NotKept(f"{len(found)} graphs in place of one")
    return found[0]


def _library(kernel: Any) -> bytes:
    """The library that a kernel was loaded from."""
    path = getattr(getattr(kernel, "__self__", None), "__file__", None)
    if path is None or getattr(kernel, "__name__", None) != _ENTRY:
        raise NotKept("a kernel that is in no library")
    return Path(path).read_bytes()


def _wrapper(source: str) -> tuple[str, int]:
    """The function in the module that TorchInductor wrote, as a text of its own, and how many outputs it has."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "call"
    ]
    if len(functions) != 1:
        raise NotKept("a wrapper in several parts")
    body = [statement for statement in functions[0].body if ast.unparse(statement) != "args.clear()"]
    if not body or not isinstance(body[-1], ast.Return) or not isinstance(body[-1].value, ast.Tuple):
        raise NotKept("a wrapper without a plain return")
    outputs = body[-1].value.elts
    body[-1] = ast.Return(ast.List(outputs, ast.Load()))
    text = "\n    ".join(["def call(args):", *(line for node in body for line in ast.unparse(node).splitlines())])
    return text + "\n", len(outputs)


def _called(wrapper: str) -> list[str]:
    """The names of the functions that a wrapper calls, in order, each once."""
    calls = [node.func for node in ast.walk(ast.parse(wrapper)) if isinstance(node, ast.Call)]
    return list(dict.fromkeys(function.id for function in calls if isinstance(function, ast.Name)))


# --- the wrapper's language -------------------------------------------------------------------------------------------


def _checked(wrapper: str, kernels: Collection[str]) -> CodeType:
    """The code of a text that is a wrapper of these kernels.

    Raises:
        NotKept: names what the text does besides; a ``ValueError`` as well.
    """
    if len(wrapper) > _LONGEST:
        raise _Foreign("a long wrapper")
    try:
        tree = ast.parse(wrapper)
        code = compile(tree, "<TorchInductor's wrapper, kept>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _Foreign("a wrapper that is no Python") from error
    match tree.body:
        case [
            ast.FunctionDef("call", ast.arguments([], [ast.arg("args", None)], None, [], [], None, []), body, [], None)
        ]:
            _check_body(body, {*_TORCH_FUNCTIONS, *kernels})
        case _:
            raise _Foreign("a wrapper that is no single function")
    return code


def _check_body(body: Sequence[ast.stmt], functions: set[str]) -> None:
    if any(not isinstance(statement, _STATEMENTS) for statement in body):
        raise _Foreign("a wrapper with control flow")
    nodes = [node for statement in body for node in ast.walk(statement)]
    given = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    if given & {*functions, "torch", "args"}:
        raise _Foreign("a wrapper that redefines what it uses")
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if id(node) not in called:
            _check_node(node, functions, {*given, "torch", "args"})


def _check_node(node: ast.AST, functions: set[str], values: set[str]) -> None:
    """Looks at all nodes but those that say which function is called."""
    match node:
        case ast.Attribute(ast.Name("torch"), dtype, ast.Load()) if dtype in _DTYPES:
            pass
        case ast.Attribute():
            raise _Foreign(f"a wrapper that uses {node.attr[:60]}")
        case ast.Call(ast.Name(name), _, []) if name in functions:
            pass
        case ast.Call():
            raise _Foreign(f"a wrapper that calls {getattr(node.func, 'attr', getattr(node.func, 'id', ''))[:60]}")
        case ast.Name(name) if name not in values:
            raise _Foreign(f"a wrapper that uses {name[:60]}")
        case ast.Constant(value) if type(value) not in (int, float, bool, type(None)):
            raise _Foreign(f"a wrapper with a literal of type {type(value).__name__}")
        case _ if not isinstance(node, _STATEMENTS + _EXPRESSIONS + _CONTEXTS):
            raise _Foreign(f"a wrapper with {type(node).__name__}")


class _Foreign(NotKept, ValueError):
    """A wrapper that is not in the language. It is not kept, and not loaded."""


def _function(code: CodeType, kernels: Mapping[str, Any]) -> Run:
    """The function that a checked text defines.

    It holds no state, and neither do kernels, so threads may call it at the same time. Autograd and autocast act on
    operations that are dispatched, and there are none in it.
    """
    import torch

    guards = torch._C._dynamo.guards
    names = {name: getattr(guards, theirs) for name, theirs in _TORCH_FUNCTIONS.items()}
    names |= {"__builtins__": {}, "torch": torch, **kernels}
    exec(code, names)
    return names["call"]


# --- artifacts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Signature:
    """What artifacts are for, and the digests of all of them.

    Attributes:
        inputs: dtype, sizes and strides of each argument.
        outputs: how many there are.
        threads: among which the code divides its work.
        kernels: name and digest of each.
        wrapper: its digest.
    """

    inputs: Sequence[Sequence[Any]]
    outputs: int
    threads: int
    kernels: Sequence[tuple[str, str]]
    wrapper: str


def _artifacts(package: _Package, args: Sequence[Any]) -> Mapping[str, bytes]:
    import torch

    wrapper = package.wrapper.encode()
    signature = {
        "format": FORMAT,
        "inputs": _described(args),
        "outputs": package.outputs,
        "threads": torch.get_num_threads(),
        "kernels": [[name, _digest(library)] for name, library in package.libraries.items()],
        "wrapper": _digest(wrapper),
    }
    libraries = {_KERNEL.format(place): library for place, library in enumerate(package.libraries.values())}
    return {_SIGNATURE: json.dumps(signature, sort_keys=True).encode(), _WRAPPER: wrapper, **libraries}


def _read_signature(artifacts: Mapping[str, bytes]) -> _Signature:
    try:
        fields = json.loads(artifacts[_SIGNATURE])
        if fields.pop("format") != FORMAT:
            raise ValueError("artifacts of another format")
        signature = _Signature(**fields)
        signature = replace(signature, kernels=[(name, digest) for name, digest in signature.kernels])
    except KeyError as error:
        raise ValueError(f"artifacts without {error}") from error
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError("a signature that is none") from error
    names = [name for name, _ in signature.kernels]
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names) or len(set(names)) != len(names):
        raise ValueError("a signature with strange kernels")
    if {"call", "torch", "args", *_TORCH_FUNCTIONS} & set(names):
        raise ValueError("a signature with kernels of reserved names")
    return signature


def _refuse_unfitting(signature: _Signature, graph: Graph, args: Sequence[Any]) -> None:
    import torch

    if (problem := _no_plain_tensor(args)) is not None:
        raise ValueError(f"kept code does not take {problem}")
    if signature.inputs != _described(args) or len(graph.inputs) != len(args):
        raise ValueError("kept code is for arguments of another layout")
    if type(signature.outputs) is not int or signature.outputs != len(graph.outputs):
        raise ValueError("kept code has another number of outputs")
    if signature.threads != torch.get_num_threads():
        raise ValueError("kept code is for another number of threads")


def _described(args: Sequence[Any]) -> list[list[Any]]:
    return [[str(arg.dtype).removeprefix("torch."), list(arg.shape), list(arg.stride())] for arg in args]


def _whole(artifacts: Mapping[str, bytes], name: str, digest: Any) -> bytes:
    content = artifacts.get(name)
    if content is None or _digest(content) != digest:
        raise ValueError(f"{name} is missing or damaged")
    return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- loading ----------------------------------------------------------------------------------------------------------


def _loaded(libraries: Mapping[str, bytes], scratch: Path | None) -> dict[str, Any]:
    """The kernels in these libraries. Loading needs files, which are there just for that moment.

    Raises:
        ImportError: if one does not load.
    """
    if not libraries:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="fusioncache-", dir=scratch))
    try:
        return {name: _load_library(library, folder) for name, library in libraries.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # where files in use cannot be removed
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _load_library(library: bytes, folder: Path) -> Any:
    import torch

    # The system and Python both take a path that they have seen before for the library that they already have.
    number = next(_counter)
    path, name = folder / f"{number}.so", f"fusioncache_{number}.{_ENTRY}"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o700), "wb") as file:
        file.write(library)
    with _loading:
        os.environ[_ADDRESS] = str(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)
        loader = importlib.machinery.ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_loader(name, loader, origin=str(path))
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules.pop(name, None)  # where such a module enters itself
    kernel = getattr(module, _ENTRY, None)
    if kernel is None:
        raise ImportError("no kernel in it")
    return kernel


# --- the key's ingredients --------------------------------------------------------------------------------------------


@cache
def _platform() -> str:
    # Kernels call the C library's mathematical functions where there are none for vectors.
    return " ".join([sys.platform, platform.machine(), *platform.libc_ver()])


@cache
def _vector_units() -> str:
    """Among which TorchInductor picks. Which one it takes it finds out by compiling, and so by what is in the key."""
    import torch

    asked = ("_is_avx2_supported", "_is_avx512_supported", "_is_vnni_supported", "_is_amx_tile_supported")
    found = [name.removeprefix("_is_").removesuffix("_supported") for name in asked if getattr(torch.cpu, name, bool)()]
    return " ".join([*found, f"wanted {os.environ.get('ATEN_CPU_CAPABILITY', '')}"])


@cache
def _processor() -> str:
    """Everything that the processor can do, as a digest: kernels are compiled for just this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = {line for line in lines if re.match(r"(flags|Features|vendor_id|cpu family|model|CPU part)\b", line)}
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


@cache
def _compiler(candidates: tuple[str, ...]) -> str:
    """The first line that the C++ compiler says of itself, or nothing if there is none."""
    for path in filter(None, map(shutil.which, candidates)):
        try:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        return said.splitlines()[0] if said else ""
    return ""
