"""Which sums over ranks average instead of a division before them. No process takes part but this one."""

from collections.abc import Callable
from typing import Any

import pytest
import thunder.torch as ltorch
import torch
from thunder.core import dtypes, prims
from thunder.core.devices import Device
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.distributed.prims import DistributedReduceOps
from thunder.executors.torchex import all_reduce_prim_impl, reduce_scatter_prim_impl, wait_prim_impl

from fusioncache.accelerators.schedule import collective_passes
from fusioncache.accelerators.schedule.collective_passes import average_in_collectives, averages_exactly, divided_by
from fusioncache.accelerators.schedule.collectives import read_calls
from fusioncache.transform.rewrite import deletes

GROUP = torch.distributed.ProcessGroup(0, 2)


@pytest.fixture(autouse=True)
def pair_that_averages(monkeypatch):
    monkeypatch.setattr(collective_passes, "averages_exactly", lambda group: group is GROUP)


def trace_of(compute: Callable[[Any], Any], dtype: dtypes.dtype = dtypes.bfloat16) -> TraceCtx:
    """Returns the trace of a function of one tensor."""
    trace = TraceCtx()
    with tracectx(trace):
        gradient = TensorProxy("gradient", shape=(4, 8), device=Device("cpu"), dtype=dtype, requires_grad=False)
        prims.python_return(compute(gradient))
    return trace


def reduce(value: Any, **options: Any) -> Any:
    options = {"op": DistributedReduceOps.SUM, "group": GROUP, "do_async": True, **options}
    return wait_prim_impl(all_reduce_prim_impl(value, **options))


def names(trace: TraceCtx) -> list[str]:
    return [symbol.sym.name for symbol in trace.bound_symbols if not deletes(symbol)]


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("half", [lambda value: value / 2, lambda value: ltorch.true_divide(value, 2.0)])
def test_the_half_of_a_gradient_is_recognised(half, dtype):
    (symbol, _) = trace_of(half, dtype).bound_symbols
    assert divided_by(symbol, 2).name == "gradient"


@pytest.mark.parametrize(
    ("compute", "dtype"),
    [
        (lambda value: value / 2, dtypes.float16),  # halves of common gradients are rounded
        (lambda value: value / 3, dtypes.float32),
        (lambda value: 2 / value, dtypes.float32),
        (lambda value: value / value, dtypes.float32),
        (lambda value: value * 2, dtypes.float32),
        (lambda value: ltorch.mean(value), dtypes.float32),
        (lambda value: ltorch.div(value, 2, rounding_mode="floor"), dtypes.float32),
        (lambda value: ltorch.to(value, torch.float32), dtypes.bfloat16),
    ],
)
def test_nothing_else_is_a_half(compute, dtype):
    assert all(divided_by(symbol, 2) is None for symbol in trace_of(compute, dtype).bound_symbols[:-1])


@pytest.mark.parametrize("scatters", [False, True])
def test_a_sum_of_halves_becomes_an_average(scatters):
    def compute(gradient: Any) -> Any:
        half = gradient / 2
        if scatters:
            return wait_prim_impl(reduce_scatter_prim_impl(half, DistributedReduceOps.SUM, GROUP, True, None))
        return reduce(half)

    before = trace_of(compute)
    after = average_in_collectives(before)
    name = "reduce_scatter_average" if scatters else "all_reduce_average"
    assert names(after) == [name, "torch_wait_prim_impl", "python_return"]
    assert after.bound_symbols[0].flat_proxy_args[0].name == "gradient"
    assert after.bound_symbols[0].output is before.bound_symbols[1].output


@pytest.mark.parametrize(
    "compute",
    [
        reduce,
        lambda value: (reduce(half := value / 2), half),
        lambda value: reduce(value / 4),
        lambda value: reduce(value / 2 / 1.5),
        lambda value: reduce(value / 2, op=DistributedReduceOps.MAX),
        lambda value: reduce(value / 2, skip_clone=True),
        lambda value: reduce(value / 2, group=torch.distributed.ProcessGroup(0, 2)),
        lambda value: reduce(ltorch.to(value / 2, torch.float32)),
        lambda value: (
            reduce(value / 2),
            prims.copy_(value, value, grad_enabled=False),
        ),  # the gradient would be read too late
    ],
)
def test_all_other_sums_stay(compute):
    before = trace_of(compute)
    assert average_in_collectives(before) is before


def test_averages_do_not_travel_with_sums(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: [0, 1])
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: "nccl")
    monkeypatch.setattr(torch.distributed.ProcessGroup, "group_name", "pair")
    trace = average_in_collectives(trace_of(lambda value: (reduce(value / 2), reduce(value))))
    symbols = [symbol for symbol in trace.bound_symbols if not deletes(symbol)]
    average, _, total, _, _ = read_calls(symbols).calls
    assert average.message == "all_reduce AVG bfloat16 (4, 8) over 0,1"
    assert average.channel and total.channel and average.channel != total.channel


@pytest.mark.parametrize(("backend", "size", "averages"), [("nccl", 2, True), ("nccl", 3, False), ("gloo", 2, False)])
def test_only_a_pair_over_nccl_averages(monkeypatch, backend, size, averages):
    monkeypatch.setattr(torch.distributed, "get_backend", lambda group: backend)
    assert averages_exactly(torch.distributed.ProcessGroup(0, size)) is averages
