"""Names of Thunder's functions are used a second time only while no table and no object among them has changed."""

import pytest
import torch
from program_keys import changed
from thunder.core import utils

from fusioncache.accelerators.programs.definitions import Definitions, Fingerprint, KnownNames
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined


def learn(definitions: Definitions) -> KnownNames:
    return definitions.learn(Fingerprint())


def start() -> Definitions:
    return Definitions(Describer(), is_lasting=True)


def test_what_came_later_is_no_part_of_what_is_known():
    first = start()
    first.name(utils.check)
    later, names = [utils.check], learn(first)
    before = Definitions(Describer(), names).name(later)
    later[0] = utils.check_type
    assert names.hold() and Definitions(Describer(), names).name(later) != before


def test_no_name_holds_once_a_container_changed():
    table = {"check": utils.check, "table": {"sum": utils.check_type}}
    first = start()
    before, names = first.name(table), learn(first)
    assert names.hold()
    for change in (
        changed(table, "check", utils.check_same_dtype),
        changed(table, "more", utils.check),
        changed(table["table"], "more", utils.check),
    ):
        with change:
            assert not names.hold() and start().name(table) != before
    assert names.hold()


def test_what_is_trusted_is_so_wherever_it_is():
    def mine() -> None:
        pass

    names = start()
    with pytest.raises(Declined, match="mine, and nothing records what that reads"):
        names.name([mine])
    assert names.has_refused
    names = start()
    with names.trusting():
        name = names.name(mine)
    assert name in names.name([mine]) and not names.has_refused


def test_what_is_described_shows_nothing_of_what_was_before():
    """The names of the process may be made in any order."""
    one, other = [object()], [object()]

    def mine(x: object = one) -> object:
        return x

    def yours(x: object = other) -> object:
        return x

    texts = []
    for pair in ((mine, yours), (yours, mine)):
        definitions = start()
        with definitions.trusting():
            texts.append({each: definitions.name(each) for each in pair})
    assert texts[0] == texts[1]


def test_what_torch_sets_when_a_function_is_first_called_changes_no_name(monkeypatch):
    function = torch.utils.checkpoint.checkpoint
    inner = function.__wrapped__
    monkeypatch.delattr(inner, "__dynamo_disable", raising=False)
    before = Definitions(Describer()).name(function)
    monkeypatch.setattr(inner, "__dynamo_disable", torch._dynamo.disable(inner), raising=False)
    assert Definitions(Describer()).name(function) == before
    monkeypatch.setattr(inner, "another", 1, raising=False)
    assert Definitions(Describer()).name(function) != before
