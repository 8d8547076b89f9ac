"""Names of Thunder's functions are used a second time only while no table and no object among them has changed."""

import gc
import types
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import thunder
import torch
from changed_things import with_another_constant
from program_keys import assert_same, changed, jit, key_of
from thunder.core import jit_ext, prims, rematerialization, symbol, transforms, utils

import fusioncache
from fusioncache.accelerators.programs import function_map
from fusioncache.accelerators.programs.definitions import Definitions, KnownNames
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.fingerprint import Fingerprint, KnownClasses
from fusioncache.accelerators.programs.function_map import epoch_of_process
from fusioncache.ir import Key

X = torch.zeros(3, 4)


def find_info() -> Any:
    """An object of Thunder's that says how an executor carries an operation out."""
    return next(iter(thunder.extend.get_executor("torch").implmap.values()))


CHANGES: dict[str, Callable[[], Any]] = {
    "a global": lambda: changed(rematerialization, "find_cut", utils.check),
    "a new global": lambda: changed(rematerialization, "another", 1),
    "a function with other code": lambda: changed(
        rematerialization, "find_cut", with_another_constant(rematerialization.find_cut)
    ),
    "an entry of a table": lambda: changed(transforms.backward_impls, prims.PrimIDs.SIN, utils.check),
    "a new entry of a table": lambda: changed(transforms.backward_impls, "another", utils.check),
    "a symbol": lambda: changed(thunder.torch, "silu", thunder.torch.relu),
    "a method": lambda: changed(symbol.BoundSymbol, "has_input", utils.check),
    "a lookaside": lambda: changed(jit_ext._general_jit_lookaside_map, torch.sin, utils.check),
    "an attribute of an object of Thunder's": lambda: changed(find_info(), "checker", utils.check),
}


@pytest.fixture(scope="module")
def named(jitted: Any) -> tuple[KnownNames, Key]:
    definitions = Definitions(Describer())
    key = key_of(jitted, X, definitions=definitions)
    return definitions.learn(), key


def key_after(names: KnownNames, jitted: Any) -> Key:
    return key_of(jitted, X, definitions=Definitions(Describer(), names))


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_as_if_all_were_named_anew(name, jitted, named):
    names, key = named
    with CHANGES[name]():
        after = key_after(names, jitted)
        assert after != key
        assert_same(after, key_of(jitted, X))
    assert_same(key, key_after(names, jitted))


def test_names_are_not_made_again_while_nothing_changed(jitted, named):
    names, key = named
    second = Definitions(Describer(), names)
    assert_same(key, key_of(jitted, X, definitions=second))
    functions = [each for each in vars(utils).values() if isinstance(each, types.FunctionType)]
    assert len(functions) > 50
    assert second.learn() is names
    assert all(second.name(each) is names.names[each] for each in functions)
    assert not any(Definitions(Describer()).name(each) is names.names[each] for each in functions)


def test_what_is_made_of_somebody_elses_name_is_named_anew():
    """Also where that name was given before, by itself."""

    def mine() -> None:
        pass

    pair, first = [mine], Definitions(Describer())
    first.name(mine)
    before = first.name(pair)
    names = first.learn()
    mine.__defaults__ = (1,)
    assert Definitions(Describer(), names).name(pair) != before


def test_what_came_later_is_named_anew_as_nobody_compares_it():
    first = Definitions(Describer())
    first.name(utils.check)
    later = [utils.check]
    second = Definitions(Describer(), first.learn())
    before, names = second.name(later), second.learn()
    later[0] = utils.check_type
    assert Definitions(Describer(), names).name(later) != before


def test_no_name_is_used_again_once_a_container_changed():
    table = {"check": utils.check, "table": {"sum": utils.check_type}}
    first = Definitions(Describer())
    before, names = first.name(table), first.learn()
    assert Definitions(Describer(), names).earlier is names
    for change in (
        changed(table, "check", utils.check_same_dtype),
        changed(table, "more", utils.check),
        changed(table["table"], "more", utils.check),
    ):
        with change:
            second = Definitions(Describer(), names)
            assert second.earlier is None and second.name(table) == Definitions(Describer()).name(table) != before
    assert Definitions(Describer(), names).name(table) == before


def test_what_was_described_is_described_again():
    """Its classes belong to each key, as well as whether other code defines it."""

    def mine() -> None:
        pass

    first = Definitions(Describer())
    name = first.name((mine, utils.check))
    second = Definitions(Describer(), first.learn())
    assert not second.foreign
    assert second.name((mine, utils.check)) == name
    assert second.foreign == first.foreign
    assert list(first.foreign.values()) == [(mine.__code__,)]


def test_a_derivation_compares_what_it_named(monkeypatch):
    """The key is made a second time when the program was derived, with the names of the first."""
    taken: list[bool] = []
    own = Fingerprint.holds
    epoch_of_process.cache_clear()
    known = epoch_of_process()

    def holds(fingerprint: Fingerprint) -> bool:
        is_same = own(fingerprint)
        if known.names is not None and fingerprint is known.names.fingerprint:
            taken.append(is_same)
        return is_same

    monkeypatch.setattr(Fingerprint, "holds", holds)
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
    compiled = jit(torch.nn.Linear(4, 4), transforms=[transform])
    compiled(X)
    assert taken == [True]
    compiled(torch.zeros(5, 4))  # both keys of the next program are made of these names
    assert taken == [True] * 3


def test_what_changed_between_two_programs_is_named_anew(monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
    for length in (3, 4, 5, 6):
        compiled = jit(torch.nn.Linear(4, 7), transforms=[transform])
        with changed(utils, "another", length) if length > 4 else nullcontext():
            compiled(torch.zeros(length, 4))
    stats = transform.stats()
    assert (stats.programs_made, sum(stats.programs_refused.values())) == (4, 0)
    stored = jit(torch.nn.Linear(4, 7), transforms=[transform])
    stored(torch.zeros(3, 4))
    stored(torch.zeros(5, 4))  # which was derived of a Thunder that had another value
    assert (transform.stats().programs_loaded, transform.stats().programs_made) == (1, 5)


def test_all_transforms_of_a_process_share_the_function_map(monkeypatch):
    """It is written for the first two functions, and again once something of Thunder's is another one."""
    written: list[int] = []
    own = function_map.write_thunder
    monkeypatch.setattr(function_map, "write_thunder", lambda *given: written.append(1) or own(*given))
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    epoch_of_process.cache_clear()
    for number, is_written in enumerate((True, False, True, False)):
        transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
        assert transform.program_keeper and transform.program_keeper.epoch is epoch_of_process()
        with changed(utils, "another", 1) if number > 1 else nullcontext():
            jit(torch.nn.Linear(4, 11 + number), transforms=[transform])(torch.zeros(3, 4))
        assert transform.stats().programs_made == 1 and bool(written) is is_written
        del written[:]


def test_names_are_kept_without_what_was_described():
    """A key knows the arguments and the options of its call; those after it do not keep them alive."""

    class Option:
        pass

    option, definitions = Option(), Definitions(Describer())
    definitions.name((option, utils.check))
    names, lives = definitions.learn(), weakref.ref(option)
    del option, definitions
    gc.collect()
    assert lives() is None and names.fingerprint.holds()


def test_a_new_length_makes_use_of_it(monkeypatch):
    """Through ``thunder.jit``, from the fifth length on at the latest: the first ones change what Thunder knows."""
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    described: list[bool] = []
    own, write = KnownClasses.learn, function_map.write_thunder
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
    compiled = jit(torch.nn.Linear(4, 9), transforms=[transform])
    for length in range(3, 8):
        compiled(torch.zeros(length, 4))
    monkeypatch.setattr(KnownClasses, "learn", lambda *given: described.append(True) or own(*given))
    monkeypatch.setattr(function_map, "write_thunder", lambda *given: described.append(True) or write(*given))
    for length in range(8, 11):
        compiled(torch.zeros(length, 4))
    assert described == [] and transform.stats().programs_filled >= 3
