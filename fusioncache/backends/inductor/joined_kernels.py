"""Kernels of several regions, compiled by the C++ compiler in one go.

TorchInductor runs the compiler once for each kernel. Most of that is headers: two seconds compile one kernel, or all of
a model's. So kernels are collected as sources, and become one library with a function for each. The functions are the
same texts, compiled with the same options. These allow no rounding that the text does not have, so that the bits do not
depend on what else is in the library.

TorchInductor asks which vector instructions of the CPU it can use: whether a library with them can be built and loaded.
It loads each in a child process that imports torch, up to six in each process: ten seconds of CPU time. Here the
library is loaded into this process. A "yes" is kept beside TorchInductor's own code, which is trusted as much, under a
digest of all that the answer depends on: the code and the flags, TorchInductor's options for C++, what its stored code
depends on, and paths. A "no" is not kept: it may come from a full disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from fusioncache.ir import Declined, Scope

logger = logging.getLogger("fusioncache")

_FOLDER = "fusioncache-instruction-sets"
_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "TORCH_CUSTOM_PYTHONPATH", "ATEN_CPU_CAPABILITY")


def can_use(instruction_set: Any, code: str) -> bool:
    """True if a library with these instructions can be built and loaded, now or by an earlier process.

    The library is loaded into this process. Loading runs none of its code, and TorchInductor only asks for what the CPU
    has: what can go wrong is that the compiler does not know the instructions, or that a symbol is missing.

    Args:
        instruction_set: a ``VecISA`` of TorchInductor's.
        code: of the library.
    """
    if is_proven(instruction_set, code):
        return True
    works = build_and_load(instruction_set, code)
    if works:
        keep_proof(instruction_set, code)
    return works


def is_proven(instruction_set: Any, code: str) -> bool:
    """True if an earlier process built and loaded a library with these instructions."""
    try:
        return find_proof(instruction_set, code).exists()
    except Exception as error:  # whatever it is, it can be tried
        logger.info("whether the CPU has %s is not known from an earlier process", instruction_set, exc_info=error)
        return False


def keep_proof(instruction_set: Any, code: str) -> None:
    """Keeps for later processes that such a library was built and loaded. Never raises."""
    try:
        proof = find_proof(instruction_set, code)
        proof.parent.mkdir(parents=True, exist_ok=True)
        proof.touch()
    except Exception as error:  # whatever it is, a later process tries
        logger.info("whether the CPU has %s is not stored", instruction_set, exc_info=error)


def forget_probes() -> None:
    """Has TorchInductor probe again in this process."""
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    for kind in {type(isa) for isa in cpu_vec_isa.supported_vec_isa_list} | {cpu_vec_isa.VecISA}:
        for member in vars(kind).values():
            if hasattr(member, "cache_clear"):
                member.cache_clear()


def build_and_load(instruction_set: Any, code: str) -> bool:
    """True if a library with these instructions can be built and loaded into this process."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions

    with tempfile.TemporaryDirectory(prefix="fusioncache-") as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(code)
        options = CppTorchOptions(vec_isa=instruction_set, warning_all=False)
        builder = CppBuilder("probe", [str(source)], options, folder)
        try:
            builder.build()
            ctypes.CDLL(builder.get_target_file_path())
        except Exception:
            return False
    return True


def find_proof(instruction_set: Any, code: str) -> Path:
    """Returns the file that is there if an earlier process built and loaded a library with these instructions.

    Args:
        instruction_set: a ``VecISA`` of TorchInductor's.
        code: of the library.
    """
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import _get_isa_dry_compile_fingerprint
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    from fusioncache.backends.inductor.environment import artifact_environment

    flags = instruction_set._arch_flags
    parts = (
        type(instruction_set).__qualname__,
        code,
        flags,
        repr(instruction_set._macro),
        _get_isa_dry_compile_fingerprint(flags),
        *artifact_environment().values(),
        *(f"{name}={getattr(config, name)!r}" for name in sorted(config._config) if name.startswith("cpp.")),
        *(f"{name}={os.environ.get(name)}" for name in _VARIABLES),
    )
    text = "".join(f"{len(part)} {part}\n" for part in parts)
    return Path(cache_dir(), _FOLDER, hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest())


ENTRY = "kernel"
"""The name of the module in each library of TorchInductor, and of its function."""
INCLUDE = "#include <torch/csrc/inductor/cpp_prefix.h>"
_FUNCTION = re.compile(r'extern "C"\s+void\s+kernel\(')
_DIRECTIVE = re.compile(r"^\s*#\s*(?!pragma\b)", re.MULTILINE)
_NAME = "kernel_{}"
_CHECKS = {"_avx512_bf16_code": ("avx512bf16", "avx512vl"), "_avx512_vnni_code": ("avx512vnni", "avx512vl")}
"""Code by which TorchInductor checks instructions, by attribute of a ``VecISA``, and GCC's names of these."""

_HEADERS = "#define PY_SSIZE_T_CLEAN\n#include <Python.h>\n#include <cstdlib>\n#include <sstream>"
"""What TorchInductor's Python bindings include, so that they can stand in a namespace."""

_MODULE = """
static struct PyModuleDef all = {{PyModuleDef_HEAD_INIT, "kernel", NULL, -1, NULL}};

static bool add(PyObject* module, const char* name, PyObject* own) {{
    return own && PyModule_AddObject(module, name, PyObject_GetAttrString(own, name)) == 0;
}}

PyMODINIT_FUNC PyInit_kernel(void) {{
    PyObject* module = PyModule_Create(&all);
    return module && {added} ? module : nullptr;
}}
"""
"""The module of the library, which has the function of each kernel's own module."""

HEADER_SECONDS, KILOBYTE_SECONDS, ALONE_SECONDS = 1.4, 0.012, 0.6
"""The seconds of a run of the C++ compiler for several kernels, without their sources; those for a kilobyte of sources;
those of a run for one kernel alone, with headers that were compiled before. ``estimate_alone`` scales them by a run
that was timed."""


def estimate_alone(seconds: float, sources: Sequence[Sequence[str]]) -> list[float]:
    """Returns estimates of the C++ compiler's seconds for each graph alone, from those of its run for all of them.

    Alone, as TorchInductor does it, headers are compiled before. A source that comes again is not compiled
    again, because TorchInductor finds its library.

    Args:
        seconds: of the run for all graphs.
        sources: of the kernels of each graph.
    """
    different = {source for graph in sources for source in graph}
    scale = seconds / (HEADER_SECONDS + KILOBYTE_SECONDS * sum(map(len, different)) / 1000)
    estimates = []
    for graph in sources:
        new = different.intersection(graph)
        different -= new
        estimates.append(scale * sum(ALONE_SECONDS + KILOBYTE_SECONDS * len(source) / 1000 for source in new))
    return estimates


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel.

    Attributes:
        function: itself.
        library: that it is in.
        name: of the function in the library.
    """

    function: Any
    library: bytes
    name: str = ENTRY


@dataclass(eq=False, slots=True)
class CollectedKernel:
    """A kernel that is to be compiled together with others. TorchInductor's modules keep it in a kernel's place.

    Attributes:
        types: of its arguments, in C++.
        source: as TorchInductor wrote it.
        compiled: what it became; None before that.
    """

    types: tuple[str, ...]
    source: str
    compiled: Kernel | None = None

    def __call__(self, *args: Any) -> Any:
        """Runs the kernel, which others may do that TorchInductor gives the same module."""
        return self.finish().function(*args)

    def finish(self) -> Kernel:
        """Returns the kernel as it was compiled with others, or else in a library of its own."""
        if self.compiled is None:
            from torch._inductor.codecache import CppPythonBindingsCodeCache

            self.compiled = read_kernel(CppPythonBindingsCodeCache.load_pybinding(list(self.types), self.source))
        return self.compiled


def read_kernel(function: Any) -> Kernel:
    """Returns a kernel that TorchInductor compiled, with the library that it was loaded from.

    Raises:
        Declined: if it is in none.
    """
    if isinstance(function, CollectedKernel):
        return function.finish()
    path = getattr(getattr(function, "__self__", None), "__file__", None)
    if path is None or getattr(function, "__name__", None) != ENTRY:
        raise Declined("a kernel that is in no library", Scope.STORING)
    return Kernel(function, Path(path).read_bytes())


@contextmanager
def collect_kernels() -> Iterator[None]:
    """Has TorchInductor compile no kernel in the body: where one belongs there is a ``CollectedKernel``.

    Vector instructions are probed by ``can_use``, whichever version of torch this is.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.cpu_vec_isa import VecISA

    compile_ = AsyncCompile.cpp_pybinding

    def collect(self: Any, types: Sequence[str], source: str) -> Any:
        return CollectedKernel(tuple(types), source) if can_join(source) else compile_(self, types, source)

    with (
        compile_lock,  # so that it is for this thread alone
        mock.patch.object(AsyncCompile, "cpp_pybinding", collect),
        mock.patch.object(VecISA, "check_build", _probe),
    ):
        yield


def compile_joined(kernels: Sequence[CollectedKernel]) -> tuple[bytes, list[str]]:
    """Returns a library with these kernels, and the name of each in it.

    Raises:
        Exception: whatever TorchInductor raises if the compiler fails.
    """
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    isa = pick_vec_isa()
    options = CppTorchDeviceOptions(vec_isa=isa, device_type="cpu", include_pytorch=False, shared=True)
    with tempfile.TemporaryDirectory(prefix="fusioncache-") as folder:
        source = Path(folder, "joined.cpp")
        source.write_text(_join(kernels))
        builder = CppBuilder(name="joined", sources=str(source), BuildOption=options, output_dir=folder)
        try:
            builder.build()
        except Exception:
            forget_probes()
            raise
        return Path(builder.get_target_file_path()).read_bytes(), [_NAME.format(n) for n in range(len(kernels))]


def list_checks() -> Iterator[tuple[Any, str]]:
    """Yields the checks that TorchInductor was told to succeed: an ISA, and a name in ``_CHECKS``."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    for isa in valid_vec_isa_list():
        if getattr(isa, "_is_avx512_bf16_supported", False):
            yield isa, "_avx512_bf16_code"
        if hasattr(isa, "_avx512_vnni_code"):
            yield isa, "_avx512_vnni_code"


def _write_checks() -> list[str]:
    """Returns the functions of these checks in C++. A library that has them builds and loads as TorchInductor's do."""
    codes = {name: getattr(isa, name) for isa, name in list_checks()}
    targets = {name: f'extern "C" __attribute__((target("{",".join(_CHECKS[name])}")))' for name in codes}
    return [code.replace('extern "C"', targets[name]) for name, code in codes.items()]


def can_join(source: str) -> bool:
    """True if a kernel's source is the known header and one function, so that it can be joined with others."""
    rest = source.replace(INCLUDE, "", 1)
    return INCLUDE in source and len(_FUNCTION.findall(rest)) == 1 and _DIRECTIVE.search(rest) is None


def _join(kernels: Sequence[CollectedKernel]) -> str:
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    texts, added = [_HEADERS, INCLUDE, *_write_checks()], []
    for number, kernel in enumerate(kernels):
        name = _NAME.format(number)
        function = _FUNCTION.sub(f'extern "C" void {name}(', kernel.source.replace(INCLUDE, "", 1))
        types = (type_.replace("const ", "") for type_ in kernel.types)
        arguments = ", ".join(f"parse_arg<{type_}>(args, {n})" for n, type_ in enumerate(types))
        bindings = CppPythonBindingsCodeCache.suffix_template.format(
            entry_func=name,
            arg_len=len(kernel.types),
            call_entry_func=f"{name}({arguments}); Py_RETURN_NONE;",
            extra_parse_arg="",
        )
        texts.append(f"namespace of_{name} {{\n{function}\n{bindings}\n}}\n")
        added.append(f'add(module, "{name}", of_{name}::PyInit_{name}())')
    return "\n".join([*texts, _MODULE.format(added=" && ".join(added))])


def _probe(isa: Any, code: str) -> bool:
    """Does as ``VecISA.check_build``, but for what the joined library has: the header of all kernels, and checks."""
    joined = {"_avx_code", *_CHECKS}
    return any(code == getattr(isa, name, None) for name in joined) or can_use(isa, code)
