"""From a report's contents to HTML: one file that needs no other one, and no network."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fusioncache.cli.drawing import picture_of, svg_text
from fusioncache.cli.output import encode_fields
from fusioncache.cli.report_contents import GENERATOR, Contents, ReportTemplate
from fusioncache.cli.report_grid import make_grids
from fusioncache.cli.run_misses import explain_templates
from fusioncache.humanize import (
    describe_savings,
    escape_controls,
    format_arities,
    format_bytes,
    format_duration,
)
from fusioncache.observe.explain.difference import find_relatives
from fusioncache.observe.record.observations import PHASES, Line, Phases, add_up_owners
from fusioncache.observe.record.stats import find_bypasses, find_not_given
from fusioncache.template.text import read_exactly

MOST_ROWS = 200
"""How many collectives of a trace are listed."""


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


def cut_slices(phases: Phases) -> list[dict[str, Any]]:
    """Returns the phases that were measured, in the order in which they come: their shares of all seconds, and colours.

    A phase starts where the one before it ends. Its colour is its index among all phases there can be.
    """
    known, colours, found, before = phases.to_dict(), list(PHASES), [], 0.0
    total = sum(known.values()) or 1.0
    for name, seconds in known.items():
        place = {"start": before / total, "share": seconds / total, "colour": colours.index(name)}
        found.append({**encode_fields(PHASES[name]), "seconds": seconds, **place})
        before += seconds
    return found
