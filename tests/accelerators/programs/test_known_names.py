"""Names of Thunder's functions are used a second time only while no table and no object among them has changed."""

from contextlib import nullcontext

import pytest
import torch
from program_keys import changed, jit
from thunder.core import utils

import fusioncache
from fusioncache.accelerators.programs import function_map
from fusioncache.accelerators.programs.definitions import Definitions, Fingerprint, KnownNames
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.function_map import epoch_of_process
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


def test_all_transforms_of_a_process_share_the_function_map(monkeypatch):
    """It is written for the first function, and again once something of Thunder's is another one."""
    written: list[int] = []
    own = function_map.write_thunder
    monkeypatch.setattr(function_map, "write_thunder", lambda *given: written.append(1) or own(*given))
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    epoch_of_process.cache_clear()
    for number, is_written in enumerate((True, False, True, True, False)):
        transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
        assert transform.program_keeper and transform.program_keeper.epoch is epoch_of_process()
        with changed(utils, "another", 1) if number == 2 else nullcontext():
            jit(torch.nn.Linear(4, 11 + number), transforms=[transform])(torch.zeros(3, 4))
        assert transform.stats().programs_made == 1 and bool(written) is is_written
        del written[:]


def test_a_new_length_makes_use_of_it(monkeypatch):
    """Through ``thunder.jit``, from the fifth length on at the latest: the first ones change what Thunder knows."""
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    described: list[bool] = []
    write = function_map.write_thunder
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
    compiled = jit(torch.nn.Linear(4, 9), transforms=[transform])
    for length in range(3, 8):
        compiled(torch.zeros(length, 4))
    monkeypatch.setattr(function_map, "write_thunder", lambda *given: described.append(True) or write(*given))
    for length in range(8, 11):
        compiled(torch.zeros(length, 4))
    assert described == [] and transform.stats().programs_filled >= 3


def test_what_torch_sets_when_a_function_is_first_called_changes_no_name(monkeypatch):
    function = torch.utils.checkpoint.checkpoint
    inner = function.__wrapped__
    monkeypatch.delattr(inner, "__dynamo_disable", raising=False)
    before = Definitions(Describer()).name(function)
    monkeypatch.setattr(inner, "__dynamo_disable", torch._dynamo.disable(inner), raising=False)
    assert Definitions(Describer()).name(function) == before
    monkeypatch.setattr(inner, "another", 1, raising=False)
    assert Definitions(Describer()).name(function) != before
