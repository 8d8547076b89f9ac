"""Dead code, copies of operations and regions: what passes make with and without shortcuts is the same."""

from itertools import pairwise

import pytest
import thunder
import torch
from thunder.core import transform_common, utils
from thunder.core.proxies import Variable
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import tracectx
from thunder.executors.utils import Region

from fusioncache import tracing
from fusioncache.thunder_adapter.shortcuts.symbols import shorten_remove_duplicates
from fusioncache.thunder_adapter.shortcuts.traces import shorten_dce, shorten_region


def program(x, weight):
    unused = x.exp()
    x, index = torch.max(torch.softmax(x @ weight, -1), -1)
    unused.sin()
    return torch.cat([x, x * 2]), index, torch.nn.functional.dropout(x, 0.5), x.shape[0] + 1


@pytest.fixture(scope="module")
def traces():
    tracing.uninstall()
    compiled = thunder.jit(program)
    compiled(torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True))
    return [*thunder.last_traces(compiled), *thunder.last_backward_traces(compiled)]


def own(function):
    return getattr(function, "__wrapped__", function)


def without_time(trace):
    return str(trace).rpartition("milliseconds")[2] or str(trace)


@pytest.mark.parametrize("groups", [(), ("symbols",), ("symbols", "lookups")], ids=str)
def test_dead_code_is_found_alike(traces, groups):
    original = own(transform_common.dce)
    fast = shorten_dce(original)
    tracing.install(groups)
    kept = []
    for trace in traces:
        needed = [{Variable(each) for each in trace.bound_symbols[0].flat_proxy_outs} for _ in range(2)]
        slow = original(trace, needed[0])
        assert without_time(slow) == without_time(fast(trace, needed[1]))
        assert {each.proxy.name for each in needed[0]} == {each.proxy.name for each in needed[1]}
        kept.append(len(fast(trace).bound_symbols))
        assert kept[-1] == len(original(trace).bound_symbols)
    assert kept[0] < len(traces[0].bound_symbols)


def test_numbers_that_are_returned_twice_are_removed_by_thunder(traces):
    from thunder.core import prims, proxies
    from thunder.core.trace import TraceCtx

    with tracectx(TraceCtx()):
        tensor = traces[0].bound_symbols[0].flat_proxy_outs[0]
        number = proxies.IntegerProxy("n", value=3)
        bsyms = [prims.shape.bind(tensor, output=(number,)), prims.shape.bind(tensor, output=(number, 2))]
        bsyms += [prims.shape.bind(tensor, output=(number,)), prims.sin.bind(tensor, output=tensor)]
    original = own(transform_common.remove_duplicate_number_proxies)
    for some in (bsyms, bsyms[3:], bsyms[1:3], []):
        slow, fast = original(some), shorten_remove_duplicates(original)(some)
        assert [each.output for each in slow] == [each.output for each in fast]


def describe_region(region):
    return [[each.proxy.name for each in some] for some in (region.inputs, region.outputs)]


def test_regions_take_and_give_the_same(traces):
    original = own(vars(Region)["__init__"])
    fast, seen = shorten_region(original), 0
    for trace in traces:
        producers, consumers = utils.producers(trace), utils.consumers(trace)
        bsyms = [each for each in trace.bound_symbols if each.flat_proxy_outs and each.flat_proxy_args]
        for begin, end in [(0, len(bsyms)), *pairwise(range(0, len(bsyms) + 1, 3))]:
            for some in (bsyms[begin:end], [each.from_bsym() for each in bsyms[begin:end]]):
                regions = [object.__new__(Region), object.__new__(Region)]
                for make, region in zip((original, fast), regions, strict=True):
                    make(region, producers, consumers, some)
                assert describe_region(regions[0]) == describe_region(regions[1])
                seen += bool(regions[0].inputs) + bool(regions[0].outputs)
    assert seen > 4 and all(isinstance(each, BoundSymbol) for each in bsyms)
