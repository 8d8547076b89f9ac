"""From an ID to the one thing that it names, in the record and in a store."""

import pytest
from commands import CAST, CHAIN, FIRST_RUN, get_error, get_output, save_two_runs
from kept_programs import SavedProgram
from recorded_templates import make_cast_template

from fusioncache.cli.things import find_candidates
from fusioncache.store import Store
from fusioncache.template.key import make_key

ALL = ("run", "template", "executable", "program", "family")
EXECUTABLE = make_key(CAST.graph, {"backend": "eager"})
PROGRAM = SavedProgram()


@pytest.fixture(autouse=True)
def _subjects(monkeypatch):
    """Two runs with two templates; in the store an executable and two programs of one key."""
    save_two_runs(monkeypatch)
    store = Store.open()
    assert store.save(EXECUTABLE, "eager", {"code": b"x"}, name="convert_1")
    assert store.save(make_cast_template(options="same").key, "eager", {"code": b"y"}, name="other_1")
    PROGRAM.save(store)
    SavedProgram(slot="program-1").save(store)


def _kinds(wanted: str, *kinds: str) -> list[str]:
    return [one.kind for one in find_candidates(wanted, None, kinds or ALL)]


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        (CHAIN.key.digest, ["template"]),
        (CHAIN.key.digest[:6], ["template"]),
        (CHAIN.name, ["template"]),
        ("residual", ["template"]),
        (EXECUTABLE.digest, ["executable"]),
        (EXECUTABLE.digest[:6], ["executable"]),
        (f"{EXECUTABLE.digest}.eager", ["executable"]),
        ("other_1", ["executable"]),
        (PROGRAM.make_key().digest, ["program", "program"]),
        (f"{PROGRAM.make_key().digest[:6]}-1", ["program"]),
        ("Llama", ["program", "program"]),
        (FIRST_RUN, ["run"]),
        ("train.py", ["run"]),
        ("last", ["run"]),
        ("nosuch", []),
        ("", []),
    ],
)
def test_what_an_id_stands_for(wanted, kinds):
    assert _kinds(wanted) == kinds


def test_a_name_is_that_of_a_template_before_that_of_an_executable():
    assert _kinds("convert", "template", "executable") == ["template"]
    assert _kinds("convert", "executable") == ["executable"]


def test_a_start_of_an_id_and_of_a_name_lists_both():
    assert CHAIN.key.digest.startswith("c") and CAST.name.startswith("c")
    assert {one.name for one in find_candidates("c", None, ("template",))} == {CHAIN.name, CAST.name}


def test_a_template_and_what_was_compiled_for_it_may_have_one_key():
    store = Store.open()
    assert store.save(CAST.key, "eager", {"code": b"x"}, name=CAST.name)
    assert _kinds(CAST.key.digest) == ["template"]


def test_another_kind_of_thing_is_named_in_the_error():
    assert "is a run (train.py · " in get_error("show", FIRST_RUN)
    assert "this command takes a template or an executable" in get_error("graph", FIRST_RUN)


@pytest.mark.parametrize("option", ["--ops", "--inputs", "--code", "--repro"])
def test_parts_of_an_executable(option):
    assert get_output("show", EXECUTABLE.digest, option)
