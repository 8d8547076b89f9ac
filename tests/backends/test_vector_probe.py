"""TorchInductor asks once whether the CPU has some instructions, and again once anything is another one."""

import importlib.util
import sys

import pytest
from torch._inductor import config, cpu_vec_isa
from torch._inductor.cpu_vec_isa import VecAVX2
from torch._inductor.runtime import cache_dir_utils

from fusioncache.backends.inductor import environment, joined_kernels
from fusioncache.thunder_adapter.installation import is_known, list_patches
from fusioncache.transform.vector_probing import replace_probe


@pytest.fixture(name="check")
def _check(monkeypatch, tmp_path):
    """Returns what asks, and a list that has an item for each time that it was not known."""
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


@pytest.mark.parametrize(("code", "answer", "asks"), [("code", True, 1), ("wrong", False, 2)])
def test_yes_is_kept_for_later_processes_and_no_is_not(check, code, answer, asks):
    ask, asked = check
    assert [ask(VecAVX2(), code), ask(VecAVX2(), code)] == [answer, answer]
    assert asked == [code] * asks


def another(**attributes):
    other = VecAVX2()
    for name, value in attributes.items():
        setattr(other, name, value)
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


def test_other_options_have_it_ask_again(check):
    ask, asked = check
    ask(VecAVX2(), "code")
    with config.patch({"cpp.simdlen": 8}):
        assert ask(VecAVX2(), "code") and len(asked) == 2


def test_it_asks_where_nothing_can_be_known_or_kept(check, monkeypatch):
    ask, asked = check
    monkeypatch.setattr(environment, "artifact_environment", lambda: 1 / 0)
    assert ask(VecAVX2(), "code") and ask(VecAVX2(), "code") and len(asked) == 2
    monkeypatch.setattr(environment, "artifact_environment", dict)
    monkeypatch.setattr(joined_kernels.Path, "touch", lambda *given: (_ for _ in ()).throw(OSError("full")))
    assert ask(VecAVX2(), "code") and len(asked) == 3


def test_a_library_is_built_and_loaded(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain = another(_macro=[], _arch_flags="")
    assert joined_kernels.can_use(plain, "int known = 1;")
    assert not joined_kernels.can_use(plain, "this is no C++")
    assert not joined_kernels.can_use(plain, "int gone(); int used = gone();")
    assert len(list(tmp_path.glob("fusioncache-instruction-sets/*"))) == 1


def test_torchinductor_probes_itself_where_this_fails(monkeypatch):
    monkeypatch.setattr("fusioncache.transform.vector_probing.can_use", lambda *given: 1 / 0)
    asked: list[str] = []
    probe = replace_probe(lambda self, code: asked.append(code) or True)
    assert probe(VecAVX2(), "code") and asked == ["code"]
