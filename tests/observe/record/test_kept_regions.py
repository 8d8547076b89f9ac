"""Regions beside a program: what comes back is what a run had, and anything else is refused."""

import json
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import make_placement

from fusioncache.observe.record.kept_regions import decode_regions, encode_regions
from fusioncache.observe.record.observations import (
    BoundRecord,
    ChoiceRecord,
    FlightRecord,
    Line,
    PeakRecord,
    PlacementRecord,
    PlanCost,
    RegionRecord,
    Source,
)

TEXTS, NUMBERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.integers(0, 2**63 - 1)
OF_TYPE = {
    **{str: TEXTS, str | None: st.none() | TEXTS, int: NUMBERS, int | None: st.none() | NUMBERS},
    **{bool: st.booleans(), tuple[int, ...]: st.lists(NUMBERS, max_size=2).map(tuple)},
}


def build(kind, /, **given):
    """Values of a kind: each field that is not given has any value of its type, and is registered for other kinds."""
    types = get_type_hints(kind)
    strategy = st.builds(kind, **{name: given[name] if name in given else OF_TYPE[types[name]] for name in types})
    OF_TYPE.update({kind: strategy, tuple[kind, ...]: st.lists(strategy, max_size=3).map(tuple)})
    return strategy


PLACE = {"model": st.just("GPT"), "trace": st.sampled_from(["forward", "backward"]), "trace_number": st.just(7)}
for each in (Line, Source, PlanCost, PeakRecord, BoundRecord):
    build(each)
build(FlightRecord, kind=st.sampled_from(["gather", "reduce"]), start=st.integers(0, 1), end=st.integers(2, 3))
REGIONS = build(RegionRecord, **PLACE, outcome=st.sampled_from(["hit", "miss", "bypass"]))
CHOICES = build(ChoiceRecord, **PLACE)
CALLS = {"calls": st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), "alive": st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS)}
PLACEMENTS = build(PlacementRecord, **PLACE, **CALLS)
ONE = RegionRecord(
    "GPT", "forward", 7, 3, "Fusion3", "d", "hit", None, (2,), "fold", Source("h.1", 1, (Line("m.py", 3),)), 4, 5, 6
)
COST = {"plan": "fold", "moved": 1, "alive": 2, "kernels": 3}
FLIGHT = {"kind": "gather", "name": "n", "size": 1, "beside": 0}
STREAM = ChoiceRecord("GPT", "backward", 7, "t3", 2, "carry", (PlanCost("carry", 1, 2, 3),))


@given(st.lists(REGIONS, max_size=5), st.lists(CHOICES, max_size=3), st.lists(PLACEMENTS, max_size=2))
def test_what_comes_back_is_what_was_there(regions, choices, placements):
    content = encode_regions(regions, choices, placements)
    kept = decode_regions(content, "GPT", 7)
    assert (kept.regions, kept.choices) == (tuple(regions), tuple(choices))
    assert kept.placements == tuple(placements)
    assert encode_regions(kept.regions, kept.choices, kept.placements) == content


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        *(("regions", {"trace": "sideways"}), ("regions", {"trace": []}), ("regions", {"outcome": "loaded"})),
        *(("regions", {"position": -1}), ("regions", {"name": None}), ("regions", {"reason": []})),
        *(("regions", {"ops": ops}) for ops in ("4", True, 1 << 63)),
        *(("regions", {"arities": 3}), ("regions", {"arities": [-1]}), ("regions", {"digest": 2})),
        *(("regions", {"more": 1}), ("regions", {"source": {"layer": "1"}}), ("regions", {"source": {"module": 1}})),
        *(("regions", {"name": "\ud800"}), ("choices", {"trace": "sideways"}), ("choices", {"sums": -1})),
        *(("choices", {"more": 1}), ("choices", {"costs": [[]]}), ("choices", {"costs": [{**COST, "kernels": "3"}]})),
        ("choices", {"costs": [{name: item for name, item in COST.items() if name != "kernels"}]}),
        *(
            ("placements", {"flights": [{**FLIGHT, "start": way[0], "end": way[1]}]})
            for way in ((0, 6), (2, 2), (3, 2))
        ),
        *((None, {"places": places}) for places in ([], [1], [-1], [0, 0], 0)),
        *((None, {"format": 1}), (None, {"kept": []})),
    ],
)
def test_any_other_field_is_refused(place, fields):
    content = json.loads(encode_regions([ONE], [STREAM], [make_placement(model="GPT", trace_number=7)]))
    (content["kept"][place][0] if place else content).update(fields)
    with pytest.raises(ValueError, match=r"regions|a placement"):
        decode_regions(json.dumps(content).encode(), "GPT", 7)
