"""Families as artifacts, and which of them the store keeps."""

from dataclasses import replace

import pytest

from fusioncache.accelerators.programs.derivation import KnownProgram
from fusioncache.accelerators.programs.text import ProgramText, Read, TraceText, encode
from fusioncache.accelerators.sizes.families import (
    MOST_KNOWN,
    Family,
    PassJournal,
    decode_family,
    encode_family,
    find_families,
    forget_family,
    keep_family,
)
from fusioncache.accelerators.sizes.journal import Look
from fusioncache.accelerators.sizes.sizes import Number
from fusioncache.ir.errors import Declined
from fusioncache.observe.record.kept_regions import encode_regions
from fusioncache.store import Store
from fusioncache.store.entry import FAMILY_SLOTS
from fusioncache.template.key import program_key_of

FORM = program_key_of({"family format": "1"})
LENGTH = Number(1, "x[0]")
REGIONS = encode_regions((), ())


def make_program(length, extra=""):
    traces = (
        TraceText(name, f"def {name}(*args):\n  check({length}){extra}\n") for name in ("prologue", "computation")
    )
    return KnownProgram(
        ProgramText(*traces, None, TraceText("epilogue", "def epilogue():\n  pass\n")), {0: (length,)}, REGIONS
    )


def make_family(*lengths, most=100, reads="", place="model.py:1"):
    passes = PassJournal(((0, (LENGTH,)),), (Look("<", LENGTH, most, True, "compares", place),), (), (), (LENGTH,))
    return Family((Read("global", "model.SCALE", reads),), passes, [make_program(length) for length in lengths])


def list_sizes(family):
    return [each.sizes[0][0] for each in family.known]


@pytest.mark.parametrize("name", encode_family(make_family(12, 20)))
def test_a_family_without_a_part_is_none(name):
    artifacts = dict(encode_family(make_family(12, 20)))
    del artifacts[name]
    with pytest.raises(ValueError, match="no family"):
        decode_family(artifacts)
    for content in (b"", b"{}", b"\xff", encode(make_program(20, " + 1.5").text)):
        with pytest.raises(ValueError):
            decode_family({**artifacts, name: content})


def test_a_family_learns_what_is_of_it_up_to_a_number():
    family = make_family(12, 20)
    assert not family.learn(make_program(12))  # which is known
    assert not family.learn(make_program(300, " + 1.5"))  # behind the look
    with pytest.raises(Declined):
        family.learn(make_program(30, " + 1.5"))
    assert list_sizes(family) == [12, 20]
    for length in range(30, 40):
        family.learn(make_program(length))
    assert list_sizes(family) == [12, 20, *range(30, 40)][:MOST_KNOWN]


def test_a_store_has_one_slot_for_each_family_and_the_oldest_goes_where_there_is_no_room(tmp_path):
    store = Store.open(tmp_path / "store", remote="")
    families = [make_family(12, 20, most=100 + number) for number in range(len(FAMILY_SLOTS))]
    families.append(make_family(12, 20, reads="another"))
    for family in families:
        keep_family(store, FORM, family, "Model")

    def list_kept():
        return [any(each.is_same(family) for each in find_families(store, FORM)) for family in families]

    assert list_kept() == [False, True, True, True, True] and len(find_families(store, FORM)) == len(FAMILY_SLOTS)
    here = make_family(20, 30, most=101, place="elsewhere/model.py:1")
    keep_family(store, FORM, here, "Model")
    (found,) = (each for each in find_families(store, FORM) if each.is_same(here))
    assert list_sizes(found) == list_sizes(here) == [20, 30, 12]
    assert list_kept() == [False, True, True, True, True]
    forget_family(store, FORM, here)
    assert list_kept() == [False, False, True, True, True]


def test_what_has_choices_is_no_family():
    program = replace(make_program(12), regions=None)
    with pytest.raises(Declined, match="may differ"):
        Family((), make_family(12, 20).passes, [program, make_program(20)])
