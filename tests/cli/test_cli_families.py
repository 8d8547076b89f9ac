"""Programs at any length on the command line: listed, and shown with what has to stay the same."""

import time

import pytest
from commands import get_error, get_output
from kept_programs import OWN_SILU, SILU, SavedProgram

from fusioncache.accelerators.programs.text import Read, encode_reads
from fusioncache.accelerators.sizes.families import Decision, PassJournal, encode_outline
from fusioncache.accelerators.sizes.journal import Look
from fusioncache.accelerators.sizes.sizes import Number, Operation
from fusioncache.store import Store

NOW = 1_700_000_000.0
ROWS, LENGTH = Number(1, "args[0][0]"), Number(2, "args[0][1]")
PASSES = PassJournal(
    ((0, (ROWS, LENGTH)), ("mask", (Number(3, "mask[0]"),))),
    (Look(">", LENGTH, 100, False, "compares", "model.py:12"),),
    (((LENGTH,), (Operation("*", ROWS, 2),)),),
    (Decision("_fused_sdp_choice", (True,), "MATH"),),
    (ROWS, LENGTH),
)
SIZES = [{0: (2, 64), "mask": (64,)}, {0: (2, 96), "mask": (96,)}]
KEY = SavedProgram({"arguments": "args 1 mask"}).make_key()


@pytest.fixture(autouse=True)
def _at_a_known_time(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)


def keep(*slots, outline=None, name="Llama", sizes=SIZES):
    store = Store.open()
    for slot in slots or ("family",):
        reads = encode_reads([Read("attribute", SILU, OWN_SILU)])
        content = encode_outline(PASSES, sizes) if outline is None else outline
        assert store.save(KEY, slot, {"family": content, "reads": reads}, name=name)
    return KEY.digest


def test_several_families_of_one_form():
    digest = keep("family", "family-2")
    assert "stands for 2 families" in get_error("show", digest[:8])
    assert f"id       {digest[:12]}-2\n" in get_output("show", f"{digest[:8]}-2")


@pytest.mark.parametrize("outline", [b"x", encode_outline(PASSES, [{0: (2, 64)}])])
def test_what_cannot_be_read_is_listed_all_the_same(outline):
    digest = keep(outline=outline)
    assert "  damaged  " in get_output("ls", "--families")
    assert f"the family of {digest[:12]} cannot be read: " in get_error("show", digest)
