"""Kinds of calls, and what could differ between a capture and a later call: it is noticed, each difference alone."""

import pytest
import torch
from captured_programs import capture, make_input

from fusioncache.accelerators.graphs.calls import KindReader
from fusioncache.ir.errors import Declined


def make():
    return [torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(4)), 1.0]


OTHERS = {
    "strides": (0, torch.zeros(3, 2).t()),
    "strides of a parameter": (1, torch.nn.Parameter(torch.zeros(8)[::2])),
    "a parameter": (0, torch.nn.Parameter(torch.zeros(2, 3))),
    "no parameter": (1, torch.zeros(4)),
    "negative": (0, torch._neg_view(torch.zeros(2, 3))),
    "number": (2, 2.0),
    "type of a number": (2, 1),
    "nothing": (2, None),
}


@pytest.mark.parametrize(("place", "other"), OTHERS.values(), ids=OTHERS)
def test_calls_that_are_alike_are_of_one_kind_and_each_difference_is_another(place, other):
    reader = KindReader(make())
    (kind,) = {reader.kind_of(make()) for _ in range(3)}
    changed = make()
    changed[place] = other
    found = [reader.kind_of(changed) for _ in range(2)]
    assert found[0] is found[1] is not kind
    assert reader.kind_of(make()) is kind
    assert KindReader(make()).kind_of(make()) != kind


def test_no_tensor_where_others_had_one():
    reader = KindReader(make())
    reader.kind_of(make())
    for other in (None, 3, "text"):
        with pytest.raises(Declined, match="an argument that cannot be compared with those of earlier calls"):
            reader.kind_of([torch.zeros(2, 3), other, 1.0])


def test_inference_mode_is_no_trap():
    function = lambda x: (x * 2 + 1,)  # noqa: E731
    captured, _, ledger = capture(function)
    for seed in range(3):
        with torch.inference_mode():
            assert torch.equal(captured(make_input(seed))[0], function(make_input(seed))[0])
    for seed in range(3):
        (result,) = captured(make_input(seed))
        assert torch.equal(result, function(make_input(seed))[0])
        result.add_(1)
    assert ledger.stats().captures == 1


class Own(torch.Tensor):
    pass


def test_a_tensor_of_another_class_runs_as_it_is():
    captured, _, ledger = capture(lambda x: (x + 1,))
    for seed in range(3):
        captured(make_input(seed))
    (result,) = captured(make_input(1).as_subclass(Own))
    assert type(result) is Own
    assert ledger.stats().graph_replays == 2
    assert dict(ledger.stats().not_captured) == {"it takes a value of type Own": 1}


def test_there_is_a_limit_to_kinds(monkeypatch):
    monkeypatch.setattr("fusioncache.accelerators.graphs.calls.MOST_KINDS", 2)
    captured, _, ledger = capture(lambda x, factor: (x * factor,))
    for factor in (1, 2, 3, 3, 1, 2):
        assert torch.equal(captured(make_input(1), factor)[0], make_input(1) * factor)
    assert dict(ledger.stats().not_captured) == {"more than 2 kinds of inputs": 2}
    assert ledger.stats().captures == 2


def write(x, target):
    target.copy_(x)
    return (target + 1,)


WRITES = {
    "that lies still": (True, True, None),
    "that moves, as is known": (True, False, "it writes into arguments whose addresses change"),
    "that moves, as the capture shows": (False, False, "it writes into an argument whose address changes"),
}


@pytest.mark.parametrize(("is_known", "lies_still", "reason"), WRITES.values(), ids=WRITES)
def test_what_is_written_into_an_argument(is_known, lies_still, reason):
    captured, _, ledger = capture(write, writes=is_known)
    x, target = torch.ones(3), torch.zeros(3)
    for value in range(5):
        if not lies_still:
            x, target = x.clone(), target.clone()
        x.fill_(value)
        assert torch.equal(captured(x, target)[0], x + 1)
        assert torch.equal(target, x)
    assert dict(ledger.stats().not_captured) == ({reason: 1} if reason else {})
    assert ledger.stats().graph_replays == (0 if reason else 4)
