"""Verdicts of benchmarks: on bits, errors, curves, templates that grow, and the second process."""

from typing import Any

import pytest
import torch

from benchmarks.common.errors import check_against_wider, compare_errors
from benchmarks.common.models import Residual
from benchmarks.common.tensors import compare, count_epsilons, digest_all, name_results, same_bits
from benchmarks.equality import lengths, programs, traces, training
from benchmarks.equality.programs import FIRST, SECOND, THUNDER
from benchmarks.starts.__main__ import make_points
from benchmarks.starts.worker import StartSpec


def test_bits_are_compared_and_not_values_and_a_missing_tensor_differs():
    one = torch.tensor([0.0, 1.0])
    assert same_bits(one, one.clone()) and not same_bits(one, torch.tensor([-0.0, 1.0]))
    assert not same_bits(one, one.double()) and not same_bits(one, one[None]) and not same_bits(one, None)
    assert same_bits(torch.tensor(float("nan")), torch.tensor(float("nan")))
    assert count_epsilons(one + torch.tensor([0.0, 2.0**-22]), one) == 2.0
    tensors = {"output": torch.zeros(2), "gradient": torch.ones(2)}
    others = [{"output": -torch.zeros(2)}, {"gradient": torch.ones(2, dtype=torch.bfloat16)}, {"x": torch.ones(1)}]
    assert len({digest_all(tensors), *(digest_all(tensors | other) for other in others)}) == 4
    loss = {"loss": torch.tensor(1.0)}
    result = compare({}, loss, loss)
    assert (result["tensors"], result["bitwise"], result["differing"]) == (1, 0, ["loss"])
    assert compare(loss, loss, {"loss": torch.tensor(2.0)})["not_repeatable"] == ["loss"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_are_judged_by_those_of_a_wider_dtype(dtype):
    torch.manual_seed(0)
    model, example, name = Residual(2).to(dtype), torch.randn(10, 10), "gradient of weights.1"

    def step(dtype):
        model.zero_grad()
        output = model(example.to(dtype))
        (output * torch.linspace(-1, 1, 100).reshape(10, 10).to(dtype)).sum().backward()
        return name_results(model, output)

    right = {name: tensor.clone() for name, tensor in step(dtype).items()}
    assert check_against_wider(right, model, step)["correct"]
    for spoiled in (right[name] * 1.1, right[name] * float("nan"), None, torch.zeros(3)):
        found = {**right, name: spoiled} if spoiled is not None else {key: right[key] for key in right if key != name}
        verdict = check_against_wider(found, model, step)
        assert not verdict["correct"] and verdict["worst_tensor"] == name
    # Twice the error of eager is allowed, and no more.
    right, eager = {"output": torch.tensor([1.0])}, {"output": torch.tensor([1.01])}
    assert compare_errors({"output": torch.tensor([1.019])}, eager, right, 1e-6)["correct"]
    assert not compare_errors({"output": torch.tensor([1.021])}, eager, right, 1e-6)["correct"]
    assert compare_errors({"output": torch.tensor([1.021])}, right, right, 0.02)["correct"]


def start(way: str, digest: str, process: str = "cold", **more: Any) -> tuple[tuple[StartSpec, str], list[Any]]:
    spec = StartSpec(way=way, model="llama", layers=2, backend="eager", device="cpu", **{"dtype": "float32", **more})
    return (spec, process), [{"seconds": {"total": 1.0}, "counts": {}, "digest": digest}]


def test_thunders_ways_must_have_the_same_bits_where_nothing_is_rounded_between_regions():
    wrong = make_points(dict([start("thunder", "a"), start("fusioncache", "a"), start("fusioncache", "b", "warm")]))
    assert not any(point["correct"] for point in wrong)
    exact = [start("thunder", "a", recompute=True), start("own", "b")]
    assert not any(point["correct"] for point in make_points(dict(exact)))
    rounded = [start("thunder", "a", recompute=True, dtype="bfloat16"), start("own", "b", dtype="bfloat16")]
    assert all(point["correct"] for point in make_points(dict(rounded)))


def row(**changes: Any) -> dict[str, Any]:
    found = {"tensors": 3, "bitwise": 3, "differing": [], "largest_epsilons": 0.0, "regions": 9, "not_finite": []}
    return {"model": "llama-3", "layers": 2, "templates": 5, "not_repeatable": [], **found, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"differing": ["loss"], "largest_epsilons": 0.5}, "1 of 3 differ, the first is loss; 0.5 epsilons at most"),
        ({"regions": 0}, "there are no regions to share"),
        ({"not_finite": ["output"]}, "not finite: output"),
        ({"differing": ["loss", "x"], "not_repeatable": ["x"]}, "1 of 3 differ, the first is loss; 0 epsilons at most"),
        ({}, None),
    ],
)
def test_what_is_wrong_with_training_is_named(changes, says):
    assert training.find_problem(row(**changes)) == says


def step(**changes: Any) -> dict[str, Any]:
    right = {"batch": 2, "length": 8, "kind": "many", "compiles": 0, "tensors": 3, "bitwise": 3, "differing": []}
    return {**right, "largest_epsilons": 0.0, "not_finite": [], "not_repeatable": [], **changes}


WRONG = {"differing": ["output"], "largest_epsilons": 3.0}


@pytest.mark.parametrize(
    ("steps", "backend", "says"),
    [
        ([step(compiles=9), step(compiles=9), step()], "eager", None),
        ([step(compiles=9), step(compiles=9), step(length=9, compiles=1)], "eager", "2 rows of 9: 1 compiled"),
        ([step(compiles=9), step(compiles=9), step(batch=3, compiles=9), step(batch=3)], "eager", None),
        ([step(), step(), step(batch=3), step(batch=3, compiles=1)], "eager", "3 rows of 8: 1 compiled"),
        ([step(**WRONG)], "eager", "2 rows of 8: 1 tensors differ, the first is output; 3 epsilons at most"),
        ([step(**WRONG)], "inductor", None),
        ([step(**WRONG, not_repeatable=["output"])], "eager", None),
        ([step(not_finite=["loss"])], "eager", "2 rows of 8: loss is not finite"),
    ],
)
def test_what_is_wrong_at_lengths_is_named(steps, backend, says):
    assert lengths.find_problem({"steps": steps, "backend": backend, "epsilons": 64.0}) == says


def make(**changes: Any) -> dict[str, Any]:
    counts = {"traces": 0, "programs_made": 0, "programs_loaded": 0, "compiles": 0, "loads": 0}
    counts |= {"regions": 5, "templates": 5}
    reasons = {"programs_refused": {}, "unkept": {}, "bypasses": {}, "explained": []}
    facts = {"layers": 1, "way": "jit", "digests": {"loss": "1", "output": "2"}, "seconds": 0.1, "program_seconds": {}}
    return {**facts, **counts, **reasons, **changes}


LOADED = make(programs_loaded=1, loads=5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({SECOND: make(traces=1, error="AssertionError: x")}, "0 of 1 programs are loaded: AssertionError: x"),
        ({SECOND: make(traces=1, explained=["why"], error="x")}, "0 of 1 programs are loaded: why"),
        ({FIRST: make(traces=1, programs_refused={"random": 1}), SECOND: make()}, "0 of 1 programs are loaded: random"),
        ({SECOND: {**LOADED, "compiles": 2}}, "the second process compiles 2"),
        ({SECOND: {**LOADED, "digests": {"loss": "3"}}}, "second: 2 of 2 tensors differ, the first is loss"),
    ],
)
def test_what_a_second_process_does_otherwise_is_named(changes, says):
    said = {THUNDER: make(), FIRST: make(traces=1, programs_made=1, compiles=5), SECOND: LOADED, **changes}
    identity = {"model": "falcon", "layers": 1, "backend": "inductor"}
    assert programs.make_point(identity, said).get("error") == says


def test_the_first_line_of_a_trace_that_differs_is_named():
    for found, expected in (
        ({"a": "1\n2"}, None),
        ({"a": "1\n3"}, traces.Difference("a", 2, "2", "3")),
    ):
        assert traces.find_difference({"a": "1\n2"}, found) == expected
    found = {"traces": 11, "compared": ["all"], "differing": {}}
    first = {"trace": "piece 1, forward 1", "line": 3, "own": "a", "found": "b"}
    expected = "1 of 1 differ, the first is all: piece 1, forward 1, line 3: 'b' in place of 'a'"
    assert traces.find_problem({**found, "differing": {"all": first}}) == expected
    assert traces.find_problem({**found, "traces": 0}) == "there are no traces" and traces.find_problem(found) is None
