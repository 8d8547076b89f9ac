"""Collectives: which sums ranks make in place, and how ranks notice differences. All ranks are in one process."""

import pytest
import thunder
import thunder.torch as ltorch
import torch
from thunder.core.symbol import Symbol
from thunder.distributed.prims import DistributedReduceOps
from thunder.executors import torchex
from thunder.executors.torchex import all_reduce_prim_impl, reduce_scatter_prim_impl, wait_prim_impl
from torch.distributed import HashStore

from fusioncache.accelerators.schedule.collective_passes import (
    all_reduce_in_place,
    all_reduce_together,
    reduce_in_place,
)
from fusioncache.accelerators.schedule.scheduling import (
    CollectiveAgreement,
    CollectiveCounts,
    CollectiveMismatch,
    GroupSequence,
)

GROUP, ALONE = torch.distributed.ProcessGroup(0, 4), torch.distributed.ProcessGroup(0, 1)


def symbols_of(compute, dtype=torch.bfloat16):
    inputs = (torch.zeros(shape, dtype=dtype) for shape in ((4, 8), (8, 6), (2, 4, 8)))
    return thunder.trace()(compute, *inputs).bound_symbols


def reduce(value, **options):
    options = {"op": DistributedReduceOps.SUM, "group": GROUP, "do_async": True, **options}
    return wait_prim_impl(all_reduce_prim_impl(value, **options))


def region(compute):
    """Returns a function whose calls in a trace are one bound symbol each, as a compiler's are."""

    def call(*args):
        return Symbol("region0", meta=compute, is_fusion=True)(*args)

    return call


def divide(gradient):
    return ltorch.to(ltorch.true_divide(ltorch.to(gradient, torch.float32), 4.0), gradient.dtype)


def name_sums(symbols):
    return [symbol.sym.name for symbol in symbols if "reduce" in symbol.sym.name]


def differentiate_embedding(x, *, sparse):
    return torchex.embedding_backward(x, ltorch.zeros(4, device="cpu", dtype=torch.int64), 16, -1, False, sparse)


OVERWRITTEN = {
    "an embedding": lambda x, y, deep: reduce(differentiate_embedding(x, sparse=False)),
    "a product": lambda x, y, deep: reduce(torchex.matmul(x, y)),
    "a gradient that is divided": lambda x, y, deep: reduce(region(divide)(x)),
    "one that is divided while others read it": lambda x, y, deep: (reduce(region(divide)(x)), torchex.exp(x)),
}
COPIED = {
    "a sparse gradient": lambda x, y, deep: reduce(differentiate_embedding(x, sparse=True)),
    "an argument": lambda x, y, deep: reduce(x),
    "what is returned as well": lambda x, y, deep: (reduce(product := torchex.matmul(x, y)), product),
    "what is read as well": lambda x, y, deep: (reduce(product := torchex.matmul(x, y)), torchex.exp(product)),
    "what is read by another sum": lambda x, y, deep: (reduce(product := torchex.matmul(x, y)), reduce(product)),
    "a view": lambda x, y, deep: reduce(torchex.reshape(torchex.matmul(x, y), (24,))),
    "a product of more dimensions, which may lie otherwise": lambda x, y, deep: reduce(torchex.matmul(deep, y)),
    "what some operation gives": lambda x, y, deep: reduce(torchex.exp(x)),
    "a region that may give its argument": lambda x, y, deep: reduce(region(lambda a: ltorch.reshape(a, (32,)))(x)),
    "a division by another number": lambda x, y, deep: reduce(region(lambda a: ltorch.true_divide(a, 3.0))(x)),
    "a region that multiplies": lambda x, y, deep: reduce(region(lambda a: ltorch.mul(a, 4.0))(x)),
    "a region that divides twice": lambda x, y, deep: reduce(region(lambda a: divide(divide(a)))(x)),
    "a region that does more": lambda x, y, deep: reduce(region(lambda a: ltorch.exp(divide(a)))(x)),
    "a region with two results": lambda x, y, deep: [
        reduce(each) for each in region(lambda a: (ltorch.true_divide(a, 4.0), ltorch.reshape(a, (32,))))(x)
    ],
    "a division by one, which is the number itself": lambda x, y, deep: reduce(
        region(lambda a: ltorch.true_divide(a, 1.0))(x), group=ALONE
    ),
    "a sum that is waited for at once": lambda x, y, deep: all_reduce_prim_impl(
        torchex.matmul(x, y), DistributedReduceOps.SUM, GROUP, False
    ),
    "a part of a sum": lambda x, y, deep: wait_prim_impl(
        reduce_scatter_prim_impl(torchex.matmul(x, y), DistributedReduceOps.SUM, GROUP, True, None)
    ),
    "a sum that Thunder makes in place": lambda x, y, deep: reduce(torchex.matmul(x, y), skip_clone=True),
}


@pytest.mark.parametrize("case", OVERWRITTEN)
def test_what_nothing_else_is_computed_for_is_overwritten(case):
    symbols = symbols_of(OVERWRITTEN[case])
    after = reduce_in_place(symbols)
    assert name_sums(after) == ["all_reduce_in_place"]
    assert [symbol.output for symbol in after] == [symbol.output for symbol in symbols]
    (before,), (sums,) = ([each for each in given if each.sym.name in name_sums(given)] for given in (symbols, after))
    assert [proxy.name for proxy in sums.flat_proxy_args] == [proxy.name for proxy in before.flat_proxy_args]


@pytest.mark.parametrize("case", COPIED)
def test_of_all_else_ranks_add_up_copies(case):
    symbols = symbols_of(COPIED[case], torch.float32)
    assert name_sums(reduce_in_place(symbols)) == name_sums(symbols) != []


@pytest.fixture
def job(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_a_dense_gradient_is_what_comes_out_and_another_one_stays_as_it_is(job):
    for gradient in (torch.randn(4, 6), torch.randn(6, 4).t()):
        expected = gradient.clone()
        work, total = all_reduce_in_place(gradient, DistributedReduceOps.SUM, job, True)
        work.wait()
        assert torch.equal(total, expected) and total.is_contiguous()
        assert (total is gradient) == gradient.is_contiguous()


class Group:
    """Replaces a process group; its all-reduce adds 1 to each tensor."""

    def allreduce_coalesced(self, tensors, options):
        for tensor in tensors:
            tensor.add_(1.0)


def test_of_those_that_travel_together_each_is_itself_or_a_copy():
    gradients = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, 2).t()]
    found = all_reduce_together(gradients, Group(), DistributedReduceOps.SUM, (True, False, True))
    assert [total is gradient for (_, total), gradient in zip(found, gradients, strict=True)] == [True, False, False]
    assert [gradient.sum().item() for gradient in gradients] == [6.0, 0.0, 0.0]
    assert all(total.sum().item() == 6.0 for _, total in found)


LONG, SHORT = ("all_gather float32 (8,)", "all_reduce SUM float32 (4,)"), ("all_gather float32 (8,)",)
OTHER = ("all_gather float32 (8,)", "all_reduce SUM float32 (2,)")


class Rank:
    """One of two or three ranks, which take turns in this process."""

    def __init__(self, number: int, store: object, ranks: tuple[int, ...] = (0, 1)):
        self.number, self.store, self.ranks = number, store, ranks
        self.group, self.places = Group(), CollectiveCounts()

    def derive(self, *messages: str) -> CollectiveAgreement:
        stretch = GroupSequence(self.group, "0", self.ranks, messages)
        return CollectiveAgreement([stretch], self.number, self.store, self.places)

    def count(self) -> int:
        return self.places.advance(self.group, 0)


def make_ranks(count: int = 2) -> list[Rank]:
    store = HashStore()
    return [Rank(number, store, tuple(range(count))) for number in range(count)]


def test_ranks_that_do_the_same_go_on_and_what_one_runs_again_keeps_no_other_waiting():
    one, other = make_ranks()
    first = one.derive(*LONG)
    first()
    first()
    for _ in range(2):
        other.derive(*LONG)()
    one.derive(*SHORT)()
    other.derive(*SHORT)()
    assert one.count() == other.count() == 2 * len(LONG) + len(SHORT)


def test_programs_are_compared_at_their_place_among_all_that_ran():
    """One rank derives a program again, the other does not: their next programs are not taken for each other."""
    one, other = make_ranks()
    kept = other.derive(*LONG)
    for _ in range(3):
        one.derive(*LONG)()
        kept()
    one.derive(*OTHER)()
    with pytest.raises(CollectiveMismatch, match=r"^collective 2 is all_reduce SUM float32 \(4,\) on rank 1, and"):
        other.derive(*LONG)()


def test_each_group_has_places_of_its_own():
    store, places = HashStore(), CollectiveCounts()
    rows, columns = Group(), Group()
    both = [GroupSequence(rows, "rows", (0, 1), LONG), GroupSequence(columns, "columns", (0, 2), SHORT)]
    CollectiveAgreement(both, 0, store, places)()
    CollectiveAgreement(both[:1], 0, store, places)()
    assert places.advance(rows, 0) == 2 * len(LONG)
    assert places.advance(columns, 0) == len(SHORT)


def test_a_store_that_fails_ends_no_job():
    rank = Rank(0, object())
    rank.derive(*LONG)()
    assert rank.count() == len(LONG)
