"""Names are used a second time only while nothing that they were made of has changed."""

import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import thunder
import torch
from program_keys import assert_same, changed, jit, key_of
from thunder.core import jit_ext, prims, rematerialization, symbol, transforms, utils

import fusioncache
from fusioncache.ir import Key
from fusioncache.program import fields, known_map
from fusioncache.program.definitions import Definitions
from fusioncache.program.describe import Describer
from fusioncache.program.known_parts import KnownParts
from fusioncache.program.shared_map import shared_map_of_process
from fusioncache.program.snapshot import Snapshot, are_same
from fusioncache.program.watched_names import WatchedNames
from fusioncache.program.watched_tables import WatchedTables

X = torch.zeros(3, 4)
SYMBOL = thunder.torch.silu.__wrapped__ if hasattr(thunder.torch.silu, "__wrapped__") else thunder.torch.silu


@contextmanager
def set_on(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets what a class may not want to be set."""
    before = getattr(owner, name)
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        object.__setattr__(owner, name, before)


@contextmanager
def in_cell(cell: types.CellType, value: Any) -> Iterator[None]:
    before = cell.cell_contents
    cell.cell_contents = value
    try:
        yield
    finally:
        cell.cell_contents = before


def add_constant(code: types.CodeType) -> types.CodeType:
    return code.replace(co_consts=(*code.co_consts, 1))


def find_wrapper() -> types.FunctionType:
    """A function of Thunder's that stands for another one, deep in a chain of such."""
    chains = (value for value in jit_ext._general_jit_lookaside_map.values() if hasattr(value, "__wrapped__"))
    return next(each.__wrapped__ for each in chains if getattr(each.__wrapped__, "__closure__", None))


def find_function(field: str) -> types.FunctionType:
    """A function that a symbol of Thunder's refers to by one of its fields."""
    symbols = (value for value in vars(prims).values() if isinstance(value, symbol.Symbol))
    functions = (getattr(each, field) for each in symbols)
    return next(each for each in functions if isinstance(each, types.FunctionType))


FIND_CUT = rematerialization.find_cut
CHANGES: dict[str, Callable[[], Any]] = {
    "code": lambda: set_on(
        FIND_CUT, "__code__", FIND_CUT.__code__.replace(co_consts=(*FIND_CUT.__code__.co_consts, 1))
    ),
    "defaults": lambda: set_on(FIND_CUT, "__defaults__", (1,)),
    "defaults by name": lambda: set_on(FIND_CUT, "__kwdefaults__", {"x": 1}),
    "an attribute of a function": lambda: changed(FIND_CUT, "mark", 1),
    "a cell of a function that is wrapped": lambda: in_cell(find_wrapper().__closure__[0], utils.check),
    "a global": lambda: changed(rematerialization, "find_cut", utils.check),
    "a new global": lambda: changed(rematerialization, "another", 1),
    "an entry of a table": lambda: changed(transforms.backward_impls, prims.PrimIDs.SIN, utils.check),
    "a new entry of a table": lambda: changed(transforms.backward_impls, "another", utils.check),
    "a slot of a symbol": lambda: set_on(SYMBOL, "meta", utils.check),
    "code of a symbol's function": lambda: set_on(
        find_function("meta"), "__code__", add_constant(find_function("meta").__code__)
    ),
    "a default of a symbol's function": lambda: set_on(find_function("meta"), "__defaults__", (1,)),
    "what a symbol does with each call": lambda: set_on(find_function("_bind_postprocess"), "__defaults__", (None, 1)),
    "a method": lambda: changed(symbol.BoundSymbol, "has_input", utils.check),
    "a lookaside": lambda: changed(jit_ext._general_jit_lookaside_map, torch.sin, utils.check),
}


@pytest.fixture(scope="module")
def named(jitted: Any) -> tuple[WatchedNames, Key]:
    definitions = Definitions(Describer())
    key = key_of(jitted, X, definitions=definitions)
    return definitions.watch(), key


def key_after(names: WatchedNames, jitted: Any) -> Key:
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
    watched = second.watch()
    assert (watched.names, watched.snapshot) == (names.names, names.snapshot)
    assert all(second.name(each) is names.names[each] for each in functions)
    assert not any(Definitions(Describer()).name(each) is names.names[each] for each in functions)


def summarize(names: WatchedNames | None, table: dict[str, Any]) -> tuple[Definitions, tuple[str, ...], int]:
    """Returns lines that are made of a table, and how often they were made."""
    definitions, made = Definitions(Describer(), names), []

    def make() -> list[str]:
        made.append(1)
        return [f"{name} {definitions.name(value)}" for name, value in table.items()]

    return definitions, definitions.summarize("here", table, lambda: WatchedTables([(table, ())]), make), len(made)


@contextmanager
def renamed(table: dict[str, Any], old: str, new: str) -> Iterator[None]:
    """Has the last item of a table under another key meanwhile."""
    table[new] = table.pop(old)
    yield
    table[old] = table.pop(new)


@pytest.mark.usefixtures("_way")
def test_lines_are_made_again_where_a_name_a_value_or_what_it_is_made_of_changed(monkeypatch):
    table = {"check": utils.check, "table": {"sum": utils.check_type}}
    first, lines, _ = summarize(None, table)
    names = first.watch()
    assert summarize(names, table)[1:] == (lines, 0)
    assert summarize(names, dict(table))[2] == 1  # which may be another one the next time
    for change in (
        renamed(table, "table", "other"),
        changed(table, "check", utils.check_same_dtype),
        changed(table, "more", utils.check),
        changed(table["table"], "more", utils.check),
    ):
        with change:
            assert summarize(names, table)[2] == 1
    assert summarize(first.watch(), table)[1:] == (lines, 0)
    monkeypatch.setattr(utils.check, "__defaults__", (1,))
    assert summarize(names, table)[1:] != (lines, 0)


def test_lines_with_what_somebody_else_wrote_are_made_each_time():
    def mine() -> None:
        pass

    table = {"mine": mine, "check": utils.check}
    first, lines, _ = summarize(None, table)
    assert summarize(first.watch(), table)[1:] == (lines, 1)


def test_what_is_made_of_somebody_elses_name_is_named_anew():
    """Also where that name was given before, by itself."""

    def mine() -> None:
        pass

    pair, first = [mine], Definitions(Describer())
    first.name(mine)
    before, lines = first.name(pair), first.summarize("here", {}, lambda: WatchedTables(()), lambda: [first.name(mine)])
    names = first.watch()
    mine.__defaults__ = (1,)
    second = Definitions(Describer(), names)
    assert second.name(pair) != before
    assert second.summarize("here", {}, lambda: WatchedTables(()), lambda: [second.name(mine)]) != lines


def test_what_came_later_is_named_anew_as_nobody_watches_it(monkeypatch):
    first = Definitions(Describer())
    first.name(utils.check)
    table = {"later": [utils.check]}
    second, lines, _ = summarize(first.watch(), table)
    names = second.watch()
    table["later"][0] = utils.check_type
    assert summarize(names, table)[1] != lines


def test_what_was_described_is_described_again():
    """Its classes belong to each key, and whether it is somebody else's code."""

    def mine() -> None:
        pass

    first = Definitions(Describer())
    name = first.name((mine, utils.check))
    second = Definitions(Describer(), first.watch())
    assert not second.foreign
    assert second.name((mine, utils.check)) == name
    assert second.foreign == first.foreign
    assert list(first.foreign.values()) == [(mine.__code__,)]


@pytest.fixture(params=["by fields", "asked"])
def _way(request, monkeypatch):
    """Reads what objects refer to in memory, or asks Python's collector only."""
    assert fields.KNOWN  # or both are the same
    if request.param == "asked":
        monkeypatch.setattr(fields, "KNOWN", {})


@pytest.mark.usefixtures("_way")
def test_what_refers_to_itself_ends():
    def outer() -> Any:
        def inner() -> Any:
            return inner

        inner.table = {}
        inner.table["self"] = inner.table
        return inner

    function = outer()
    snapshot = Snapshot([function, functools.partial(function)])
    assert snapshot.holds()
    with changed(function, "mark", 1):
        assert not snapshot.holds()


def test_what_is_too_deep_is_not_known():
    function: Callable[[], Any] = dict
    for _ in range(200):
        function = wrapped(function)
    assert not Snapshot([function]).holds()


def wrapped(inner: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: inner()


def move_last(first: list[int], second: list[int]) -> None:
    second.insert(0, first.pop())


def move_item(first: dict[str, int], second: dict[str, int]) -> None:
    key, value = first.popitem()
    items = dict(second)
    second.clear()
    second.update({key: value}, **items)


def move_content(first: types.CellType, second: types.CellType) -> None:
    second.cell_contents = first.cell_contents
    del first.cell_contents


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize(
    ("make", "move"),
    [
        (lambda: ([1, 2], [3]), move_last),
        (lambda: ([1], []), move_last),
        (lambda: ({"a": 1, "b": 2}, {"c": 3}), move_item),
        (lambda: ({"a": 1}, {}), move_item),
        (lambda: (types.CellType(1), types.CellType()), move_content),
    ],
)
def test_what_went_over_to_its_neighbour_is_noticed(make, move):
    """All of them together refer to the same, in the same order."""
    first, second = make()
    snapshot = Snapshot([first, second])
    assert snapshot.holds()
    move(first, second)
    assert not snapshot.holds()


@pytest.mark.usefixtures("_way")
def test_the_order_of_values_is_not_that_in_which_a_table_keeps_them():
    class Point:
        def __init__(self) -> None:
            self.a, self.b = 1, 2

    table = vars(Point())  # which shares its keys with those of other points
    table["a"] = table.pop("a")
    snapshot = Snapshot([table])
    assert snapshot.holds()
    table["c"] = 3
    del table["c"]
    table.update(a=2, b=1)
    assert not snapshot.holds()


@pytest.mark.usefixtures("_way")
def test_a_cell_that_was_empty_is_noticed():
    cell = types.CellType()
    snapshot = Snapshot([[1], cell])
    assert snapshot.holds()
    cell.cell_contents = 1
    assert not snapshot.holds()


@pytest.mark.usefixtures("_way")
def test_the_order_of_a_table_is_a_part_of_it():
    table = {"a": 1, "b": 2}
    snapshot = Snapshot([table])
    assert snapshot.holds()
    table["a"] = table.pop("a")
    assert not snapshot.holds()


@pytest.mark.usefixtures("_way")
def test_the_keys_of_a_table_are_a_part_of_it():
    table = {"a": 1, "b": 2}
    snapshot = Snapshot([table])
    table["c"] = table.pop("b")
    assert not snapshot.holds()


@pytest.mark.usefixtures("_way")
def test_a_function_in_a_tuple_is_opened():
    def inner() -> None:
        pass

    for objects in ([(inner, 1)], [((inner,),)], [[(inner,)]], [lambda x=((inner,),): x]):
        snapshot = Snapshot(objects)
        assert snapshot.holds()
        with changed(inner, "mark", 1):
            assert not snapshot.holds()


def test_a_derivation_watches_what_it_named(monkeypatch):
    """The key is made a second time when the program was derived, with the names of the first."""
    taken: list[bool] = []
    own = Snapshot.holds
    shared_map_of_process.cache_clear()
    shared = shared_map_of_process()

    def holds(snapshot: Snapshot) -> bool:
        is_same = own(snapshot)
        if shared.names is not None and snapshot is shared.names.snapshot:
            taken.append(is_same)
        return is_same

    monkeypatch.setattr(Snapshot, "holds", holds)
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
    own = known_map.write_thunder
    monkeypatch.setattr(known_map, "write_thunder", lambda *given: written.append(1) or own(*given))
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    shared_map_of_process.cache_clear()
    for number, is_written in enumerate((True, False, True, False)):
        transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
        assert transform.program_keeper and transform.program_keeper.shared is shared_map_of_process()
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
    names, lives = definitions.watch(), weakref.ref(option)
    del option, definitions
    gc.collect()
    assert lives() is None and names.snapshot.holds()


def test_a_new_length_makes_use_of_it(monkeypatch):
    """Through ``thunder.jit``, from the fifth length on at the latest: the first ones change what Thunder knows."""
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    held: list[bool] = []
    own = KnownParts.take
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
    compiled = jit(torch.nn.Linear(4, 9), transforms=[transform])
    for length in range(3, 8):
        compiled(torch.zeros(length, 4))
    monkeypatch.setattr(KnownParts, "take", lambda *given: held.append(True) or own(*given))
    for length in range(8, 11):
        compiled(torch.zeros(length, 4))
    assert held == [] and transform.stats().programs_filled >= 3


@pytest.mark.usefixtures("_way")
def test_what_another_snapshot_watches_is_left_to_it():
    def inner() -> None:
        pass

    outer, own = wrapped(inner), wrapped(dict)
    first = Snapshot([outer])
    second, alone = Snapshot([[outer], own, (inner,)], first), Snapshot([[outer], own, (inner,)])
    for function, held in ((inner, [False, True, False]), (outer, [False, True, False]), (own, [True, False, False])):
        with changed(function, "mark", 1):
            assert [first.holds(), second.holds(), alone.holds()] == held
    assert first.holds() and second.holds() and alone.holds()


@pytest.mark.usefixtures("_way")
def test_keys_and_values_are_told_apart():
    """Which are so many, and in this order, in a table that has other keys."""
    for first, second in (({1: 2, 3: 4}, {1: 3, 2: 4}), ({1: 2}, {2: 1}), ({1: 1, 2: 2}, {1: 2, 2: 1})):
        table = dict(first)
        snapshot = Snapshot([table])
        assert snapshot.holds()
        table.clear()
        table.update(second)
        assert not snapshot.holds()
        table.clear()
        table.update(first)
        assert snapshot.holds()


class Stranger:
    """An object that nobody may ask anything."""

    def _refuse(self, *given: object) -> bool:
        raise AssertionError("was asked")

    __eq__ = __ne__ = __bool__ = __len__ = __iter__ = __hash__ = _refuse  # type: ignore[assignment]


def test_only_the_very_same_objects_in_the_same_order_are_the_same():
    one, other = Stranger(), Stranger()
    assert are_same([], ()) and are_same([one, other, one], (one, other, one))
    for some, others in (([one], [other]), ([one, other], [other, one]), ([one], [one, one]), ([1.0], [float("1")])):
        assert not are_same(some, others) and not are_same(others, some)
