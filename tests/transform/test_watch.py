"""What becomes of each region of a model, taken down one by one: that it agrees with what was counted."""

import warnings
from collections import Counter

import pytest
import torch
from models import Blocks, Residual, compile_with, recompute, step

import fusioncache
from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.observations import ChoiceRecord, CompileRecord, RegionRecord
from fusioncache.transform import sharing

pytestmark = pytest.mark.usefixtures("eager_regions")


def trained(model: torch.nn.Module, cache: fusioncache.Cache, **options) -> fusioncache.FusionCache:
    compiled, transform = compile_with(model, cache=cache, **options)
    x = torch.randn(10, 10) if isinstance(model, Residual) else torch.randn(2, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        step(compiled, model, x)
    return transform


def test_regions_on_disk_agree_with_the_counts():
    cache = fusioncache.Cache()
    trained(Blocks(2), cache)
    trained(Blocks(2), cache)
    cache.write_record()
    (run,) = RecordReader().runs()
    regions = RecordReader().regions(run.id)
    assert Counter(region.outcome for region in regions) == {"hit": run.stats.hits, "miss": run.stats.misses}
    assert Counter(region.digest for region in regions) == {
        t.digest: t.regions for t in RecordReader().templates(run.id)
    }
    assert {(region.model, region.trace, region.trace_number) for region in regions} == {
        ("Blocks", trace, number) for trace in ("forward", "backward") for number in (0, 1)
    }
    places = [(region.trace_number, region.trace == "backward", region.position) for region in regions]
    assert places == sorted(places)
    assert all((region.plan, region.reason) == ("inline", None) and region.ops for region in regions)


def test_executables_and_phases_on_disk_agree_with_the_counts():
    cache = fusioncache.Cache()
    trained(Blocks(1), cache)
    cache.write_record()
    (run,) = RecordReader().runs()
    made = RecordReader().records(run.id, CompileRecord)
    assert len(made) == run.stats.compiles
    assert sum(one.seconds for one in made) == pytest.approx(run.phases.compiling)
    assert [one.started for one in made] == sorted(one.started for one in made)
    assert {one.digest for one in made} == {template.digest for template in RecordReader().templates(run.id)}
    named = run.phases.to_dict()
    assert named.pop("loading") == 0
    assert len(named) == 7 and all(seconds > 0 for seconds in named.values())
    assert run.phases.planning + run.phases.canonicalizing == pytest.approx(run.stats.canonicalize_seconds)


def test_a_bypassed_region_carries_its_reason(monkeypatch):
    def odd(fusion):
        if len(fusion.subsymbols) == 1:
            raise Declined("a lonely operation", Scope.REGION)
        return region_of(fusion)

    region_of = sharing.region_of
    monkeypatch.setattr(sharing, "region_of", odd)
    cache = fusioncache.Cache(record=False)
    trained(Blocks(2), cache)
    left = [region for region in cache.ledger.history.records(RegionRecord) if region.outcome == "bypass"]
    assert {(region.digest, region.plan, region.reason) for region in left} == {(None, None, "a lonely operation")}
    assert {region.ops for region in left} == {1}
    assert cache.stats().bypasses == {"a lonely operation": len(left)}
    assert {region.source.layer for region in left} == {0, 1}


def test_streams_are_taken_down_as_they_were_chosen():
    cache = fusioncache.Cache()
    with recompute():
        transform = trained(Residual(4), cache)
    cache.write_record()
    (run,) = RecordReader().runs()
    choices = RecordReader().records(run.id, ChoiceRecord)
    assert [(choice.stream, choice.sums, choice.plan) for choice in choices] == [
        (choice.stream, choice.sums, choice.plan.value) for choice in transform.choices()
    ]
    for taken, chosen in zip(choices, transform.choices(), strict=True):
        costs = {plan.value: (cost.moved, cost.alive, cost.kernels) for plan, cost in chosen.costs.items()}
        assert {cost.plan: (cost.moved, cost.alive, cost.kernels) for cost in taken.costs} == costs
        assert taken.plan in costs and len(costs) > 1
    assert {choice.trace for choice in choices} <= {"forward", "backward"}
