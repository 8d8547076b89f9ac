"""From an ID to the one thing that it names, in the record and in a store."""

import pytest
from commands import CAST, CHAIN, FIRST_RUN, save_two_runs
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
