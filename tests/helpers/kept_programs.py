"""Programs of models in a store, each with a key, reads and traces that a test can change in one thing."""

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
from fusioncache.accelerators.sizes.journal import Look
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


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A program of a ``Llama`` as a store gets it.

    Attributes:
        key: ingredients of its key beside those that all have, or in place of them.
        reads: as kind, name and text.
        forward: the source of its forward trace, in which CALL is the name of the template that it calls.
        slot: that it is saved in.
        name: of the model.
        seconds: that deriving it took.
    """

    key: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[tuple[str, str, str], ...] = (("attribute", SILU, OWN_SILU), ("global", "mine.EPS", "1e-05"))
    forward: str = FORWARD
    slot: str = "program"
    name: str = "Llama"
    seconds: float = 38.5

    @property
    def texts(self) -> dict[str, str]:
        """The ingredients of its key."""
        whole = {
            "arguments": f"args 1 mask\nargs.0 {TENSOR}\nkwargs.mask None",
            "jit options": "cache constant values",
            "model": "model module mine.Llama\nmodel.layers.0.eps 1e-05\nmodel.layers.0.scale 2.0",
            "program versions": "torch 2.10.0\nthunder 0.2.6",
        }
        return {**whole, **self.key}

    def make_key(self) -> Key:
        """The key that it is saved for."""
        text = write_key(self.texts)
        parts = (Ingredient(name, part, _digest(part)) for name, part in self.texts.items())
        return Key(_digest(text), text, tuple(parts))

    def make_text(self) -> ProgramText:
        """Its traces: no backward, and an epilogue that does nothing."""
        template = TemplateReference("eager", (), TEMPLATE.graph, TEMPLATE.key.digest, ())
        context = {TEMPLATE.name: template, "torch": ModuleReference("torch")}
        return ProgramText(
            TraceText("prologue", "def prologue(*args):\n  return args\n"),
            TraceText("computation", self.forward.replace("CALL", TEMPLATE.name), context),
            None,
            TraceText("epilogue", "def epilogue(x):\n  return x\n"),
        )

    def save(self, store: Store) -> str:
        """Saves it, and returns the digest of its key."""
        reads = encode_reads(Read(*read) for read in self.reads)
        key, artifacts = self.make_key(), {"program": encode(self.make_text()), "reads": reads}
        assert store.save(key, self.slot, artifacts, name=self.name, seconds=self.seconds)
        return key.digest


def save_family(store: Store, slot: str = "family", outline: bytes | None = None) -> str:
    """Saves programs of a ``Llama`` that differ in their sizes, and returns the digest of their key."""
    rows, length = Number(1, "args[0][0]"), Number(2, "args[0][1]")
    look = Look(">", length, 100, False, "compares", "model.py:12")
    passes = PassJournal(((0, (rows, length)),), (look,), (), (), (rows, length))
    outline = outline or encode_outline(passes, [{0: (2, 64)}, {0: (2, 96)}])
    reads = encode_reads([Read("attribute", SILU, OWN_SILU)])
    key = SavedProgram({"arguments": "args 1 mask"}).make_key()
    assert store.save(key, slot, {"family": outline, "reads": reads}, name="Llama")
    return key.digest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
