"""What the store and the record are filled with: templates that differ in a number."""

from __future__ import annotations

import hashlib
import random

from fusioncache.ir import Const, Graph, Ingredient, Key, Op, Ref, Template, TensorType
from fusioncache.observe.record.database import RecordWriter
from fusioncache.observe.record.events import CompileEvent
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import Line, RegionRecord, Source
from fusioncache.store import Store
from fusioncache.template.key import make_key as make_template_key

BACKEND = "eager"


def make_key(number: int, size: int) -> Key:
    """Makes a key with a text of about this many characters."""
    text = (f"template {number}\n" * (size // 14 + 1))[:size]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Key(digest, text, (Ingredient("ops", text, digest),))


def fill(store: Store, keys: list[Key], size: int) -> None:
    """Saves two artifacts for each key: one of this many bytes, and a small one."""
    chance = random.Random(0)
    for number, key in enumerate(keys):
        artifacts = {"code": chance.randbytes(size), "meta": b"%d" % number}
        assert store.save(key, BACKEND, artifacts, name=f"template_{number}", seconds=1.0)


ARTIFACT_BYTES = 1000
KEY_BYTES = 4000


def make_template(number: int, ops: int) -> Template:
    """Makes a template with so many ops and a constant of its own."""
    matrix = TensorType("float32", (64, 64), "cuda")
    written = [Op("prims.mul", (Ref(0), Const("float", float(number).hex())), (matrix,))]
    written += [Op("prims.tanh", (Ref(index),), (matrix,)) for index in range(1, ops)]
    graph = Graph((matrix,), tuple(written), (ops,))
    return Template(graph, make_template_key(graph, {"backend": "nvfuser"}), f"mul_tanh_{number:06}")


def fill_record(count: int, ops: int) -> None:
    """Records one run with so many templates, each of one region."""
    ledger, regions = Ledger(), []
    for number in range(count):
        one = make_template(number, ops)
        ledger.count_region(one, (), hit=False)
        ledger.tell(one, CompileEvent("nvfuser", 0.001 * (number % 1000), template=one))
        source = Source(f"layers.{number}", number, (Line("model.py", 10),))
        where = ("Model", "forward", 0, number, f"nvFusion{number}", one.key.digest, "miss", None, (), "inline")
        regions.append(RegionRecord(*where, source, ops, 1, 1))
    ledger.history.add(*regions)
    RecordWriter(ledger).save()


def fill_store(count: int) -> None:
    """Fills a store with so many entries."""
    opened = Store.open(remote="")
    fill(opened, [make_key(number, KEY_BYTES) for number in range(count)], ARTIFACT_BYTES)
