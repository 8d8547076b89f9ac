"""Kernels of several regions from one run of the C++ compiler: the bits are those of each compiled alone."""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from inductor_artifacts import CASES, artifacts_of, digest, made

from fusioncache.backends.api import Compiled
from fusioncache.backends.inductor import joined_kernels
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.backends.inductor.joined_kernels import ALONE_SECONDS, HEADER_SECONDS, KILOBYTE_SECONDS, estimate_alone

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")

JOINED = ("float32", "small", "mask", "views")


@contextmanager
def counted(fail: bool = False) -> Iterator[list[str]]:
    """Lists the names of what the C++ compiler builds in the body."""
    from torch._inductor.cpp_builder import CppBuilder

    build, names = CppBuilder.build, list[str]()

    def count(self: CppBuilder) -> None:
        names.append(self._name)
        if fail and self._name == "joined":
            raise RuntimeError("no memory for the compiler")
        build(self)

    with mock.patch.object(CppBuilder, "build", count):
        yield names


def persist_together(
    names: Sequence[str], backend: Inductor, left: Callable[[int], None] = lambda left: None
) -> dict[str, Compiled]:
    from torch._inductor.codecache import PyCodeCache

    PyCodeCache.cache_clear()
    cases = {name: CASES[name]() for name in names}
    with backend.compiled_together(list(cases.values()), left):
        return {name: backend.persist(*case) for name, case in cases.items()}


def test_one_run_of_the_compiler_makes_the_bits_of_each_alone():
    told: list[int] = []
    with counted() as names:
        together = persist_together(JOINED, Inductor(), told.append)
    assert names.count("joined") == 1 and told == [4, 3, 2, 1, 0]
    libraries = {artifacts["kernel-0.so"] for one in together.values() if "kernel-0.so" in (artifacts := one.artifacts)}
    assert len(libraries) == 1
    for name, compiled in together.items():
        graph, args = CASES[name]()
        alone = made(name)
        assert artifacts_of(alone).get("kernel-0.so") not in libraries
        loaded = Inductor().load(artifacts_of(compiled), graph, args)
        assert digest(compiled.run(args)) == digest(loaded(args)) == digest(alone.run(args)), name


def test_where_the_compiler_fails_each_is_compiled_alone():
    with counted(fail=True) as names:
        together = persist_together(("float32", "small"), Inductor())
    assert names.count("joined") == 1
    assert len({artifacts_of(one).get("kernel-0.so") for one in together.values()}) == 2
    for name, compiled in together.items():
        assert compiled.artifacts is not None
        assert digest(compiled.run(CASES[name]()[1])) == digest(made(name).run(CASES[name]()[1])), name


@pytest.mark.parametrize(
    ("source", "joins"),
    [
        ('{}\nextern "C"  void  kernel(const float* a)\n{{ #pragma omp\n }}', True),
        ('{}\n#define x\nextern "C"  void  kernel(const float* a)\n{{}}', False),
        ('{}\n#include <other.h>\nextern "C"  void  kernel(const float* a)\n{{}}', False),
        ('{}\nextern "C"  void  other(const float* a)\n{{}}', False),
        ('#include <other.h>\nextern "C"  void  kernel(const float* a)\n{{}}', False),
    ],
)
def test_only_a_single_function_behind_the_known_header_is_joined(source, joins):
    assert joined_kernels.can_join(source.format(joined_kernels.INCLUDE)) is joins


def make_kernel():
    body = 'extern "C" void kernel(const float* a, float* b)\n{ b[0] = a[0] + 1; }\n'
    return joined_kernels.CollectedKernel(("const float*", "float*"), f"{joined_kernels.INCLUDE}\n{body}")


def test_a_kernel_that_others_call_before_is_compiled_alone():
    kernel, one, two = make_kernel(), torch.ones(1), torch.zeros(1)
    kernel(one, two)
    assert two.item() == 2.0 and kernel.finish().name == "kernel"


def test_a_joined_library_proves_all_that_its_probes_assumed(monkeypatch, tmp_path):
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    joined_kernels.forget_probes()
    built = []
    build = joined_kernels.build_and_load
    monkeypatch.setattr(joined_kernels, "build_and_load", lambda isa, code: built.append(code) or build(isa, code))
    with joined_kernels.collect_kernels():
        isas = valid_vec_isa_list()
        library, _ = joined_kernels.compile_joined([make_kernel()])
    for isa, name in joined_kernels.list_checks():
        assert getattr(isa, name) not in built
        for function in re.findall(r"(__avx512\w+chk_kernel\w*)\(", getattr(isa, name)):
            assert function.encode() in library
    assert isas
    joined_kernels.forget_probes()


KILOBYTE, OTHER = "x" * 1000, "y" * 1000
RUN = HEADER_SECONDS + KILOBYTE_SECONDS
ALONE = ALONE_SECONDS + KILOBYTE_SECONDS


@pytest.mark.parametrize(
    ("seconds", "sources", "estimates"),
    [
        pytest.param(RUN, [[KILOBYTE]], [ALONE], id="a run of the expected length"),
        pytest.param(3 * RUN, [[KILOBYTE]], [3 * ALONE], id="a slower machine"),
        pytest.param(RUN, [[KILOBYTE], [KILOBYTE, KILOBYTE]], [ALONE, 0], id="equal sources are compiled once"),
        pytest.param(RUN + KILOBYTE_SECONDS, [[KILOBYTE, OTHER], []], [2 * ALONE, 0], id="a run for each kernel"),
    ],
)
def test_seconds_that_each_graph_would_have_taken_alone(seconds, sources, estimates):
    assert estimate_alone(seconds, sources) == list(map(pytest.approx, estimates))
