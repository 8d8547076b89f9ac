"""Programs at any length on the command line: listed, and shown with what has to stay the same."""

import json
import time

import pytest
from commands import call, drop_first_break, get_error, get_output
from kept_programs import OWN_SILU, SILU, SavedProgram

from fusioncache.accelerators.programs.text import Read, encode_reads
from fusioncache.accelerators.sizes.families import Decision, PassJournal, encode_outline
from fusioncache.accelerators.sizes.journal import Look
from fusioncache.accelerators.sizes.sizes import Number, Operation
from fusioncache.store import Store, default_path

NOW = 1_700_000_000.0
ROWS, LENGTH = Number(1, "args[0][0]"), Number(2, "args[0][1]")
GUARDS = [
    "model.py:12 compares: not args[0][1] > 100",
    "not equal: (args[0][1]) and ((args[0][0] * 2))",
    "_fused_sdp_choice decides MATH",
]
PASSES = PassJournal(
    {0: (ROWS, LENGTH), "mask": (Number(3, "mask[0]"),)},
    (Look(">", LENGTH, 100, False, "compares", "model.py:12"),),
    (((LENGTH,), (Operation("*", ROWS, 2),)),),
    (Decision("_fused_sdp_choice", (True,), "MATH"),),
    frozenset({ROWS, LENGTH}),
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


def test_families_are_listed(monkeypatch):
    digest = keep()
    monkeypatch.setattr(time, "time", lambda: NOW + 3 * 86400)
    head, row = get_output("ls", "--families").splitlines()
    assert head.split() == ["id", "name", "lengths", "guards", "size", "age", "used"]
    assert row.split()[:5] == [digest[:12], "Llama", "64,", "96", "3"]
    assert " 3 d " in row


def test_families_as_json():
    digest = keep("family", "family-1", sizes=[*SIZES, {0: (3, 64), "mask": (64,)}])
    data = json.loads(get_output("ls", "--families", "--json", "--sort", "name", "--limit", "1"))
    (family,) = data.pop("families")
    assert data == {"schema": 2, "store": str(default_path())}
    assert family.pop("used") > 0 and family.pop("pid") > 0 and family.pop("size") > 500
    assert isinstance(family.pop("host"), str)
    about = {"id": f"{digest[:12]}-0", "digest": digest, "slot": "family", "name": "Llama", "created": NOW}
    assert len(family.pop("guards")) == 3
    assert family == {**about, "seconds": 0.0, "lengths": [[2, 64], [2, 96], [3, 64]]}


def test_show_says_what_a_family_is_made_of_and_what_has_to_stay_the_same():
    digest = keep()
    about, programs, guards, reads = get_output("show", digest[:8]).split("\n\n")
    shown = dict(line.split(maxsplit=1) for line in about.splitlines())
    assert (shown["id"], shown["digest"], shown["name"]) == (digest[:12], digest, "Llama")
    assert programs == drop_first_break("""
2 programs
  argument  sizes
  args[0]   2x64, 2x96
  mask      64, 96""")
    assert guards.splitlines() == ["3 guards", *(f"  {guard}" for guard in GUARDS)]
    assert reads.startswith("1 read\n") and OWN_SILU in reads
    assert get_output("show", digest[:8], "--reads") == reads
    data = json.loads(get_output("show", digest, "--json"))
    assert data["programs"] == [{"args[0]": [2, 64], "mask": [64]}, {"args[0]": [2, 96], "mask": [96]}]
    assert data["guards"] == GUARDS
    assert data["reads"] == [{"kind": "attribute", "name": SILU, "text": OWN_SILU}]


def test_several_families_of_one_form():
    digest = keep("family", "family-2")
    assert "stands for 2 families" in get_error("show", digest[:8])
    assert f"id       {digest[:12]}-2\n" in get_output("show", f"{digest[:8]}-2")


@pytest.mark.parametrize("outline", [b"x", encode_outline(PASSES, [{0: (2, 64)}])])
def test_what_cannot_be_read_is_listed_all_the_same(outline):
    digest = keep(outline=outline)
    assert "  damaged  " in get_output("ls", "--families")
    assert f"the family of {digest[:12]} cannot be read: " in get_error("show", digest)


def test_families_are_neither_programs_nor_executables():
    keep()
    for option in ("--programs", "--store"):
        assert call("ls", option, "--json").stdout.count(KEY.digest) == 0
    for arguments in (
        ("--families", "--programs"),
        ("--families", "--backend", "eager"),
        ("--families", "--text", "x"),
    ):
        assert "--families" in get_error("ls", *arguments, code=2)
    assert "sort by name or size" in get_error("ls", "--families", "--sort", "seconds", code=2)
    assert "is a family" in get_error("show", KEY.digest[:8], "--ops", code=2)
