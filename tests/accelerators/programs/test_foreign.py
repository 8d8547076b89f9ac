"""Code of others in Thunder's tables refuses all programs, as nothing records what it reads."""

import pytest
import thunder
import torch
from program_keys import changed
from stored_programs import compile_anew, counts
from thunder.extend import ImplInfo, OperatorExecutor

import fusioncache

X = torch.ones(3)


class Own:
    """A class that others register."""


def is_able(*_):
    return False


def cosine(a):
    return OWN_COSINE(a)


OWN_COSINE = thunder.clang.cos


def compile_with_others(function, directory):
    """Compiles with an executor that says of each SiLU that it does not do it."""
    executor = OperatorExecutor("of_others", version="1")
    executor._implmap["torch.nn.functional.silu"] = ImplInfo(checker=is_able)
    return compile_anew(function, directory, jit={"executors": [executor, *fusioncache.executors()]})


def test_what_an_executor_asks_of_an_operation(tmp_path):
    call, transform = compile_with_others(torch.sin, tmp_path)
    call(X)
    assert counts(transform)[:2] == (0, 0)
    assert any("test_foreign.is_able, and nothing" in reason for reason in counts(transform)[2])


@pytest.mark.parametrize("value", [Own, cosine])
def test_what_thunders_modules_have(tmp_path, value):
    with changed(thunder.core.utils, "of_others", value):
        call, transform = compile_anew(lambda x: torch.sin(x), tmp_path)
        call(X)
        call(X.double())
    assert counts(transform)[:2] == (0, 0)
    assert any(f"test_foreign.{value.__name__}, and nothing" in reason for reason in counts(transform)[2])
    call, transform = compile_anew(lambda x: torch.sin(x), tmp_path)
    call(X)
    assert counts(transform) == (0, 1, {})
