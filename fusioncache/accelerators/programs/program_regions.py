"""What a run has on record of a program's regions: kept beside the program, and counted again where it is loaded.

A run that loads its programs traces nothing, and yet its regions are those of the traces: they share templates, have
plans, and come from lines of the model. Counted as if they had been traced here, they say what sharing saved, and the
report has its map, and what was chosen for the residual streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fusioncache.ir import Template
from fusioncache.observe.record.kept_regions import KeptRegions, decode_regions, encode_regions
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import RegionRecord


def collect_regions(ledger: Ledger, trace_number: int) -> bytes | None:
    """Returns the regions and streams of what was just derived; None if several models were traced meanwhile.

    Args:
        ledger: has them in its history.
        trace_number: how many forward traces there were before.
    """
    history = ledger.history
    if history.traces != trace_number + 1:
        return None
    regions = (replace(region, reason=_lasting(region)) for region in history.find_regions(trace_number))
    return encode_regions(regions, history.find_choices(trace_number), history.find_placements(trace_number))


def count_regions(
    content: bytes | KeptRegions,
    model: str,
    ledger: Ledger,
    known: Ledger,
    find_template: Callable[[str], Template | None],
) -> None:
    """Counts the regions of a program that was loaded or filled in, and puts them on record.

    Args:
        content: what was kept of them. What is no bytes has neither streams nor collectives.
        model: that the program is for.
        ledger: counts them.
        known: says which templates others had before.
        find_template: returns a template that is called, by the digest of its key.

    Raises:
        ValueError: if the content is no regions.
    """
    number = ledger.history.begin_trace(model)
    counted, kept = [], decode_regions(content, model, number) if isinstance(content, bytes) else content
    about: dict[str, Any] = {"model": model, "trace_number": number}
    for region in kept.regions:
        template = find_template(region.digest or "")
        if template is None:
            ledger.count_bypass(region.reason or "left as Thunder made it")
            counted.append(replace(region, digest=None, outcome="bypass", **about))
            continue
        hit = known.has(template)
        ledger.count_region(template, region.arities, hit=hit)
        counted.append(replace(region, outcome="hit" if hit else "miss", **about))
    ledger.history.add_regions(counted)
    for choice in kept.choices:
        ledger.history.add_choice(choice)
    for placement in kept.placements:
        ledger.history.add_placement(placement)


def _lasting(region: RegionRecord) -> str | None:
    """Returns why a region is left as Thunder made it; of one that has a template only the process can say it."""
    return region.reason if region.digest is None else None
