"""Stored programs of models, each with a key, reads and traces of which a test can change one detail."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from recorded_templates import make_chain_template

from fusioncache.accelerators.programs.text import (
    ModuleReference,
    ProgramText,
    Read,
    TemplateReference,
    TraceText,
    encode,
    encode_reads,
)
from fusioncache.accelerators.sizes.families import PassJournal, encode_outline
from fusioncache.accelerators.sizes.journal import SizeGuard
from fusioncache.accelerators.sizes.sizes import Number
from fusioncache.ir import Ingredient, Key
from fusioncache.ir.keys import write_key
from fusioncache.store import Store

SILU = "torch.nn.functional.silu"
OWN_SILU = "<function torch.nn.functional.silu 0476c02603d2774765c577d8f4f406ef defaults (False, )>"
OTHER_SILU = "<function mine.silu 1f72e1c4c2c157985e0a06cbd71333f7>"
TENSOR = "torch.Tensor torch.float32 (2, 16) (16, 1) cpu"
FORWARD = """import torch
from thunder.executors.torchex import no_autocast

@torch.no_grad()
@no_autocast
def computation(x, w):
  # x: "cpu f32[2, 16]"

  # /home/me/model.py:31: \t        return F.silu(self.lin(x)) * self.scale
  t1 = torch.nn.functional.linear(x, w, None)  # t1: "cpu f32[2, 16]"
  [t2] = CALL(t1)
  return (t2,)
"""
TEMPLATE = make_chain_template()
OWN_READS = (("attribute", SILU, OWN_SILU), ("global", "mine.EPS", "1e-05"))


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A program of a ``Llama`` as it is stored; ``key`` overrides usual ingredients of its key."""

    key: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[tuple[str, str, str], ...] = OWN_READS
    forward: str = FORWARD
    slot: str = "program"
    name: str = "Llama"
    seconds: float = 38.5

    @property
    def texts(self) -> dict[str, str]:
        whole = {
            "arguments": f"args 1 mask\nargs.0 {TENSOR}\nkwargs.mask None",
            "jit options": "cache constant values",
            "model": "model module mine.Llama\nmodel.layers.0.eps 1e-05\nmodel.layers.0.scale 2.0",
            "program versions": "torch 2.10.0\nthunder 0.2.6",
        }
        return {**whole, **self.key}

    def make_key(self) -> Key:
        text = write_key(self.texts)
        parts = (Ingredient(name, part, _digest(part)) for name, part in self.texts.items())
        return Key(_digest(text), text, tuple(parts))

    def make_text(self) -> ProgramText:
        """Returns its traces: no backward, and an epilogue that does nothing."""
        template = TemplateReference("eager", (), TEMPLATE.graph, TEMPLATE.key.digest, ())
        context = {TEMPLATE.name: template, "torch": ModuleReference("torch")}
        return ProgramText(
            TraceText("prologue", "def prologue(*args):\n  return args\n"),
            TraceText("computation", self.forward.replace("CALL", TEMPLATE.name), context),
            None,
            TraceText("epilogue", "def epilogue(x):\n  return x\n"),
        )

    def save(self, store: Store) -> str:
        reads = encode_reads(Read(*read) for read in self.reads)
        key, artifacts = self.make_key(), {"program": encode(self.make_text()), "reads": reads}
        assert store.save(key, self.slot, artifacts, name=self.name, seconds=self.seconds)
        return key.digest


def make_outline(length="args[0][1]", reason="compares", place="model.py:12", sizes=((2, 64), (2, 96))):
    """Returns the encoded outline of a family of programs, with one guard of the length."""
    rows, length = Number(1, "args[0][0]"), Number(2, length)
    guard = SizeGuard(">", length, 100, False, reason, place)
    return encode_outline(
        PassJournal(((0, (rows, length)),), (guard,), (), (), (rows, length)), [{0: each} for each in sizes]
    )


def save_family(store, slot="family", outline=None, name="Llama", reads=OWN_READS[:1], arguments="args 1 mask"):
    """Saves a family of programs, and returns the digest of its key."""
    key, reads = SavedProgram({"arguments": arguments}).make_key(), encode_reads(Read(*read) for read in reads)
    assert store.save(key, slot, {"family": outline or make_outline(), "reads": reads}, name=name)
    return key.digest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
