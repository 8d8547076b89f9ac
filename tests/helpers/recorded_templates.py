"""Templates with known counts, and records of them written through the real recorder."""

import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from drawn_regions import draw

from fusioncache.ir import Const, Graph, Op, Ref, Template, TensorType
from fusioncache.observe.record import database as recorder
from fusioncache.observe.record.database import RecordWriter, record_path
from fusioncache.observe.record.events import CompileEvent
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import ThunderCost
from fusioncache.template.key import make_key, template_name

FLOAT32 = TensorType("float32", (10, 10), "cuda")
BFLOAT16 = TensorType("bfloat16", (10, 10), "cuda")
STARTED = 1_700_000_000.0


def make_chain_template(name: str | None = None, options: str = "nvfuser=0.2.36") -> Template:
    """Returns the template ``tanh(head + term + ...) * 0.5`` with bfloat16 terms."""
    ops = (
        Op("residual", (Ref(0), Const("dtype", "bfloat16")), (FLOAT32,)),
        Op("prims.tanh", (Ref(1),), (FLOAT32,)),
        Op("prims.mul", (Ref(2), Const("float", (0.5).hex())), (FLOAT32,)),
    )
    return _template(Graph((BFLOAT16,), ops, (3,)), name, options)


def make_cast_template(name=None, options="nvfuser=0.2.36"):
    return _template(draw("convert_element_type(x, 'float32')", x=BFLOAT16), name, options)


def make_scaled_template(*shape: int, factor: float = 0.5) -> Template:
    """Returns a product with a number; templates of other shapes and numbers differ in nothing else."""
    return _template(draw(f"mul(x, {factor!r})", x=shape), None, "")


def _template(graph: Graph, name: str | None, options: str) -> Template:
    key = make_key(graph, {"options": options})
    return Template(graph, key, name or template_name(graph, key))


def count_compile(ledger: Ledger, template: Template, seconds: float, cost: ThunderCost | None = None) -> None:
    ledger.count_build(template, CompileEvent("eager", seconds, template=template, cost=cost))


def count_load(
    ledger: Ledger, template: Template, seconds: float, compile_seconds: float = 0.0, cost: ThunderCost | None = None
) -> None:
    """Counts a function that was loaded for a template; ``compile_seconds`` is the time of its original compilation."""
    ledger.count_build(template, CompileEvent("eager", seconds, True, compile_seconds, template, cost=cost))


def make_ledger(*templates: Template, seconds: float = 1.0) -> Ledger:
    """Returns a ledger that counted one region of each template, and its compilation."""
    ledger = Ledger()
    for template in templates:
        ledger.count_region(template, (), hit=False)
        count_compile(ledger, template, seconds)
    return ledger


def make_full_ledger():
    ledger, chain, cast = Ledger(), make_chain_template(), make_cast_template()
    ledger.count_region(cast, (), hit=False)
    count_compile(ledger, cast, 0.125)
    for arity in (1, 2, 3, 7):
        ledger.count_region(chain, (arity,), hit=arity > 1)
    count_compile(ledger, chain, 1.25)
    count_compile(ledger, chain, 0.75)
    count_load(ledger, cast, 0.00390625, 0.125)
    ledger.emit("unkept", reason="a number among its inputs")
    ledger.count_bypass("unknown op")
    ledger.count_bypass("unknown op")
    ledger.count_bypass("compile failed: ValueError", chain)
    ledger.count("canonicalize_seconds", 0.03125)
    return ledger


def save_ledger(
    monkeypatch: pytest.MonkeyPatch,
    ledger: Ledger,
    run: str = "a" * 32,
    started: float = STARTED,
    argv: Sequence[str] = ("train.py", "--depth", "4"),
) -> None:
    """Records a run with a fixed id, start, process (4321) and command line."""
    with monkeypatch.context() as patch:
        patch.setattr(recorder.uuid, "uuid4", lambda: SimpleNamespace(hex=run))
        patch.setattr(recorder.time, "time", lambda: started)
        patch.setattr(recorder.os, "getpid", lambda: 4321)
        patch.setattr(sys, "argv", list(argv))
        RecordWriter(ledger).save()
    assert record_path().exists()
