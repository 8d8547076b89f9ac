"""Reports of models without training, of benchmarks without runs, and of hostile records."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from pytest import MonkeyPatch
from recorded_templates import make_cast_template, make_chain_template, make_ledger, save_ledger

from fusioncache.cli.report import Contents, ReportRegion, read_contents, render_report
from fusioncache.observe.record import observations as seen
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.observations import RegionRecord
from fusioncache.observe.record.stats import Stats

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\x00\n{{ 7 * 7 }}</style></title>"
SHOWN = "<script>alert(1)</script>\"'&\\x1b[31m\\x00\\n{{ 7 * 7 }}</style></title>"
"""``HOSTILE`` as a page shows it."""


def make_region_record(number, module="", layer=None, trace="forward", digest=None, **fields):
    source = seen.Source(module, layer, (seen.Line("/home/me/model.py", 7 + number),))
    outcome, plan = ("bypass", None) if digest is None else ("hit", "inline")
    names = (f"Fusion{number}", digest, outcome, None)
    return replace(seen.RegionRecord("Model", trace, 0, number, *names, (), plan, source, 1, 1, 1), **fields)


def make_wide_ledger(templates, name="wide"):
    made = [make_cast_template(f"{name}_{number}", f"{name} {number} " + "x" * 3000) for number in range(templates)]
    ledger = make_ledger(*made)
    ledger.history.begin_trace("Model")
    ledger.history.add(*(make_region_record(number, digest=each.key.digest) for number, each in enumerate(made)))
    return ledger


def make_places(*regions: RegionRecord) -> list[ReportRegion]:
    return [ReportRegion(number, region, None) for number, region in enumerate(regions)]


def make_deep_model(layers, across):
    inside = [f"part_{place}" for place in range(across)]
    forward = [(layer, part) for layer in range(layers) for part in inside]
    order = [("forward", *place) for place in forward] + [("backward", *place) for place in forward[::-1]]
    return [
        make_region_record(number, f"model.layers.{layer}.{part}", layer, trace)
        for number, (trace, layer, part) in enumerate(order)
    ]


def make_placement(name="all_gather float32 (8,)", **fields):
    flights = (seen.FlightRecord("gather", name, 4096, 0, 2, 1), seen.FlightRecord("reduce", name, 2048, 3, 5, 0))
    given = {"model": "Model", "trace": "forward", "trace_number": 0, "reason": "", "flights": flights}
    given |= {
        "calls": ("all_gather", "matmul", "wait", "all_reduce", "view", "wait"),
        "alive": (4096, 4096, 4096, 6144, 2048, 2048),
        "before": seen.PeakRecord(8192, 2048, 9216),
        "after": seen.PeakRecord(4096, 2048, 6144),
        "bounds": (seen.BoundRecord("gathers in flight", 4096, 4096, 8192, 3),),
    }
    return seen.PlacementRecord(**given | fields)


def save_hostile_run(monkeypatch: MonkeyPatch) -> Contents:
    """Records a run in which every text from outside is hostile; returns the contents of its report."""
    chain, cast = make_chain_template(name=HOSTILE, options=HOSTILE), make_cast_template(options=HOSTILE)
    ledger = make_ledger(chain, cast, seconds=0.5)
    ledger.count_bypass(HOSTILE)
    ledger.emit("unkept", reason=HOSTILE)
    ledger.count_program_loaded(HOSTILE, 0.5, 8.0)
    ledger.emit("program refused", reason=HOSTILE)
    ledger.count("program_seconds", 0.5, of=HOSTILE)
    ledger.count("pulled", 12, of=HOSTILE)
    ledger.count("pull_refused", of=HOSTILE)
    source = seen.Source(HOSTILE, 3, tuple(seen.Line(HOSTILE, number) for number in range(1, 5)))
    bad = {"model": HOSTILE, "reason": HOSTILE, "name": HOSTILE, "source": source}
    for number, digest in enumerate((chain.key.digest, cast.key.digest, None)):
        ledger.history.add(make_region_record(number, digest=digest, **bad))
    costs = (seen.PlanCost(HOSTILE, 10, 0, 1), seen.PlanCost("inline", 1_000_000, 2_000, 3))
    ledger.history.add(seen.ChoiceRecord(HOSTILE, "forward", 0, HOSTILE, 4, HOSTILE, costs))
    bound = seen.BoundRecord(HOSTILE, 1, 1, 1, 1)
    placement = make_placement(HOSTILE, model=HOSTILE, reason=HOSTILE, calls=(HOSTILE,) * 6, bounds=(bound,))
    ledger.history.add(placement)
    save_ledger(monkeypatch, ledger, argv=[HOSTILE])
    return read_newest()


def make_run(**fields):
    return seen.Run(id="a" * 32, started=0.0, pid=1, command="train.py", stats=Stats(), **fields)


def read_newest() -> Contents:
    record = RecordReader()
    return read_contents(record, record.runs()[0])


class Page(HTMLParser):
    """A parsed report. Its lines contain link targets and tooltips in brackets."""

    def __init__(self, html: str):
        super().__init__()
        self.ids, self.links, self.tags = [], [], []
        self.html, self._shown = html, ""
        self.feed(html)
        self.close()
        lines = (" ".join(line.split()) for line in self._shown.splitlines())
        self.lines = [line for line in lines if line]

    @classmethod
    def of(cls, found: Contents) -> "Page":
        return cls(render_report(found))

    @property
    def text(self) -> str:
        """All text that is shown, with each run of blanks as one blank."""
        return " ".join(self.lines)

    def section(self, name: str) -> str:
        found = re.search(rf'<section id="{name}".*?</section>', self.html, re.DOTALL)
        assert found, name
        return found[0]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._shown += "\n" if tag in _BLOCKS else " "
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src", "action", "data", "srcset", "xlink:href"):
                self.links.append(value or "")
            if name in ("href", "title", "aria-label"):
                self._shown += f"[{value}] "

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["script"], ["style"]):
            self._shown += data


_BLOCKS = ("a", "div", "dt", "g", "h1", "h2", "h3", "li", "nav", "p", "pre", "summary", "table", "title", "tr")
"""Elements that begin a line."""
