"""Marks of verified templates: for one Thunder and one compiler, in a store that may hold anything."""

import pytest

from fusioncache.store import Store
from fusioncache.store.entry import VERIFIED_SLOT
from fusioncache.template.key import program_key_of
from fusioncache.verification.verifier import LIMIT, VerifiedTemplates

KEY, OTHER = (program_key_of({"state": name}) for name in ("one", "another"))


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.mark.parametrize(
    ("sources", "key", "compiler", "found"),
    [
        ("sources", KEY, "nvfuser", True),
        ("other", KEY, "nvfuser", False),
        ("sources", OTHER, "nvfuser", False),
        ("sources", KEY, "inductor", False),
    ],
)
def test_a_later_process_finds_the_mark_of_its_thunder_its_template_and_its_compiler(
    store, sources, key, compiler, found
):
    VerifiedTemplates(store, "sources").add(KEY, "nvfuser")
    assert VerifiedTemplates(Store.open(store.directory), sources).has(key, compiler) is found


@pytest.mark.parametrize("sources", ["", "sources"])
def test_nothing_is_kept_without_a_store_or_known_sources(store, sources):
    marks = VerifiedTemplates(store if not sources else None, sources)
    marks.add(KEY, "nvfuser")
    assert not marks.has(KEY, "nvfuser") and not store.entries()


def test_marks_do_not_pile_up(store):
    for number in range(LIMIT + 4):
        marks = VerifiedTemplates(store, f"sources {number}")
        marks.add(KEY, "nvfuser")
        assert marks.has(KEY, "nvfuser")
    known = [VerifiedTemplates(store, f"sources {number}").has(KEY, "nvfuser") for number in range(LIMIT + 4)]
    assert known == [False] * LIMIT + [True] * 4


def test_what_is_no_mark_stands_for_nothing(store):
    store.save(KEY, VERIFIED_SLOT, {"verified.json": b"[]"}, name="verified template")
    marks = VerifiedTemplates(store, "sources")
    assert not marks.has(KEY, "nvfuser")
    marks.add(KEY, "nvfuser")
    assert marks.has(KEY, "nvfuser")
