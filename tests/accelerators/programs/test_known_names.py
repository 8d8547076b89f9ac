"""Names of Thunder's functions are used a second time only while no table and no object among them has changed."""

import torch
from program_keys import changed
from thunder.core import utils

from fusioncache.accelerators.programs.definitions import Definitions, Fingerprint, KnownNames
from fusioncache.accelerators.programs.describe import Describer


def learn(definitions: Definitions) -> KnownNames:
    return definitions.learn(Fingerprint())


def start() -> Definitions:
    return Definitions(Describer(), is_lasting=True)


def test_what_is_made_of_anothers_name_holds_while_that_is_the_same():
    """Also where that name was given before, by itself."""

    def mine() -> None:
        pass

    pair, first = [mine], start()
    first.name(mine)
    before, names = first.name(pair), learn(first)
    assert names.hold() and Definitions(Describer(), names).name(pair) == before
    mine.__defaults__ = (1,)
    assert not names.hold() and start().name(pair) != before


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


def test_what_others_wrote_is_met_again_with_each_name():
    def mine() -> None:
        pass

    first = start()
    name = first.name((mine, utils.check))
    second = Definitions(Describer(), learn(first))
    assert not second.foreign
    assert second.name(mine) != name and second.foreign == first.foreign
    assert list(first.foreign.values()) == [(mine.__code__,)]


def test_what_is_trusted_is_so_wherever_it_is():
    def mine() -> None:
        pass

    first = start()
    first.name([mine])
    second = Definitions(Describer(), learn(first))
    second.met.update(first.met)
    assert second.foreign
    with second.trusting():
        second.name(mine)
    assert not second.foreign


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
