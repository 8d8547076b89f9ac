"""What lasts from one key to the next is known of Thunder, and written again as soon as anything in it is another."""

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import optree
import pytest
import thunder
import torch
from described import Box
from program_keys import Model, assert_same, called, changed, jit, key_of
from thunder.core import jit_ext, prims, rematerialization, symbol, transforms, utils
from thunder.core.pytree import OPTREE_NAMESPACE
from thunder.distributed.transforms import ddp

from fusioncache.accelerators.programs import function_map
from fusioncache.accelerators.programs.definitions import Definitions, Fingerprint
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.function_map import Epoch
from fusioncache.accelerators.programs.key import make_key
from fusioncache.ir import Declined, Key

pytestmark = pytest.mark.usefixtures("few")
X = torch.zeros(3, 4)


class Known:
    """What is compiled, and what is known of its keys."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.compiled, self.epoch = fn, jit(fn, executors=()), Epoch()
        self.key = self.make()
        assert isinstance(self.key, Key)

    def make(self, x: torch.Tensor = X, epoch: Epoch | None = None) -> Key | str:
        """Returns the key that the keeper makes, or the reason for which it makes none."""
        try:
            return key_of(self.compiled, x, epoch=epoch or self.epoch)
        except Declined as reason:
            return str(reason)

    def make_anew(self, x: torch.Tensor = X) -> Key | str:
        """Returns the key that a fresh describer makes, or the reason for which it makes none."""
        return self.make(x, Epoch())

    def assert_seen(self, change: Callable[[], Any]) -> None:
        """Asserts that the keeper notices a change and its end: its key is that of a fresh describer."""
        assert self.make() == self.key
        maps = dict(self.epoch.maps)
        assert self.make() == self.key
        assert self.epoch.maps == maps  # which is how it is where nothing changed
        with change():
            after, anew = self.make(), self.make_anew()
            assert after == anew != self.key
            assert self.make() == anew
        assert self.make() == self.key


@pytest.fixture(scope="module", name="known")
def _known(few: None) -> Known:
    return Known(Model())


def with_another_constant(function: Any) -> types.FunctionType:
    """Returns a function like another one whose code has one constant more."""
    code = function.__code__.replace(co_consts=(*function.__code__.co_consts, 1))
    name, defaults, closure = function.__name__, function.__defaults__, function.__closure__
    return types.FunctionType(code, function.__globals__, name, defaults, closure)


def of_others(x: Any, mark: int = 1) -> Any:
    """Is none of Thunder's functions."""
    return x


@contextmanager
def registered_pytree() -> Iterator[None]:
    optree.register_pytree_node(Box, lambda x: ((), None), lambda _, parts: Box(), namespace=OPTREE_NAMESPACE)
    yield
    optree.unregister_pytree_node(Box, namespace=OPTREE_NAMESPACE)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute of a model": lambda model: changed(model.norm, "eps", 1.0),
    "a method of a base": lambda model: changed(torch.nn.Module, "add_module", lambda *given: None),
    "a hook": lambda model: changed(model.first._forward_hooks, 0, lambda *given: given[2]),
    "the type of a buffer": lambda model: changed(model.norm._buffers, "shift", torch.zeros(4).double()),
    "a global of Thunder's": lambda _: changed(rematerialization, "find_cut", utils.check),
    "a new global of Thunder's": lambda _: changed(rematerialization, "another", 1),
    "a function of Thunder's with other code": lambda _: changed(
        rematerialization, "find_cut", with_another_constant(rematerialization.find_cut)
    ),
    "a method of Thunder's": lambda _: changed(symbol.BoundSymbol, "has_input", utils.check),
    "a method that Python made for Thunder": lambda _: changed(
        symbol.BoundSymbolRHS, "__hash__", with_another_constant(symbol.BoundSymbolRHS.__hash__)
    ),
    "a table of Thunder's": lambda _: changed(transforms.backward_impls, prims.PrimIDs.SIN, utils.check),
    "a lookaside": lambda _: changed(jit_ext._general_jit_lookaside_map, torch.sin, utils.check),
    "a function in the map": lambda _: changed(thunder.torch._torch_to_thunder_function_map, torch.sin, utils.check),
    "a module that takes part": lambda _: changed(ddp, "apply_bucketing_to_grad_allreduce", utils.check),
    "a class that is taken apart": lambda _: registered_pytree(),
    "a function of others in Thunder": lambda _: changed(rematerialization, "find_cut", of_others),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_in_a_model_or_in_thunder_is_seen(what, known):
    known.assert_seen(lambda: CHANGES[what](known.fn))


class Marked:
    size = 3

    def method(self) -> int:
        return 1


TABLE: dict[str, Any] = {
    "check": [utils.check, 1],
    "inner": {"sum": utils.check_type},
    "mine": Box(mode="rms"),
    "method": Marked().method,
    "function": of_others,
    "again": [of_others],
    "cut": rematerialization.find_cut,
}
IN_TABLE: dict[str, Callable[[], Any]] = {
    "an item": lambda: changed(TABLE, "check", [utils.check_type, 1]),
    "an item more": lambda: changed(TABLE, "another", utils.check),
    "an item of a table in it": lambda: changed(TABLE["inner"], "more", utils.check),
    "an equal number of another type": lambda: changed(TABLE, "check", [utils.check, True]),
    "an attribute of an object": lambda: changed(TABLE["mine"], "mode", "other"),
    "an attribute of a class": lambda: changed(Marked, "size", 7),
    "an attribute of what a method is of": lambda: changed(TABLE["method"].__self__, "size", 7),
    "a default of a function of others": lambda: mock.patch.object(of_others, "__defaults__", (2,)),
}


def test_what_came_into_thunder_later_is_compared_as_well():
    known = Known(Model())
    with changed(rematerialization, "another", TABLE):
        known.key = known.make()
        for change in IN_TABLE.values():
            known.assert_seen(change)


def test_nothing_is_written_again_while_nothing_changed(known):
    def find_map() -> Any:
        return known.epoch.find_map(known.compiled._lc_cd.executors_list)

    assert known.make() == known.key
    known_map = find_map()
    with torch.no_grad():
        known.fn.first.weight.mul_(2.0)
    known.fn.first(X).sum().backward()
    for shape in ((5, 4), (3, 4)):
        x = torch.zeros(shape)
        assert_same(known.make(x), known.make_anew(x))
        assert find_map() is known_map
    known.fn.zero_grad()


def test_what_takes_no_part_is_asked_for_each_time(known):
    """A function of others is foreign in Thunder, unless it is the ``torch.compile`` of this moment."""
    with changed(rematerialization, "another", of_others):
        known.key = known.make()
        assert "foreign." in known.key.texts["function map"]
        known.assert_seen(lambda: changed(torch, "compile", of_others))
    known.key = known.make()


def test_other_executors_are_noticed(known):
    others = [*known.compiled._lc_cd.executors_list, thunder.get_executor("torchcompile")]  # which has a module more
    known.assert_seen(lambda: changed(known.compiled._lc_cd, "executors_list", others))


def test_the_function_map_is_written_once_for_all_functions(known):
    with changed(function_map, "write_thunder", lambda *given: 1 / 0):
        for fn in (Model(), of_others, torch.nn.LayerNorm(4)):
            assert "function map" in key_of(jit(fn, executors=()), X, epoch=known.epoch).texts


def test_what_a_model_has_that_thunder_has_as_well_is_told_by_its_name():
    model, epoch = Model(), Epoch()
    model.extra = of_others
    with changed(rematerialization, "another", of_others):
        for fn in (torch.nn.Linear(4, 3), model, of_others):
            compiled = jit(fn, executors=())
            assert_same(key_of(compiled, X, epoch=epoch), key_of(compiled, X))


def test_what_a_model_lost_is_not_kept_alive():
    known = Known(Model())
    model, x = known.fn, torch.zeros(7, 4)
    model.cache, model.hook = [torch.zeros(2)], with_another_constant(of_others)
    model.hook.held = torch.zeros(3)
    known.make(x)
    # Parameters and modules Thunder itself keeps, but not their storages.
    storage, weight = model.second.weight.untyped_storage(), model.second.weight
    lives = [weakref.ref(each) for each in (x, model.cache[0], model.hook, model.hook.held, model.norm.shift, storage)]
    model.cache, model.hook, weight.data, model.norm.shift = None, None, torch.zeros(4, 4), torch.zeros(4)
    known.compiled._overrides_buffers.clear()
    del x, storage
    gc.collect()
    assert [each() for each in lives] == [None] * len(lives)
    whole = weakref.ref(model)
    del model, known.fn, known.compiled
    gc.collect()
    assert whole() is None


def test_threads_make_the_same_keys(known):
    def make(_: int) -> list[Key]:
        with called(known.compiled, X) as data:
            return [make_key(data, (X,), {}, known.epoch)[0] for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(make, range(3))] == [[known.key] * 5] * 3


def test_names_may_be_made_in_any_order():
    """What is described shows nothing of what was described before."""
    functions = [types.FunctionType(of_others.__code__, {}, argdefs=([object()],)) for _ in range(2)]
    texts = []
    for pair in (functions, functions[::-1]):
        definitions = Definitions(Describer(), is_lasting=True)
        texts.append({each: definitions.name(each) for each in pair})
    assert texts[0] == texts[1]


class Stranger:
    """An object that raises whatever it is asked."""

    def _refuse(self, *given: object) -> bool:
        raise AssertionError("was asked")

    __eq__ = __ne__ = __bool__ = __len__ = __iter__ = __hash__ = __getattr__ = _refuse  # type: ignore[assignment]


@pytest.mark.parametrize("after", [[], [1, 1], [1.0], [True], [[1]], [Stranger()]])
def test_a_fingerprint_holds_for_the_very_same_items(after):
    """It calls nothing of them."""
    table, second = [1], []
    fingerprint = Fingerprint([table, second])
    assert fingerprint.holds()
    table[:] = after
    assert not fingerprint.holds()
    table[:] = [1]
    assert fingerprint.holds()
    second.insert(0, table.pop())
    assert not fingerprint.holds()


def test_a_fingerprint_holds_for_items_in_their_order():
    pair = [Stranger(), Stranger()]
    fingerprint = Fingerprint([pair])
    pair.reverse()
    assert not fingerprint.holds()


def test_what_a_fingerprint_cannot_read_any_more_has_changed():
    found = [Stranger()]
    fingerprint = Fingerprint(read=lambda: [found[0]])
    assert fingerprint.holds()
    found.clear()
    assert not fingerprint.holds()
