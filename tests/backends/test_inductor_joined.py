"""The C++ compiler builds several kernels in one run, and probes the CPU once: all bits are as without that."""

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import pytest
from inductor_artifacts import CASES, artifacts_of, compile_case, digest
from torch._inductor import config, cpu_vec_isa
from torch._inductor.codecache import PyCodeCache
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.cpu_vec_isa import VecAVX2
from torch._inductor.runtime import cache_dir_utils

from fusioncache.backends.api import Compiled
from fusioncache.backends.inductor import environment, joined_kernels
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.thunder_adapter.installation import is_known, list_patches

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")

JOINED = ("two", "small", "mask", "views")


@contextmanager
def counted(fail: bool = False) -> Iterator[list[str]]:
    """Yields a list of the names of the C++ compiler's builds in the body."""
    build, names = CppBuilder.build, list[str]()

    def count(self: CppBuilder) -> None:
        names.append(self._name)
        if fail and self._name == "joined":
            raise RuntimeError("no memory for the compiler")
        build(self)

    with mock.patch.object(CppBuilder, "build", count):
        yield names


def persist_together(names: Sequence[str], left: Callable[[int], None] = lambda left: None) -> dict[str, Compiled]:
    PyCodeCache.cache_clear()
    backend, cases = Inductor(), {name: CASES[name]() for name in names}
    with backend.compiled_together(list(cases.values()), left):
        return {name: backend.persist(*case) for name, case in cases.items()}


def test_one_run_of_the_compiler_makes_the_bits_of_each_alone():
    told: list[int] = []
    with counted() as names:
        together = persist_together(JOINED, told.append)
    assert names.count("joined") == 1 and told == [4, 3, 2, 1, 0]
    libraries = {artifacts["kernel-0.so"] for one in together.values() if "kernel-0.so" in (artifacts := one.artifacts)}
    assert len(libraries) == 1
    for name, compiled in together.items():
        graph, args = CASES[name]()
        alone = compile_case(name)
        assert artifacts_of(alone).get("kernel-0.so") not in libraries
        loaded = Inductor().load(artifacts_of(compiled), graph, args)
        assert digest(compiled.run(args)) == digest(loaded(args)) == digest(alone.run(args)), name


def test_where_the_compiler_fails_each_is_compiled_alone():
    with counted(fail=True) as names:
        together = persist_together(("two", "small"))
    assert names.count("joined") == 1
    assert len({artifacts_of(one).get("kernel-0.so") for one in together.values()}) == 2
    for name, compiled in together.items():
        assert compiled.artifacts is not None
        assert digest(compiled.run(CASES[name]()[1])) == digest(compile_case(name).run(CASES[name]()[1])), name


HEADER = joined_kernels.INCLUDE


def test_only_a_single_function_behind_the_known_header_is_joined():
    body = 'extern "C"  void  kernel(const float* a)\n{ #pragma omp\n }'
    other = body.replace("kernel", "other")
    assert joined_kernels.can_join(f"{HEADER}\n{body}")
    for source in (f"{HEADER}\n#define x\n{body}", f"{HEADER}\n#include <other.h>\n{body}", f"{HEADER}\n{other}"):
        assert not joined_kernels.can_join(source)
    assert not joined_kernels.can_join(f"#include <other.h>\n{body}")


def test_a_joined_library_proves_all_that_its_probes_assumed(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    joined_kernels.forget_probes()
    body = 'extern "C" void kernel(const float* a, float* b)\n{ b[0] = a[0] + 1; }\n'
    kernel = joined_kernels.CollectedKernel(("const float*", "float*"), f"{HEADER}\n{body}")
    built = []
    build = joined_kernels.build_and_load
    monkeypatch.setattr(joined_kernels, "build_and_load", lambda isa, code: built.append(code) or build(isa, code))
    with joined_kernels.collect_kernels():
        assert cpu_vec_isa.valid_vec_isa_list()
        library, _ = joined_kernels.compile_joined([kernel])
    for isa, name in joined_kernels.list_checks():
        assert getattr(isa, name) not in built
        for function in re.findall(r"(__avx512\w+chk_kernel\w*)\(", getattr(isa, name)):
            assert function.encode() in library
    joined_kernels.forget_probes()


@pytest.fixture(name="check")
def _check(monkeypatch, tmp_path):
    """Returns the function that checks an instruction set, and a list with an item for each uncached check."""
    asked: list[str] = []
    monkeypatch.setattr(environment, "artifact_environment", lambda: {"processor": "avx2"})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert cache_dir_utils.cache_dir() == str(tmp_path)
    monkeypatch.setattr(joined_kernels, "build_and_load", lambda self, code: asked.append(code) or "wrong" not in code)
    return joined_kernels.can_use, asked


def test_what_it_stands_in_for_is_as_it_was(monkeypatch):
    spec = importlib.util.spec_from_file_location("another", cpu_vec_isa.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "another", module)
    spec.loader.exec_module(module)
    (row,) = list_patches()["vector probes"].rows
    assert is_known(module.VecISA.check_build, row.digests)


def another(**attributes):
    other = VecAVX2()
    vars(other).update(attributes)
    return other


CHANGES = {
    "the flags": lambda patch: another(_arch_flags="-mavx2 -mfma"),
    "the macros": lambda patch: another(_macro=["OTHER"]),
    "the compiler": lambda patch: patch.setattr(cpu_vec_isa, "_get_isa_dry_compile_fingerprint", lambda flags: "other"),
    "the CPU": lambda patch: patch.setattr(environment, "artifact_environment", lambda: {"processor": "avx512f"}),
    "where libraries are": lambda patch: patch.setenv("LD_LIBRARY_PATH", "/elsewhere"),
    "what is loaded first": lambda patch: patch.setenv("LD_PRELOAD", ""),
    "where modules are": lambda patch: patch.setenv("TORCH_CUSTOM_PYTHONPATH", "/elsewhere"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_has_it_ask_again(what, check, monkeypatch):
    ask, asked = check
    ask(VecAVX2(), "code")
    with monkeypatch.context() as patch:
        changed = CHANGES[what](patch) or VecAVX2()
        assert ask(changed, "code") and len(asked) == 2
    assert ask(VecAVX2(), "code") and len(asked) == 2
    assert ask(VecAVX2(), "other code") and len(asked) == 3
    with config.patch({"cpp.simdlen": 8}):
        assert ask(VecAVX2(), "code") and len(asked) == 4


def test_it_asks_where_the_answer_is_no_or_nothing_can_be_known_or_kept(check, monkeypatch):
    ask, asked = check
    assert not ask(VecAVX2(), "wrong") and not ask(VecAVX2(), "wrong") and len(asked) == 2
    asked.clear()
    monkeypatch.setattr(environment, "artifact_environment", lambda: 1 / 0)
    assert ask(VecAVX2(), "code") and ask(VecAVX2(), "code") and len(asked) == 2
    monkeypatch.setattr(environment, "artifact_environment", dict)
    monkeypatch.setattr(joined_kernels.Path, "touch", mock.Mock(side_effect=OSError("full")))
    assert ask(VecAVX2(), "code") and len(asked) == 3


def test_a_library_is_built_and_loaded(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain = another(_macro=[], _arch_flags="")
    assert joined_kernels.can_use(plain, "int known = 1;")
    assert not joined_kernels.can_use(plain, "this is no C++")
    assert not joined_kernels.can_use(plain, "int gone(); int used = gone();")
    assert len(list(tmp_path.glob("fusioncache-instruction-sets/*"))) == 1


def test_torchinductor_probes_itself_where_this_fails(monkeypatch):
    monkeypatch.setattr(joined_kernels, "can_use", lambda *given: 1 / 0)
    asked: list[str] = []
    probe = joined_kernels.replace_probe(lambda self, code: asked.append(code) or True)
    assert probe(VecAVX2(), "code") and asked == ["code"]
