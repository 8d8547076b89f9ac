"""Operations in regions of our executor compute what Thunder computes without it: for any operation and arguments."""

import os
import warnings
from collections import Counter
from contextlib import suppress
from enum import IntEnum
from itertools import cycle, islice, product
from unittest import mock

import thunder
import thunder.torch as ltorch
import torch
from thunder.core.prims import OpTags
from thunder.core.symbol import Symbol
from thunder.executors.passes import transform_for_execution
from thunder.executors.pythonex import ex as python_executor
from thunder.executors.torchex import ex as torch_executor
from thunder.extend import get_executor

import fusioncache
from fusioncache.backends.eager import Eager

THUNDERS = (torch_executor, python_executor)
DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64")
SHAPES = ((3,), (), (3,), (0, 3))
STRIDE = int(os.environ.get("STRIDE", 13))
VALUES = ((1.5, -2.0, 0.75), (3.0, 1.25, -0.5), (-1.0, 2.5, 4.0))
RANDOM = {"bernoulli", "exponential", "rrelu", "put_grad"}


# Numbers of a user's classes.
Real, Whole = type("Real", (float,), {}), type("Whole", (int,), {})
Member = IntEnum("Member", {"TWO": 2})
NUMBERS = {"bool": (True,), "int": (3, Whole(3), -2, Member.TWO), "float": (2.5, Real(2.5)), "complex": (1 + 2j,)}


def tensor_of(dtype, shape, number):
    kind = getattr(torch, dtype)
    values = torch.tensor(VALUES[number])
    if not (kind.is_floating_point or kind.is_complex):
        values = values.ceil() if kind.is_signed else values.abs().ceil()
    values = values > 0 if kind is torch.bool else values.to(kind)
    return values if shape == (3,) else values[1] if shape == () else values.new_zeros(shape)


class Case:
    """An operation with arguments: tensors, and numbers that are literals in the trace."""

    def __init__(self, operation, args):
        self.tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]

        def function(*tensors):
            given = iter(tensors)
            return operation(*(next(given) if isinstance(arg, torch.Tensor) else arg for arg in args))

        self.trace = thunder.trace()(function, *self.tensors)

    def run(self, trace):
        try:
            results = trace.python_callable()(*self.tensors)
        except Exception as error:
            return error
        return list(results) if isinstance(results, tuple | list) else [results]


class Comparison:
    """Compares Thunder without us, the eager backend, and the fallback if that fails."""

    def __init__(self):
        cache = fusioncache.Cache(record=False, store=False)
        options = {"cache": cache, "backend": "eager", "programs": False, "sizes": "static"}
        self.transform, self.failing = (fusioncache.FusionCache(**options) for _ in range(2))
        self.executor = get_executor("fusioncache")
        self.counts: Counter[str] = Counter()

    def compare(self, case):
        """Returns the outcomes if they differ, otherwise None."""
        ours = None
        with suppress(Exception):
            ours = transform_for_execution(case.trace, (self.executor, *THUNDERS))
        if ours is None or not any(symbol.sym.is_fusion for symbol in ours.bound_symbols):
            self.counts["left to torch"] += 1
            return None
        expected = case.run(transform_for_execution(case.trace, THUNDERS))
        found = case.run(self.transform.transform_trace_post_optimization(ours))
        with mock.patch.object(Eager, "compile", side_effect=RuntimeError("forced")), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fallen = case.run(self.failing.transform_trace_post_optimization(ours))
        self.counts["fused"] += 1
        outcomes = expected, found, fallen
        failed = [isinstance(outcome, Exception) for outcome in outcomes]
        if any(failed):
            return None if all(failed) else outcomes
        tolerance = 64 * max((torch.finfo(each.dtype).eps for each in case.tensors if is_rounded(each)), default=2e-16)
        self.counts["bitwise"] += are_alike(found, expected)
        return None if are_alike(found, fallen) and are_alike(found, expected, tolerance) else outcomes


def is_rounded(tensor):
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def are_alike(found, expected, tolerance=0.0):
    """True if everything is equal; with a tolerance floating-point numbers may differ by roundings."""
    if list(map(type, found)) != list(map(type, expected)):
        return False
    for one, other in zip(found, expected, strict=True):
        if not isinstance(one, torch.Tensor):
            if one != other:
                return False
        elif (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
            return False
        elif tolerance and is_rounded(one):
            rounding = max(tolerance, 64 * torch.finfo(one.dtype).eps)
            if not torch.allclose(one, other, rtol=rounding, atol=rounding, equal_nan=True):
                return False
        elif not torch.equal(*(each.clone().reshape(-1).view(torch.uint8) for each in (one, other))):
            return False
    return True


PATTERNS = ("t", "tt", "tn", "nt", "ttt", "ttn", "tnt", "ntt", "tnn")


def all_operations(executor):
    """Yields each of Thunder's torch operations that may be in a region, with each pattern that can be traced."""
    for name, symbol in sorted(vars(ltorch).items()):
        is_known = isinstance(symbol, Symbol) and OpTags.AUTO_REGISTERED not in (symbol.tags or ())
        if not is_known or name.startswith("_") or name.endswith("_") or name in RANDOM:
            continue
        cases = {}
        for pattern in PATTERNS:
            args = [tensor_of("float32", (3,), place) if each == "t" else 2.5 for place, each in enumerate(pattern)]
            if (case := try_case(symbol, args)) is not None:
                cases[pattern] = case
        if any(executor.can_fuse(each) for case in cases.values() for each in case.trace.bound_symbols):
            yield from ((symbol, pattern) for pattern in cases)


def try_case(operation, args):
    with suppress(Exception):
        return Case(operation, args)


def list_kinds(pattern):
    """Yields a dtype or kind of number for each operand: for two, each with itself and with one of each category."""
    for chosen in product(*(DTYPES if each == "t" else NUMBERS for each in pattern)):
        dtypes = {kind for each, kind in zip(pattern, chosen, strict=True) if each == "t"}
        are_equal = len(dtypes) == 1 and (len(pattern) < 3 or chosen.count("complex") < 2)
        if are_equal or (len(dtypes) == len(pattern) == 2 and dtypes & {"bool", "int64", "float32"}):
            yield chosen


def test_what_is_claimed_computes_what_torch_computes():
    """One in thirteen of all cases, so that it takes seconds; with STRIDE=1 in the environment all of them."""
    comparison, shapes = Comparison(), cycle(SHAPES)
    numbers = {kind: cycle(values) for kind, values in NUMBERS.items()}
    drawn = ((each, kinds) for each in all_operations(comparison.executor) for kinds in list_kinds(each[1]))
    wrong = []
    for (operation, pattern), kinds in islice(drawn, 0, None, STRIDE):
        shape = next(shapes)
        args = [
            tensor_of(kind, shape, place) if each == "t" else next(numbers[kind])
            for place, (each, kind) in enumerate(zip(pattern, kinds, strict=True))
        ]
        case = try_case(operation, args)
        if case is not None and (outcome := comparison.compare(case)) is not None:
            wrong.append((operation.name, args, outcome))
    assert not wrong, (len(wrong), wrong[:3])
    counts = comparison.counts
    assert counts["fused"] >= 3000 // STRIDE and counts["fused"] + counts["left to torch"] >= 6000 // STRIDE
    assert counts["bitwise"] >= 0.95 * counts["fused"]
