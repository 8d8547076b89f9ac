"""Kinds of calls: one object for calls that are alike, another for each difference, and none in two programs."""

import threading
from contextlib import suppress

import pytest
import torch

from fusioncache.accelerators.graphs.calls import KindReader
from fusioncache.ir.errors import Declined


def make(*, value=1.0):
    return [torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(4)), value]


def test_calls_that_are_alike_are_of_one_kind():
    reader = KindReader(make())
    assert len({id(reader.kind_of(make())) for _ in range(4)}) == 1


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


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("before", [1, 3])
def test_each_difference_is_another_kind(name, before):
    reader = KindReader(make())
    kinds = [reader.kind_of(make()) for _ in range(before)]
    place, other = OTHERS[name]
    changed = make()
    changed[place] = other
    found = [reader.kind_of(changed) for _ in range(2)]
    assert found[0] is found[1] is not kinds[0]
    assert reader.kind_of(make()) is kinds[0]


def test_a_setting_of_torchs_is_another_kind():
    reader = KindReader(make())
    kind = reader.kind_of(make())
    matmul = torch.backends.cuda.matmul
    before, precision = matmul.allow_tf32, matmul.fp32_precision
    matmul.allow_tf32 = not before
    try:
        assert reader.kind_of(make()) is not kind
    finally:
        matmul.allow_tf32 = before
        matmul.fp32_precision = precision  # that is another one now than torch started with
    assert reader.kind_of(make()) is kind


def test_readers_have_no_kind_in_common():
    one, other = KindReader(make()), KindReader(make())
    assert one.kind_of(make()) != other.kind_of(make(value=2.0))
    assert one.kind_of(make()) != other.kind_of(make())


@pytest.mark.parametrize("other", [None, 3, "text"])
def test_no_tensor_where_others_had_one(other):
    reader = KindReader(make())
    reader.kind_of(make())
    with pytest.raises(Declined, match="an argument that cannot be compared with those of earlier calls"):
        reader.kind_of([torch.zeros(2, 3), other, 1.0])


class Meeting(float):
    """A number whose hash two threads ask for at one time."""

    barrier: threading.Barrier

    def __hash__(self):
        if self.barrier.n_waiting < 2 and not self.barrier.broken:
            with suppress(threading.BrokenBarrierError):
                self.barrier.wait(timeout=0.2)
        return float.__hash__(self)


def test_threads_that_meet_a_kind_at_one_time_share_it():
    Meeting.barrier = threading.Barrier(2)
    reader, found = KindReader(make()), []
    threads = [
        threading.Thread(target=lambda: found.append(reader.kind_of(make(value=Meeting(2.0))))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]
    others = [reader.kind_of(make(value=value)) for value in (3.0, 4.0, 5.0)]
    assert len({id(each) for each in [found[0], *others]}) == 4
