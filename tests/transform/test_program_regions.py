"""Regions of a program that is loaded: counted as those of a program that was derived, with what the run knows."""

from dataclasses import replace

import torch
from models import Blocks, step
from recorded_templates import make_cast_template, make_chain_template
from report_records import make_region_record
from stored_programs import compile_anew, counts

from fusioncache.accelerators.programs.derivation import collect_regions
from fusioncache.accelerators.programs.programs import count_regions
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import ChoiceRecord, PlanCost, RegionRecord

CHAIN, CAST = make_chain_template(), make_cast_template()
TEMPLATES = {template.key.digest: template for template in (CHAIN, CAST)}


def derive(ledger: Ledger, model: str = "GPT") -> int:
    """Puts what a derivation has on record: two regions of one template, one of another, one bypassed, and a stream."""
    number = ledger.history.begin_trace(model)
    chain, cast = CHAIN.key.digest, CAST.key.digest
    kinds = ((chain, "forward", None), (chain, "forward", "compile failed"), (cast, "backward", None))
    regions = [
        make_region_record(at, f"h.{at}", at, trace, digest, trace_number=number, model=model, reason=reason)
        for at, (digest, trace, reason) in enumerate(kinds)
    ]
    bypassed = make_region_record(3, "h.3", 3, trace_number=number, model=model, reason="unknown op")
    ledger.history.add(*(replace(region, arities=(2,)) for region in regions), bypassed)
    ledger.history.add(ChoiceRecord(model, "forward", number, "t7", 3, "carry", (PlanCost("carry", 3, 4, 2),)))
    return number


def test_regions_are_counted_and_recorded_again():
    first, cache = Ledger(), Ledger()
    content = collect_regions(first, derive(first))
    assert content is not None
    second = Ledger(cache)
    count_regions(content, "GPT", second, cache, TEMPLATES.get)
    stats = second.stats()
    assert (stats.regions, stats.templates, stats.hits, stats.misses) == (4, 2, 1, 2)
    assert (cache.stats().regions, dict(stats.bypasses)) == (4, {"unknown op": 1})
    regions = second.history.records(RegionRecord, 0)
    assert [region.outcome for region in regions] == ["miss", "hit", "miss", "bypass"]
    assert [region.reason for region in regions] == [None, None, None, "unknown op"]
    assert [region.source.module for region in regions] == ["h.0", "h.1", "h.2", "h.3"]
    assert [template.arities for template in second.templates()] == [((2,),), ((2,),)]
    assert second.history.records(ChoiceRecord, 0) == first.history.records(ChoiceRecord, 0) != ()
    assert second.history.models == ("GPT",) and second.history.traces == 1


def test_a_run_that_loads_has_the_regions_of_the_run_that_derived(tmp_path):
    torch.manual_seed(0)
    model, x = Blocks(3), torch.randn(5, 16)
    transforms = []
    for loaded in (0, 1):
        compiled, transform = compile_anew(model, tmp_path)
        step(compiled, model, x)
        assert counts(transform) == (loaded, 1 - loaded, {})
        transforms.append(transform)
    derived, loaded = ((transform.stats(), transform.cache.ledger.history) for transform in transforms)
    for count in ("regions", "templates", "hits", "misses", "bypasses"):
        assert getattr(derived[0], count) == getattr(loaded[0], count)
    assert derived[0].hits and derived[1].records(RegionRecord, 0) == loaded[1].records(RegionRecord, 0)
