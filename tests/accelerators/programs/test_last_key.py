"""Thunder and executors in the key of a program: each change is seen, also if function maps are reused across keys."""

import dis
import gc
import re
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import CodeType
from typing import Any
from unittest import mock

import optree
import pytest
import thunder
import torch
from described import Box
from program_keys import Model, assert_names, assert_same, attribute, called, changed, foreign_in, jit, key_of
from thunder.core import devices, jit_ext, prims, rematerialization, symbol, transforms, utils
from thunder.core.prims import PrimIDs
from thunder.core.pytree import OPTREE_NAMESPACE
from thunder.distributed.transforms import ddp
from thunder.extend import ImplInfo, OperatorExecutor
from thunder.torch.langctx import _method_name_to_fn_map as METHODS

from fusioncache.accelerators.programs import function_map
from fusioncache.accelerators.programs.definitions import Fingerprint
from fusioncache.accelerators.programs.function_map import KeyCache
from fusioncache.accelerators.programs.key import make_key
from fusioncache.ir import Declined, Key

pytestmark = pytest.mark.usefixtures("few_functions")
X = torch.zeros(3, 4)


class Known:
    """A compiled function, its key, and the key cache that its keys share."""

    def __init__(self, fn: Any, executors: tuple[Any, ...] = (), **options: Any) -> None:
        self.fn, self.compiled, self.key_cache = fn, jit(fn, executors=executors, **options), KeyCache()
        self.key = self.make()
        assert isinstance(self.key, Key)

    def make(self, x: torch.Tensor = X, key_cache: KeyCache | None = None) -> Key | str:
        """Returns the key in a key cache, by default the shared one, or the reason why there is none."""
        try:
            return key_of(self.compiled, x, key_cache=key_cache or self.key_cache)
        except Declined as reason:
            return str(reason)

    def make_anew(self, x: torch.Tensor = X) -> Key | str:
        """Returns the key in a new key cache, or the reason why there is none."""
        return self.make(x, KeyCache())

    def assert_seen(self, change: Callable[[], Any], named: str = "") -> None:
        """Asserts that the shared cache notices a change and its end: the key equals a new one and names the change."""
        assert self.make() == self.key
        maps = dict(self.key_cache.maps)
        assert self.make() == self.key
        assert self.key_cache.maps == maps  # as always if nothing changed
        with change():
            after, anew = self.make(), self.make_anew()
            assert after == anew == self.make() != self.key
            if isinstance(anew, Key):
                assert_names(named, self.key, anew)
            else:
                assert re.match(named, anew), anew
        assert self.make() == self.key


@pytest.fixture(scope="module", name="known")
def _known(few_functions: None) -> Known:
    return Known(Model())


def add_constant(code: CodeType, constant: object = 7) -> CodeType:
    return code.replace(co_consts=(*code.co_consts, constant))


def with_another_constant(function: Any) -> types.FunctionType:
    """Returns a copy of a function whose code has one more constant."""
    name, defaults, closure = function.__name__, function.__defaults__, function.__closure__
    return types.FunctionType(add_constant(function.__code__), function.__globals__, name, defaults, closure)


def of_others(x: Any, mark: int = 1) -> Any:
    """Is none of Thunder's functions."""
    return x


CUT, SYMBOL, TRANSFORMS, JIT = (
    f"Thunder's `thunder.core.{name}`" for name in ("rematerialization", "symbol", "transforms", "jit_ext")
)


@contextmanager
def registered_pytree() -> Iterator[None]:
    optree.register_pytree_node(Box, lambda x: ((), None), lambda _, parts: Box(), namespace=OPTREE_NAMESPACE)
    yield
    optree.unregister_pytree_node(Box, namespace=OPTREE_NAMESPACE)


TORCHEX = thunder.get_executor("torch")
# Changes, each with a pattern of the name of the difference.
CHANGES: dict[str, tuple[Callable[[], Any], str]] = {
    "a method of a base of models": (lambda: changed(torch.nn.Module, "add_module", lambda *given: None), "the class"),
    "a global": (lambda: changed(rematerialization, "find_cut", utils.check), CUT),
    "a value that has none": (lambda: changed(symbol, "of_others", iter(())), "Thunder's modules: "),
    "a method": (lambda: changed(symbol.BoundSymbol, "has_input", utils.check), SYMBOL),
    "a table": (lambda: changed(transforms.backward_impls, PrimIDs.SIN, utils.check), TRANSFORMS),
    "a rule for gradients": (lambda: changed(transforms._grad_fn_map, "torch.sin", of_others), TRANSFORMS),
    "a lookaside": (lambda: changed(jit_ext._general_jit_lookaside_map, torch.sin, utils.check), JIT),
    "a method of tensors": (lambda: changed(METHODS, "silu", of_others), "Thunder's `thunder.torch.langctx`"),
    "a flag": (lambda: changed(utils, "_DEBUG_ASSERTS", 2), "Thunder's `thunder.core.utils`"),
    "an entry of the map": (
        lambda: changed(thunder.torch._torch_to_thunder_function_map, of_others, thunder.torch.silu),
        "Thunder's `map.*of_others",
    ),
    "a module that takes part": (lambda: changed(ddp, "apply_bucketing_to_grad_allreduce", utils.check), "Thunder's"),
    "a class that is taken apart": (lambda: registered_pytree(), "Thunder's"),
    "an executor's gradient": (
        lambda: changed(TORCHEX.implmap, "torch.nn.functional.silu", ImplInfo(grad_transform=of_others)),
        "the option executors.torch.operations",
    ),
    "an executor's lookaside": (lambda: changed(TORCHEX._lookasides, of_others, of_others), "the option .*lookasides"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_key_names_what_changed_in_thunder(what, known):
    known.assert_seen(*CHANGES[what])


def test_code_that_was_changed_in_place_before_is_other_code(known, monkeypatch):
    code = rematerialization.find_cut.__code__
    nested = [add_constant(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    other_instruction = code.replace(co_code=code.co_code[:-2] + bytes([dis.opmap["NOP"], 0]))
    for other in (code.replace(co_consts=tuple(nested)), other_instruction):
        monkeypatch.setattr(rematerialization.find_cut, "__code__", other)
        assert_names(CUT, known.key, known.make_anew())
    monkeypatch.setattr(rematerialization.find_cut, "__code__", add_constant(code, object()))
    assert known.make_anew().startswith("Thunder's modules: a constant of type object in code has no value to compare")


def test_a_gpu_that_thunder_meets_first_is_no_change(known):
    """Thunder stores an object for each device as soon as a trace asks for it."""
    devices.Device("cuda:7")
    try:
        assert_same(known.key, known.make_anew())
    finally:
        devices.Device._cache.pop((devices.DeviceType.CUDA, 7))


@pytest.mark.parametrize(
    "name", ["__resume_at_12_3", "_139841013112304_c221", "___module_math_1398_c38", "__import_math"]
)
def test_only_names_that_dynamo_adds_are_left_out(name, known):
    with changed(rematerialization, name, len):
        assert_same(known.key, known.make_anew())
    known.assert_seen(lambda: changed(rematerialization, name.strip("_"), len), CUT)


class Saying(OperatorExecutor):
    """An executor that declares what its code depends on."""

    def cache_key(self):
        return "1"


@pytest.mark.parametrize(("kind", "is_named"), [(OperatorExecutor, True), (Saying, False)])
def test_code_of_others_is_noticed_unless_its_executor_says_what_it_depends_on(kind, is_named):
    executor, key_cache = kind("of_others", version="1"), KeyCache()
    executor._implmap["torch.nn.functional.silu"] = ImplInfo(checker=of_others)
    compiled = jit(torch.nn.SiLU(), executors=[executor])
    for tables in ({}, {}, {"also_here": of_others}):
        with mock.patch.dict(vars(symbol), tables):
            foreign = foreign_in(compiled, X, key_cache=key_cache)
        assert any(place.endswith("of_others") for place in foreign) is is_named


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("name", ["compile", "sin"])
def test_what_is_in_place_of_torch_compile_derives_nothing(known, name, is_there):
    """Lightning replaces ``torch.compile``; Thunder's tables contain the wrapper even if ``thunderfx`` removed it."""
    wrapping = with_another_constant(of_others)
    wrapping.__wrapped__ = getattr(torch, name)
    there = wrapping if is_there else wrapping.__wrapped__
    with changed(torch, name, there), changed(jit_ext._general_jit_lookaside_map, wrapping, jit_ext.wrap_const):
        other = known.make_anew()
        foreign = foreign_in(known.compiled, X, key_cache=KeyCache())
        assert other != known.key and bool(foreign) is (name != "compile")


class Marked:
    size = 3


TABLE: dict[str, Any] = {
    "check": [utils.check, 1],
    "inner": {"sum": utils.check_type},
    "mine": Marked(),
    "function": of_others,
    "again": [of_others],
    "cut": rematerialization.find_cut,
}
IN_TABLE: dict[str, Callable[[], Any]] = {
    "an item": lambda: changed(TABLE, "check", [utils.check_type, 1]),
    "an item of a table in it": lambda: changed(TABLE["inner"], "more", utils.check),
    "an equal number of another type": lambda: changed(TABLE, "check", [utils.check, True]),
    "an attribute of an object": lambda: changed(TABLE["mine"], "mode", 7),
    "an attribute of a class": lambda: changed(Marked, "size", 7),
    "a default of a function of others": lambda: mock.patch.object(of_others, "__defaults__", (2,)),
}


def test_what_came_into_thunder_later_is_compared_as_well():
    known = Known(Model())
    with changed(rematerialization, "another", TABLE):
        known.key = known.make()
        for change in IN_TABLE.values():
            known.assert_seen(change)
        foreign = foreign_in(known.compiled, X, key_cache=known.key_cache)
        places = [place for place in foreign if place.endswith("of_others")]
        with changed(torch, "compile", of_others):  # which the key ignores
            assert places and not {*places} & {*foreign_in(known.compiled, X, key_cache=known.key_cache)}
        assert {*places} <= {*foreign_in(known.compiled, X, key_cache=known.key_cache)}


def test_other_executors_are_noticed(known):
    others = [*known.compiled._lc_cd.executors_list, thunder.get_executor("torchcompile")]  # with one more module
    known.assert_seen(lambda: changed(known.compiled._lc_cd, "executors_list", others))


def test_the_function_map_is_written_once_for_all_functions(known):
    with changed(function_map, "write_thunder", lambda *given: 1 / 0):
        for fn in (Model(), of_others, torch.nn.LayerNorm(4)):
            assert "function map" in key_of(jit(fn, executors=()), X, key_cache=known.key_cache).texts


def test_what_a_model_has_that_thunder_has_as_well_is_told_by_its_name():
    model, key_cache = Model(), KeyCache()
    model.extra = of_others
    with changed(rematerialization, "another", of_others):
        for fn in (torch.nn.Linear(4, 3), model, of_others):
            compiled = jit(fn, executors=())
            assert_same(key_of(compiled, X, key_cache=key_cache), key_of(compiled, X))


def test_what_a_model_lost_is_not_kept_alive():
    known = Known(Model())
    model, x = known.fn, torch.zeros(7, 4)
    model.cache, model.hook = [torch.zeros(2)], with_another_constant(of_others)
    model.hook.held = torch.zeros(3)
    known.make(x)
    # Thunder keeps parameters and modules alive, but not their storages.
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
            return [make_key(data, (X,), {}, known.key_cache)[0] for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(make, range(3))] == [[known.key] * 5] * 3


class Stranger:
    """An object that raises on comparison, truth, length, iteration, hash and attribute access."""

    def _refuse(self, *given: object) -> bool:
        raise AssertionError("was asked")

    __eq__ = __ne__ = __bool__ = __len__ = __iter__ = __hash__ = __getattr__ = _refuse  # type: ignore[assignment]


def test_a_fingerprint_holds_for_the_very_same_items_in_their_order():
    """It calls no method of the items."""
    table, pair = [1], [Stranger(), Stranger()]
    fingerprint = Fingerprint(lambda: [table, pair])
    for after in ([], [1, 1], [1.0], [True], [[1]], [Stranger()]):
        assert fingerprint.holds()
        table[:] = after
        assert not fingerprint.holds()
        table[:] = [1]
    pair.reverse()
    assert not fingerprint.holds()


class OfOthers(OperatorExecutor):
    """An executor that does not declare what it depends on."""

    scale = 1


def double(x: Any) -> Any:
    return x * 2


def takes(x: Any, most: int = 2) -> bool:
    """Decides whether the executor takes an operation. What it then runs is found again by its name."""
    return x.ndim <= most


def make_executor() -> Any:
    executor: Any = OfOthers("of_others", version="1")
    doubled = executor.register_operator("double", like=prims.sin, fn=double)
    executor.register_implementation(prims.sin, doubled, checker=takes)
    executor.settings = {"modes": ["fast"]}
    return executor


EXECUTOR = make_executor()
IN_EXECUTOR: dict[str, Callable[[], Any]] = {
    "another operation": lambda: changed(EXECUTOR.implmap, PrimIDs.SIN, TORCHEX.implmap[PrimIDs.COS]),
    "a check": lambda: changed(EXECUTOR.implmap[PrimIDs.SIN], "checker", utils.check),
    "a default of a function of others": lambda: changed(takes, "__defaults__", (3,)),
    "the code of a function of others": lambda: attribute(
        takes, "__code__", (lambda x, most=2: x.ndim < most).__code__
    ),
    "a lookaside": lambda: changed(EXECUTOR._lookasides, torch.sin, double),
    "an attribute more": lambda: changed(EXECUTOR, "mark", 1),
    "an item of an item": lambda: changed(EXECUTOR.settings, "modes", ["slow"]),
    "its class": lambda: changed(OfOthers, "scale", 2),
    "its version": lambda: changed(EXECUTOR, "_version", "2"),
    "an operation of Thunder's": lambda: changed(TORCHEX.implmap, PrimIDs.SIN, TORCHEX.implmap[PrimIDs.COS]),
    "what a check of Thunder's is": lambda: changed(TORCHEX.implmap[PrimIDs.SIN], "checker", utils.check),
}


@pytest.fixture(scope="module", name="in_executor")
def _in_executor(few_functions: None) -> Known:
    return Known(lambda x: torch.sin(x), (EXECUTOR, TORCHEX), transforms=())


@pytest.mark.parametrize("what", IN_EXECUTOR)
def test_what_changed_in_an_executor_is_seen(what, in_executor):
    assert_same(in_executor.key, in_executor.make_anew())
    in_executor.assert_seen(IN_EXECUTOR[what])
