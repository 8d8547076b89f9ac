"""Code of others in Thunder's tables refuses the programs for which it runs, and no others."""

import sys
from types import FunctionType

import pytest
import thunder
import torch
from program_keys import changed
from stored_programs import compile_anew, counts
from thunder.core import vjp_utils
from thunder.extend import ImplInfo, OperatorExecutor

import fusioncache
from fusioncache.accelerators.programs.definitions import Definitions, ForeignRuns
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined

X = torch.ones(3)


def run_one():
    return 1


def run_other():
    return 2


def watch(*functions):
    return ForeignRuns({each.__name__: (each.__code__,) for each in functions})


def is_kept(runs):
    try:
        runs.check()
    except Declined:
        return False
    return True


def test_what_ran_while_it_was_watched_is_told():
    run_one()
    first = watch(run_one, run_other)
    assert is_kept(first)
    second = watch(run_one)
    run_other()
    third = watch(run_other)
    assert [is_kept(each) for each in (first, second, third)] == [False, True, True]
    with pytest.raises(Declined, match=r"^Thunder runs run_other, and nothing records what that reads; give"):
        first.check()
    run_one()
    assert [is_kept(each) for each in (second, third)] == [False, True]


def test_what_cannot_be_watched_counts_as_run(monkeypatch):
    """Classes, and all where others have all numbers of ``sys.monitoring``."""
    assert not is_kept(ForeignRuns({"a.Class": None}))
    with monkeypatch.context() as patch:
        patch.setattr(sys.monitoring, "get_tool", lambda number: "a test")
        assert not is_kept(watch(run_one))
        assert is_kept(ForeignRuns({}))
    assert is_kept(watch(run_one))
    assert [sys.monitoring.get_tool(number) for number in range(6)].count("fusioncache") == 1


def test_functions_at_one_place_are_all_watched_even_of_equal_code():
    definitions = Definitions(Describer())
    functions = [FunctionType(run_one.__code__.replace(), {"__name__": __name__}) for _ in range(2)]
    for each in functions:
        definitions.name(each)
    place = f"{__name__}.run_one"
    assert definitions.foreign == {place: tuple(each.__code__ for each in functions)}
    runs = ForeignRuns(definitions.foreign)
    assert is_kept(runs)
    functions[1]()
    assert not is_kept(runs)
    definitions.name(type("run_one", (), {}))
    assert definitions.foreign == {place: None}


def test_derivatives_of_earlier_programs_are_derived_again():
    vjp_utils._cache["by code of others"] = None
    watch(run_one)
    assert not vjp_utils._cache


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


def test_programs_for_which_it_runs_are_refused_and_others_kept(tmp_path, monkeypatch):
    """What an executor asks of an operation, and what stands in for a function of Thunder's."""
    monkeypatch.setattr(thunder.clang, "cos", cosine)
    found = []
    for function in (torch.nn.functional.silu, torch.cos, torch.sin, torch.sin):
        call, transform = compile_with_others(lambda x, function=function: function(x), tmp_path)
        call(X)
        found.append(counts(transform))
    assert [each[:2] for each in found] == [(0, 0), (0, 0), (0, 1), (1, 0)]
    reasons = [next(iter(each[2]), "") for each in found]
    assert "test_foreign.is_able, and nothing" in reasons[0] and "test_foreign.cosine, and nothing" in reasons[1]
    assert reasons[2:] == ["", ""]


def test_classes_of_others_refuse_all(tmp_path):
    with changed(thunder.core.utils, "of_others", Own):
        call, transform = compile_anew(lambda x: torch.sin(x), tmp_path)
        call(X)
    assert counts(transform)[1] == 0
    assert any("test_foreign.Own, and nothing" in reason for reason in counts(transform)[2])
