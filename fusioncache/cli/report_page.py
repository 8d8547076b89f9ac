"""From a report's contents to HTML: one file that needs no other one, and no network."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import accumulate
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fusioncache.cli.drawing import picture_of, svg_text
from fusioncache.cli.report import GENERATOR, Contents, ReportTemplate
from fusioncache.cli.report_grid import make_grids
from fusioncache.cli.run_misses import explain_templates
from fusioncache.humanize import (
    describe_savings,
    escape_controls,
    format_arities,
    format_bytes,
    format_count,
    format_duration,
)
from fusioncache.observe.explain.difference import find_relatives
from fusioncache.observe.record.observations import PHASES, FlightRecord, Line, Phases, PlacementRecord, add_up_owners
from fusioncache.observe.record.stats import find_bypasses, find_not_given
from fusioncache.template.text import read_exactly

MOST_ROWS = 200
"""How many collectives of a trace are listed."""
_WIDTH, _LANE, _CURVE, _GAP = 1000.0, 9.0, 90.0, 14.0
_MOST_LANES = 24
"""The timeline's measures."""


def render_report(contents: Contents) -> str:
    """Writes the report. It is the same for the same contents, to the letter."""
    met = contents.met
    style, script = _read_page("page.css"), _read_page("page.js")
    return (
        make_environment()
        .get_template("page.html")
        .render(
            generator=GENERATOR,
            contents=contents,
            run=contents.run,
            grids=make_grids(contents.regions),
            misses=explain_templates([each.stats for each in met]),
            templates={each.stats.digest: each for each in contents.templates},
            families=sorted(find_relatives([each.parts for each in met]), key=lambda family: -len(family.members)),
            met=met,
            most_rows=MOST_ROWS,
            slices=cut_slices(contents.run.phases),
            owners=add_up_owners(contents.run.phases.to_dict()),
            not_given=find_not_given(contents.run.stats.bypasses),
            bypasses=find_bypasses(contents.run.stats.bypasses),
            style=Markup(style),
            style_hash=_hash(style),
            script=Markup(script),
            script_hash=_hash(script),
        )
    )


def make_environment() -> Environment:
    """Returns where the pages are, with all that they need. It escapes everything."""
    pages = Environment(
        loader=PackageLoader("fusioncache.cli", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    pages.filters |= {
        "seconds": format_duration,
        "savings": describe_savings,
        "moment": _moment,
        "percent": _percent,
        "bytes": format_bytes,
        "arities": format_arities,
        "short": _short,
        "graph": _graph,
        "timeline": draw_placement,
    }
    return pages


def _printable(value: Any) -> Any:
    """Removes control characters, which have no place in HTML. Markup of our own stays as it is."""
    return value if isinstance(value, Markup) else escape_controls(str(value))


def _read_page(name: str) -> str:
    return files("fusioncache.cli").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Returns a digest in the form in which a content security policy names what may run."""
    return base64.b64encode(sha256(text.encode()).digest()).decode()


def _moment(seconds: float) -> str:
    """Formats a moment in UTC, because the file may be read anywhere."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "< 0.1%"
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def _short(line: Line) -> str:
    """Names a line by the last two parts of its path, or by those inside of an installed package."""
    path = line.file.replace("\\", "/")
    inside = path.rpartition("/site-packages/")[2]
    return f"{inside if inside != path else '/'.join(path.split('/')[-2:])}:{line.number}"


def _graph(template: ReportTemplate) -> Markup | None:
    """Draws the template's graph as SVG; None if what is recorded of it cannot be read."""
    try:
        picture = picture_of(read_exactly(template.parts))
    except ValueError:
        return None
    lines = svg_text(picture, f"ops of {template.stats.name}", styled=False).split("\n")
    return Markup("\n".join(map(escape_controls, lines)))  # it is escaped; control characters are left


@dataclass(frozen=True, slots=True)
class Slice:
    """One phase.

    Attributes:
        name: in words.
        owner: whose code runs in it.
        about: what happens in it.
        seconds: that it took.
        start: share of all seconds that came before it.
        share: its share of all seconds.
        colour: its index among all phases there can be.
    """

    name: str
    owner: str
    about: str
    seconds: float
    start: float
    share: float
    colour: int


def cut_slices(phases: Phases) -> tuple[Slice, ...]:
    """Returns the phases that were measured, in the order in which they come."""
    known = phases.to_dict()
    total = sum(known.values())
    found, before = [], 0.0
    for name, seconds in known.items():
        start, share = (before / total, seconds / total) if total else (0.0, 0.0)
        phase = PHASES[name]
        colour = list(PHASES).index(name)
        found.append(Slice(phase.title, phase.owner, phase.about, seconds, start, share, colour))
        before += seconds
    return tuple(found)


def draw_placement(placement: PlacementRecord) -> Markup:
    """Returns the collectives of a trace as a timeline, with the bytes in flight and alive below, as SVG."""
    flights = placement.flights
    # What comes before the first one only names arguments, of which there are hundreds.
    first = flights[0].start if flights else 0
    bars = [Bar(one.start - first, one.end - first, one.size, one.kind, _describe_flight(one)) for one in flights]
    title = f"{len(flights)} collectives of the {placement.trace} trace along {len(placement.calls)} calls"
    return Markup(draw_timeline(bars, placement.alive[first:], title))


def _describe_flight(flight: FlightRecord) -> str:
    beside = f"{format_count(flight.beside, 'call', 'calls')} beside it"
    text = f"{flight.name}: {format_bytes(flight.size)}, steps {flight.start} to {flight.end}, {beside}"
    return escape_controls(text)


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasts from one step to another.

    Attributes:
        start: a step, from 0.
        end: a later step.
        size: its weight in the curve of bars, such as bytes.
        kind: the class of its element.
        title: what is shown where it is pointed at.
    """

    start: int
    end: int
    size: int
    kind: str
    title: str


def draw_timeline(bars: Sequence[Bar], levels: Sequence[int], title: str) -> str:
    """Returns bars and curves as SVG, without style. It is the same for the same bars. Every text in it is escaped.

    Args:
        bars: in the order in which they start.
        levels: a number for each step, drawn as a line over the sum of the bars' sizes.
        title: what it shows.
    """
    steps = max(1, len(levels))
    lanes = _choose_lanes(bars)
    top = (max(lanes, default=0) + 1) * _LANE + _GAP
    sums = sum_bars(bars, steps)
    most = max(*levels, *sums, 1)
    lines = [
        f'<svg class="timeline" role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH:.0f} {top + _CURVE:.0f}">',
        f"<title>{escape(title)}</title>",
        *(_draw_bar(bar, lane, steps) for bar, lane in zip(bars, lanes, strict=True)),
        f'<path class="flight" d="{_draw_curve(sums, top, most)}V{top + _CURVE:.1f}H0Z"/>',
        f'<path class="alive" d="{_draw_curve(levels, top, most)}"/>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def sum_bars(bars: Sequence[Bar], steps: int) -> tuple[int, ...]:
    """Returns for each step the sizes of all bars that have started by then and not ended."""
    changes = [0] * (steps + 1)
    for bar in bars:
        changes[bar.start] += bar.size
        changes[bar.end] -= bar.size
    return tuple(accumulate(changes[:steps]))


def _choose_lanes(bars: Sequence[Bar]) -> list[int]:
    """Returns a lane for each bar: the first one that is free. The last lane takes what finds none."""
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lanes = []
    for bar in bars:
        while busy and busy[0][0] <= bar.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else min(len(busy), _MOST_LANES - 1)
        heapq.heappush(busy, (bar.end, lane))
        lanes.append(lane)
    return lanes


def _draw_bar(bar: Bar, lane: int, steps: int) -> str:
    start, end = (_WIDTH * step / steps for step in (bar.start, bar.end))
    place = f'x="{start:.1f}" y="{lane * _LANE:.1f}" width="{max(1.0, end - start):.1f}" height="{_LANE - 2:.0f}"'
    return f'<rect class="{escape(bar.kind)}" {place}><title>{escape(bar.title)}</title></rect>'


def _draw_curve(levels: Sequence[int], top: float, most: int) -> str:
    """Returns the path of a line that steps from level to level."""
    width = _WIDTH / max(1, len(levels))
    heights = [top + _CURVE * (1 - level / most) for level in levels]
    parts = [f"M0 {heights[0] if heights else top + _CURVE:.1f}"]
    for number, height in enumerate(heights):
        if not number or height != heights[number - 1]:
            parts.append(f"V{height:.1f}")
        parts.append(f"H{width * (number + 1):.1f}")
    return "".join(parts)
