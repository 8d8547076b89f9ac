"""Compiles the kernels of several regions in one run of the C++ compiler.

TorchInductor runs the compiler once for each kernel. Most of the time goes into headers: two seconds compile one
kernel, or all kernels of a model. So kernels are collected as sources, and become one library with a function for each.
The functions have the same source and options as before. These options allow no rounding that is not in the source, so
that the bits do not depend on the rest of the library.

TorchInductor probes which vector instructions of the CPU it can use: whether a library with them can be built and
loaded. It loads each one in a child process that imports torch, up to six per process: ten seconds of CPU time. Here
the library is loaded into this process. A positive result is stored beside TorchInductor's code, which is trusted as
much, under a digest of all that it depends on: the code and the flags, TorchInductor's options for C++, the environment
of its stored code, and paths. A negative result is not stored, because its cause may be a full disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

from fusioncache.ir import Declined, Scope
from fusioncache.process.warning import log_errors

_FOLDER = "fusioncache-instruction-sets"
_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "TORCH_CUSTOM_PYTHONPATH", "ATEN_CPU_CAPABILITY")


def can_use(instruction_set: Any, code: str) -> bool:
    """True if a library with these instructions can be built and loaded, now or by an earlier process.

    The library is loaded into this process. Loading runs none of its code, and TorchInductor only asks for instructions
    that the CPU has. So it only fails if the compiler does not know the instructions, or a symbol is missing.

    Args:
        instruction_set: a ``VecISA`` of TorchInductor's.
        code: of the library.
    """
    if was_probed(instruction_set, code):
        return True
    works = build_and_load(instruction_set, code)
    if works:
        store_probe(instruction_set, code)
    return works


def replace_probe(original: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    """Returns a ``check_build`` of TorchInductor's ``VecISA`` that calls the original only if ``can_use`` fails."""

    @wraps(original)
    def check_build(self: Any, code: str) -> bool:
        with log_errors("probing the CPU for %s failed", self):  # TorchInductor probes instead
            return can_use(self, code)
        return original(self, code)

    return check_build


def was_probed(instruction_set: Any, code: str) -> bool:
    """True if an earlier process built and loaded a library with these instructions."""
    with log_errors("whether the CPU has %s is not known from an earlier process", instruction_set):
        return probe_marker(instruction_set, code).exists()
    return False


def store_probe(instruction_set: Any, code: str) -> None:
    """Records for later processes that such a library was built and loaded. Never raises."""
    with log_errors("whether the CPU has %s is not stored", instruction_set):  # a later process probes again
        proof = probe_marker(instruction_set, code)
        proof.parent.mkdir(parents=True, exist_ok=True)
        proof.touch()


def forget_probes() -> None:
    """Clears TorchInductor's probe results, so that it probes again in this process."""
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


def probe_marker(instruction_set: Any, code: str) -> Path:
    """Returns the path of a file that exists if an earlier process built and loaded a library with these instructions.

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
"""The name of the module in each library of TorchInductor, and of the module's function."""
INCLUDE = "#include <torch/csrc/inductor/cpp_prefix.h>"
_FUNCTION = re.compile(r'extern "C"\s+void\s+kernel\(')
_DIRECTIVE = re.compile(r"^\s*#\s*(?!pragma\b)", re.MULTILINE)
_NAME = "kernel_{}"
_CHECKS = {"_avx512_bf16_code": ("avx512bf16", "avx512vl"), "_avx512_vnni_code": ("avx512vnni", "avx512vl")}
"""Code with which TorchInductor probes instructions, by attribute of a ``VecISA``, and their names for GCC."""

_HEADERS = "#define PY_SSIZE_T_CLEAN\n#include <Python.h>\n#include <cstdlib>\n#include <sstream>"
"""The headers of TorchInductor's Python bindings, included first because the bindings are put into a namespace."""

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
"""The Python module of the library. It contains the function of each kernel's original module."""

HEADER_SECONDS, KILOBYTE_SECONDS, ALONE_SECONDS = 1.4, 0.012, 0.6
"""The seconds of one C++ compiler run for several kernels, without their sources; the seconds per kilobyte of sources;
the seconds of a run for a single kernel with precompiled headers. ``estimate_alone`` scales them by a measured run."""


def estimate_alone(seconds: float, sources: Sequence[Sequence[str]]) -> list[float]:
    """Returns estimates of the C++ compiler's seconds for each graph alone, from the seconds of its run for all.

    Alone, as in TorchInductor, headers are precompiled. A repeated source is not compiled again, because TorchInductor
    finds its library.

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
        function: the kernel, ready to call.
        library: the bytes of its library.
        name: of the function in the library.
    """

    function: Any
    library: bytes
    name: str = ENTRY


@dataclass(eq=False, slots=True)
class CollectedKernel:
    """A kernel to be compiled together with others. It replaces the kernel in TorchInductor's modules.

    Attributes:
        types: of its arguments, in C++.
        source: as TorchInductor wrote it.
        compiled: the compiled kernel; None until it is compiled.
    """

    types: tuple[str, ...]
    source: str
    compiled: Kernel | None = None

    def __call__(self, *args: Any) -> Any:
        """Runs the kernel, as other users of the same TorchInductor module may do."""
        return self.finish().function(*args)

    def finish(self) -> Kernel:
        """Returns the compiled kernel. If it was not compiled with others, it is compiled alone."""
        if self.compiled is None:
            from torch._inductor.codecache import CppPythonBindingsCodeCache

            self.compiled = read_kernel(CppPythonBindingsCodeCache.load_pybinding(list(self.types), self.source))
        return self.compiled


def read_kernel(function: Any) -> Kernel:
    """Returns a kernel that TorchInductor compiled, with the library that it was loaded from.

    Raises:
        Declined: if it is in no library.
    """
    if isinstance(function, CollectedKernel):
        return function.finish()
    path = getattr(getattr(function, "__self__", None), "__file__", None)
    if path is None or getattr(function, "__name__", None) != ENTRY:
        raise Declined("a kernel that is in no library", Scope.STORING)
    return Kernel(function, Path(path).read_bytes())


@contextmanager
def collect_kernels() -> Iterator[None]:
    """Makes TorchInductor compile no kernel in the body: each becomes a ``CollectedKernel``.

    Vector instructions are probed by ``can_use``, with any version of torch.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.cpu_vec_isa import VecISA

    compile_ = AsyncCompile.cpp_pybinding

    def collect(self: Any, types: Sequence[str], source: str) -> Any:
        return CollectedKernel(tuple(types), source) if can_join(source) else compile_(self, types, source)

    with (
        compile_lock,  # so that the patches affect only this thread
        mock.patch.object(AsyncCompile, "cpp_pybinding", collect),
        mock.patch.object(VecISA, "check_build", _probe),
    ):
        yield


def compile_joined(kernels: Sequence[CollectedKernel]) -> tuple[bytes, list[str]]:
    """Returns a library with these kernels, and the name of each in it.

    Raises:
        Exception: any error of TorchInductor if the compiler fails.
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
    """Yields the checks that ``_probe`` reported as passed without running them: an ISA, and a name in ``_CHECKS``."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    for isa in valid_vec_isa_list():
        if getattr(isa, "_is_avx512_bf16_supported", False):
            yield isa, "_avx512_bf16_code"
        if hasattr(isa, "_avx512_vnni_code"):
            yield isa, "_avx512_vnni_code"


def _write_checks() -> list[str]:
    """Returns the C++ functions of these checks. A library with them builds and loads if TorchInductor's probes do."""
    codes = {name: getattr(isa, name) for isa, name in list_checks()}
    targets = {name: f'extern "C" __attribute__((target("{",".join(_CHECKS[name])}")))' for name in codes}
    return [code.replace('extern "C"', targets[name]) for name, code in codes.items()]


def can_join(source: str) -> bool:
    """True if a kernel's source consists of the known header and one function, so that it can be joined with others."""
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
    """Replaces ``VecISA.check_build``. Skips what the joined library contains: the header of kernels, and checks."""
    joined = {"_avx_code", *_CHECKS}
    return any(code == getattr(isa, name, None) for name in joined) or can_use(isa, code)
