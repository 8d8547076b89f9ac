"""When code for any sizes pays, where it cannot be stored."""

import pytest
import torch
from drawn_regions import Sketch

from fusioncache.backends.eager import Eager
from fusioncache.cache.backend_executables import BackendExecutables, BuildRequest
from fusioncache.cache.cache import Cache
from fusioncache.cache.generals import Generation, Sizes
from fusioncache.cache.length_rule import GENERAL_COST, LengthRule
from fusioncache.ir import TensorType
from fusioncache.ir.template import layouts_of

FUNCTION, OTHER = object(), object()


def lengths(rule: LengthRule, *waited: float, alone: float = 2.0, function: object = FUNCTION) -> list[bool]:
    """Returns, for each program, whether it gets code for any sizes, if each of the others waits so many seconds."""
    decided = []
    for number, seconds in enumerate(waited):
        program = Generation(function, number)
        decided.append(rule.takes_general(program))
        if not decided[-1]:
            rule.note(program, alone, seconds, may_share=number > 0)
    return decided


PRICE = GENERAL_COST * 2.0


@pytest.mark.parametrize(
    ("waited", "decided"),
    [
        ([2.0, PRICE / 2, PRICE / 2, 0.0, 0.0], [False, False, False, True, True]),
        ([2.0, PRICE, 0.0], [False, False, True]),
        ([2.0, *[PRICE / 10] * 9, 0.0], [False] * 11),
        ([1000.0, 0.0], [False, False]),
    ],
    ids=["in two lengths", "in one length", "not enough", "in the first length, which is no reason"],
)
def test_lengths_get_code_of_their_own_until_they_waited_as_long_as_code_for_any_sizes_takes(waited, decided):
    rule = LengthRule()
    assert lengths(rule, *waited) == decided
    assert lengths(rule, 2.0, 0.0, function=OTHER) == [False, False]  # each function pays for itself


def test_a_program_keeps_the_decision_that_it_began_with_and_a_cleared_cache_forgets():
    cache = Cache(record=False, store=False)
    rule, program = cache.length_rule, Generation(FUNCTION, 1)
    assert not rule.takes_general(program)
    rule.note(program, 1.0, 100.0, may_share=True)
    assert not rule.takes_general(program)
    assert rule.takes_general(Generation(FUNCTION, 2))
    cache.clear()
    assert not rule.takes_general(Generation(FUNCTION, 3))


@pytest.mark.parametrize(
    ("sizes", "stores", "cost", "general"),
    [
        (Sizes.AUTO, False, 100.0, [False, False, False]),
        (Sizes.AUTO, False, 1e-9, [False, False, True]),
        (Sizes.DYNAMIC, False, 100.0, [False, True, True]),
        (Sizes.AUTO, True, 100.0, [False, True, True]),
    ],
)
def test_programs_that_get_code_for_any_sizes(monkeypatch, sizes, stores, cost, general):
    monkeypatch.setattr(Eager, "stores_general", stores)
    monkeypatch.setattr("fusioncache.cache.executable.BuiltFunction.cost", property(lambda built: cost))
    cache = Cache(record=False, store=False)
    executables = BackendExecutables(Eager(), cache, cache.ledger, sizes=sizes)
    served = []
    for number, length in enumerate((64, 96, 128)):
        args, type_ = [torch.ones(2, length)], TensorType("float32", (2, length), "cpu")
        sketch = Sketch()
        graph = sketch.graph(sketch.op("tanh", sketch.input(type_), type_=type_))
        program, found = Generation(FUNCTION, number), []
        expected = executables.expects_general(graph, None, program)
        serve = lambda given, *, found=found, **_: found.append(given)  # noqa: E731
        request = BuildRequest(graph, layouts_of(args), lambda *_: None, serve, lambda: None, program)
        (result,) = executables.run_for(args, request)(args)
        assert torch.equal(result, torch.tanh(args[0]))
        assert expected == bool(found)  # what is handed over to the pool is what the call asks for
        served.append(bool(found))
    assert served == general
