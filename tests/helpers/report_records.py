"""Reports of models that need not be trained, of benchmarks that need not be run, and of records that do harm."""

import re
from html.parser import HTMLParser

from pytest import MonkeyPatch
from recorded_templates import count_compile, make_cast_template, make_chain_template, make_ledger, save_ledger

from fusioncache.cli.report import Contents, ReportRegion, read_contents, render_report
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import (
    BoundRecord,
    ChoiceRecord,
    FlightRecord,
    Line,
    PeakRecord,
    PlacementRecord,
    PlanCost,
    RegionRecord,
    Run,
    Source,
)
from fusioncache.observe.record.stats import Stats

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\x00\n{{ 7 * 7 }}</style></title>"
SHOWN = "<script>alert(1)</script>\"'&\\x1b[31m\\x00\\n{{ 7 * 7 }}</style></title>"
"""The same as a page shows it."""


def make_region_record(
    number: int,
    module: str | None = "",
    layer: int | None = None,
    trace: str = "forward",
    digest: str | None = None,
    **fields: object,
) -> RegionRecord:
    """A region of a model."""
    outcome = "bypass" if digest is None else "hit"
    given = {"model": "Model", "outcome": outcome, "reason": None, "trace_number": 0, **fields}
    return RegionRecord(
        trace=trace,
        position=number,
        name=f"Fusion{number}",
        digest=digest,
        arities=(),
        plan=None if digest is None else "inline",
        source=Source(module, layer, (Line("/home/me/model.py", 7 + number),)),
        ops=1,
        inputs=1,
        outputs=1,
        **given,  # type: ignore[arg-type]
    )


def make_wide_ledger(templates: int, name: str = "wide") -> Ledger:
    """A run of a model with so many templates, and as many regions."""
    made = [make_cast_template(f"{name}_{number}", f"{name} {number} " + "x" * 3000) for number in range(templates)]
    ledger = make_ledger(*made)
    ledger.history.begin_trace("Model")
    regions = [make_region_record(number, digest=each.key.digest) for number, each in enumerate(made)]
    ledger.history.add(*regions)
    return ledger


def make_places(*regions: RegionRecord) -> list[ReportRegion]:
    """As they would stand in a report."""
    return [ReportRegion(number, region, None) for number, region in enumerate(regions)]


def make_deep_model(layers: int, across: int) -> list[RegionRecord]:
    """A model with as many regions in each layer, on each side."""
    inside = [f"part_{place}" for place in range(across)]
    sides = [("forward", range(layers), inside), ("backward", range(layers)[::-1], inside[::-1])]
    order = [(trace, layer, part) for trace, order, parts in sides for layer in order for part in parts]
    return [
        make_region_record(number, f"model.layers.{layer}.{part}", layer, trace)
        for number, (trace, layer, part) in enumerate(order)
    ]


def make_placement(name: str = "all_gather float32 (8,)", **fields: object) -> PlacementRecord:
    """A trace of six calls, of which two start collectives."""
    flights = (FlightRecord("gather", name, 4096, 0, 2, 1), FlightRecord("reduce", name, 2048, 3, 5, 0))
    given = {
        "model": "Model",
        "trace": "forward",
        "trace_number": 0,
        "reason": "",
        "calls": ("all_gather", "matmul", "wait", "all_reduce", "view", "wait"),
        "alive": (4096, 4096, 4096, 6144, 2048, 2048),
        "flights": flights,
        "before": PeakRecord(8192, 2048, 9216),
        "after": PeakRecord(4096, 2048, 6144),
        "bounds": (BoundRecord("gathers in flight", 4096, 4096, 8192, 3),),
        **fields,
    }
    return PlacementRecord(**given)  # type: ignore[arg-type]


def save_hostile_run(monkeypatch: MonkeyPatch) -> Contents:
    """A run in which every text from outside would do harm."""
    ledger = Ledger()
    chain, cast = make_chain_template(name=HOSTILE, options=HOSTILE), make_cast_template(options=HOSTILE)
    for template in (chain, cast):
        ledger.count_region(template, (), hit=False)
        count_compile(ledger, template, 0.5)
    ledger.count_bypass(HOSTILE)
    ledger.emit("unkept", reason=HOSTILE)
    ledger.count_program_loaded(HOSTILE, 0.5, 8.0)
    ledger.emit("program refused", reason=HOSTILE)
    ledger.count("program_seconds", 0.5, of=HOSTILE)
    ledger.count("pulled", 12, of=HOSTILE)
    ledger.count("pull_refused", of=HOSTILE)
    source = Source(HOSTILE, 3, (Line(HOSTILE, 1), Line(HOSTILE, 2), Line(HOSTILE, 3), Line(HOSTILE, 4)))
    bad = {"model": HOSTILE, "reason": HOSTILE, "name": HOSTILE, "source": source}
    for number, digest in enumerate((chain.key.digest, cast.key.digest, None)):
        good = make_region_record(number, digest=digest)
        ledger.history.add(RegionRecord(**{**{name: getattr(good, name) for name in good.__slots__}, **bad}))
    costs = (PlanCost(HOSTILE, 10, 0, 1), PlanCost("inline", 1_000_000, 2_000, 3))
    ledger.history.add(ChoiceRecord(HOSTILE, "forward", 0, HOSTILE, 4, HOSTILE, costs))
    bound = BoundRecord(HOSTILE, 1, 1, 1, 1)
    placement = make_placement(HOSTILE, model=HOSTILE, reason=HOSTILE, calls=(HOSTILE,) * 6, bounds=(bound,))
    ledger.history.add(placement)
    save_ledger(monkeypatch, ledger, argv=[HOSTILE])
    return read_newest()


def make_run(**fields: object) -> Run:
    """Returns a run that recorded nothing but these fields."""
    return Run(id="a" * 32, started=0.0, pid=1, command="train.py", stats=Stats(), **fields)  # type: ignore[arg-type]


def read_newest() -> Contents:
    """What a report of the newest run is about."""
    record = RecordReader()
    return read_contents(record, record.runs()[0])


class Page(HTMLParser):
    """A report taken apart.

    Attributes:
        ids: of all elements.
        links: all addresses that are linked to.
        tags: of all elements, in their order.
        lines: all that is shown, with targets of links and texts of tooltips in brackets.
    """

    def __init__(self, html: str):
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.html = html
        self._shown = ""
        self.feed(html)
        self.close()
        lines = (" ".join(line.split()) for line in self._shown.splitlines())
        self.lines = [line for line in lines if line]

    @classmethod
    def of(cls, found: Contents) -> "Page":
        """Returns the report of a run."""
        return cls(render_report(found))

    @property
    def text(self) -> str:
        """All that is shown, with runs of blanks as one."""
        return " ".join(self.lines)

    def section(self, name: str) -> str:
        """Returns the HTML of a section."""
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
