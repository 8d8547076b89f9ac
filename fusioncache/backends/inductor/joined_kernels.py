"""Kernels of several regions, compiled by the C++ compiler in one go.

TorchInductor runs the compiler once for each kernel. Most of that is headers: two seconds compile one kernel, or all of
a model's. So kernels are collected as sources, and become one library with a function for each. The functions are the
same texts, compiled with the same options. These allow no rounding that the text does not have, so that the bits do not
depend on what else is in the library.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from fusioncache.backends.inductor.vector_probe import can_use, forget_probes, keep_proof
from fusioncache.ir import Declined, Scope

ENTRY = "kernel"
"""The name of the module in each library of TorchInductor, and of its function."""
INCLUDE = "#include <torch/csrc/inductor/cpp_prefix.h>"
_FUNCTION = re.compile(r'extern "C"\s+void\s+kernel\(')
_DIRECTIVE = re.compile(r"^\s*#\s*(?!pragma\b)", re.MULTILINE)
_NAME = "kernel_{}"
_CHECKS = {"_avx512_bf16_code": ("avx512bf16", "avx512vl"), "_avx512_vnni_code": ("avx512vnni", "avx512vl")}
"""Code by which TorchInductor checks instructions, by attribute of a ``VecISA``, and GCC's names of these."""

_BINDINGS = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cstdlib>
#include <sstream>

static void* (*address_of)(PyObject* tensor);

template <typename T> static inline T parse(PyObject* args, size_t n) {
    static_assert(std::is_pointer_v<T>, "an argument is a pointer or a number");
    return static_cast<T>(address_of(PyTuple_GET_ITEM(args, n)));
}
template <> inline int64_t parse<int64_t>(PyObject* args, size_t n) {
    auto result = PyLong_AsSsize_t(PyTuple_GET_ITEM(args, n));
    if (result == -1 && PyErr_Occurred()) throw std::runtime_error("expected int arg");
    return result;
}
template <> inline float parse<float>(PyObject* args, size_t n) {
    auto result = PyFloat_AsDouble(PyTuple_GET_ITEM(args, n));
    if (result == -1.0 && PyErr_Occurred()) throw std::runtime_error("expected float arg");
    return static_cast<float>(result);
}
static PyObject* call(PyObject* args, Py_ssize_t count, void (*kernel)(PyObject*)) {
    try {
        if (!PyTuple_CheckExact(args) || PyTuple_GET_SIZE(args) != count)
            throw std::runtime_error("another number of arguments");
        kernel(args);
        Py_RETURN_NONE;
    } catch (std::exception const& e) {
        PyErr_SetString(PyExc_RuntimeError, e.what());
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "unhandled error");
    }
    return nullptr;
}
"""
"""The Python bindings of kernels, as TorchInductor writes them for each kernel."""

_CALL = """static PyObject* call_{number}(PyObject* self, PyObject* args) {{
    return call(args, {count}, [](PyObject* args) {{ {name}({arguments}); }});
}}
"""

_MODULE = """
static PyMethodDef methods[] = {{{methods}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef module_ = {{PyModuleDef_HEAD_INIT, "kernel", NULL, -1, methods}};

PyMODINIT_FUNC PyInit_kernel(void) {{
    const char* text = std::getenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR");
    if (!text) {{
        PyErr_SetString(PyExc_RuntimeError, "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR must be set");
        return nullptr;
    }}
    uintptr_t address = 0;
    std::istringstream(text) >> address;
    address_of = reinterpret_cast<decltype(address_of)>(address);
    return PyModule_Create(&module_);
}}
"""


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

    Vector instructions are probed by ``vector_probe.py``, whichever version of torch this is.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen import cpp
    from torch._inductor.cpu_vec_isa import VecISA

    compile_ = AsyncCompile.cpp_pybinding

    def collect(self: Any, types: Sequence[str], source: str) -> Any:
        return CollectedKernel(tuple(types), source) if can_join(source) else compile_(self, types, source)

    with (
        compile_lock,  # so that it is for this thread alone
        mock.patch.object(AsyncCompile, "cpp_pybinding", collect),
        mock.patch.object(VecISA, "check_build", _probe),
        mock.patch.object(cpp, "stride_at_vec_range", shorten_strides(cpp.stride_at_vec_range)),
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


def keep_vector_proofs() -> None:
    """Keeps for later processes that a library with the header of all kernels, and checks, was built and loaded."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    isa = pick_vec_isa()
    if isa:
        keep_proof(isa, type(isa)._avx_code)
    for checked, name in list_checks():
        with _flags_of_check(checked, name):
            keep_proof(checked, getattr(checked, name))


def list_checks() -> Iterator[tuple[Any, str]]:
    """Yields the checks that TorchInductor was told to succeed: an ISA, and a name in ``_CHECKS``."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    for isa in valid_vec_isa_list():
        if getattr(isa, "_is_avx512_bf16_supported", False):
            yield isa, "_avx512_bf16_code"
        if hasattr(isa, "_avx512_vnni_code"):
            yield isa, "_avx512_vnni_code"


@contextmanager
def _flags_of_check(isa: Any, name: str) -> Iterator[None]:
    """Gives an ISA the compiler's flags that it has while TorchInductor checks these instructions."""
    flags = isa._arch_flags
    isa._arch_flags = f"{flags} -mavx512bf16" if name == "_avx512_bf16_code" else flags
    try:
        yield
    finally:
        isa._arch_flags = flags


def _write_checks() -> list[str]:
    """Returns the functions of these checks in C++. A library that has them builds and loads as TorchInductor's do."""
    codes = {name: getattr(isa, name) for isa, name in list_checks()}
    targets = {name: f'extern "C" __attribute__((target("{",".join(_CHECKS[name])}")))' for name in codes}
    return [code.replace('extern "C"', targets[name]) for name, code in codes.items()]


def shorten_strides(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that finds the stride of an index along a loop variable as TorchInductor does, but quicker.

    Args:
        original: takes an index, a variable and perhaps the length of vectors. It simplifies by general methods.
    """

    def stride_at_vec_range(index: Any, var: Any, vec_length: int | None = None) -> Any:
        stride = find_affine_stride(index, var)
        return original(index, var, vec_length) if stride is None else stride

    return stride_at_vec_range


def find_affine_stride(index: Any, var: Any) -> Any:
    """Returns the coefficient of a variable in a sum of variables times integers; None if the index is something else.

    Args:
        index: of ``sympy``.
        var: a symbol of it.
    """
    import sympy

    stride = sympy.S.Zero
    for term in sympy.Add.make_args(index):
        factor, rest = term.as_coeff_Mul()
        if not factor.is_Integer or not (rest.is_Symbol or rest is sympy.S.One):
            return None
        stride += factor if rest == var else 0
    return stride


def can_join(source: str) -> bool:
    """True if a kernel's source is the known header and one function, so that it can be joined with others."""
    rest = source.replace(INCLUDE, "", 1)
    return INCLUDE in source and len(_FUNCTION.findall(rest)) == 1 and _DIRECTIVE.search(rest) is None


def _join(kernels: Sequence[CollectedKernel]) -> str:
    texts, calls, methods = [INCLUDE, *_write_checks()], [], []
    for number, kernel in enumerate(kernels):
        name = _NAME.format(number)
        function = _FUNCTION.sub(f'extern "C" void {name}(', kernel.source.replace(INCLUDE, "", 1))
        texts.append(f"namespace of_{name} {{\n{function}\n}}\n")
        arguments = ", ".join(
            f"parse<{type_.replace('const ', '')}>(args, {n})" for n, type_ in enumerate(kernel.types)
        )
        calls.append(
            _CALL.format(number=number, count=len(kernel.types), name=f"of_{name}::{name}", arguments=arguments)
        )
        methods.append(f'{{"{name}", call_{number}, METH_VARARGS, ""}}')
    return "\n".join([*texts, _BINDINGS, *calls, _MODULE.format(methods=", ".join(methods))])


def _probe(isa: Any, code: str) -> bool:
    """Does as ``VecISA.check_build``, but for what the joined library has: the header of all kernels, and checks."""
    joined = {"_avx_code", *_CHECKS}
    return any(code == getattr(isa, name, None) for name in joined) or can_use(isa, code)
