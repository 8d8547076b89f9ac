"""What becomes of each region of a model, taken down one by one: that it agrees with what was counted."""

import warnings
from collections import Counter
from dataclasses import replace

import pytest
import torch
from models import Blocks, Residual, compile_with, recompute, step
from report_records import make_region_record
from stored_programs import compile_anew, counts

import fusioncache
from fusioncache.accelerators.programs.derivation import collect_regions
from fusioncache.accelerators.programs.programs import count_regions
from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import ChoiceRecord, CompileRecord, RegionRecord
from fusioncache.transform import sharing

pytestmark = pytest.mark.usefixtures("eager_regions")


@pytest.fixture
def lonely_operations(monkeypatch):

    def odd(fusion):
        if len(fusion.subsymbols) == 1:
            raise Declined("a lonely operation", Scope.REGION)
        return region_of(fusion)

    region_of = sharing.region_of
    monkeypatch.setattr(sharing, "region_of", odd)


def trained(model: torch.nn.Module, cache: fusioncache.Cache) -> fusioncache.FusionCache:
    compiled, transform = compile_with(model, cache=cache)
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
    regions, templates = RecordReader().regions(run.id), RecordReader().templates(run.id)
    assert Counter(region.outcome for region in regions) == {"hit": run.stats.hits, "miss": run.stats.misses}
    assert Counter(region.digest for region in regions) == {each.digest: each.regions for each in templates}
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


def test_a_bypassed_region_carries_its_reason(lonely_operations):
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


@pytest.mark.parametrize("make", [lambda: Blocks(3), lambda: Residual(4)], ids=["blocks", "streams"])
def test_a_run_that_loads_has_on_record_what_the_run_that_derived_has(make, tmp_path, monkeypatch):
    """But that a template could not be compiled, which only the process can say."""
    torch.manual_seed(0)
    model, found = make(), []
    x = torch.ones(10, 10 if isinstance(model, Residual) else 16)
    for loaded in (0, 1):
        compiled, transform = compile_anew(model, tmp_path)
        with recompute(), monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            if not loaded:
                patch.setattr("fusioncache.backends.eager.Eager.compile", lambda *_: 1 / 0)
            step(compiled, model, x)
        assert counts(transform) == (loaded, 1 - loaded, {})
        found.append((transform.stats(), transform.cache.ledger))
    (first, derived), (second, again) = found
    for count in ("regions", "templates", "hits", "misses"):
        assert getattr(first, count) == getattr(second, count)
    assert first.hits and first.bypasses and not second.bypasses
    assert [each.arities for each in derived.templates()] == [each.arities for each in again.templates()]
    assert again.history.models == derived.history.models and again.history.traces == 1
    lasting = [replace(region, reason=None) for region in derived.history.records(RegionRecord, 0)]
    assert list(again.history.records(RegionRecord, 0)) == lasting
    choices = [ledger.history.records(ChoiceRecord, 0) for ledger in (derived, again)]
    assert choices[0] == choices[1] and bool(choices[0]) == isinstance(model, Residual)


def test_a_region_without_a_template_is_counted_with_its_reason_again():
    first, cache = Ledger(), Ledger()
    first.history.begin_trace("GPT")
    first.history.add(make_region_record(0, "h.0", 0, model="GPT", reason="unknown op"))
    second = Ledger(cache)
    count_regions(collect_regions(first, 0), "GPT", second, cache, lambda digest: None)
    assert second.stats().bypasses == cache.stats().bypasses == {"unknown op": 1}
    assert second.history.records(RegionRecord, 0) == first.history.records(RegionRecord, 0) != ()
