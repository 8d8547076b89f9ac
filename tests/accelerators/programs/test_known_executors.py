"""What executors do with each operation is named once for many keys, and again as soon as anything in it is another."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import thunder
import torch
from program_keys import assert_same, called, changed, jit, key_of
from thunder.core import prims, utils
from thunder.core.prims import PrimIDs
from thunder.extend import OperatorExecutor

from fusioncache.accelerators.programs.definitions import Fingerprint
from fusioncache.accelerators.programs.function_map import Epoch
from fusioncache.accelerators.programs.key import make_key

pytestmark = pytest.mark.usefixtures("few")
X = torch.zeros(3, 4)


class OfOthers(OperatorExecutor):
    """An executor that says nothing of what it depends on."""

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
    executor.settings, executor.level = {"modes": ["fast"]}, 1
    return executor


@contextmanager
def other_code() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(takes, "__code__", (lambda x, most=2: x.ndim < most).__code__)
        yield


EXECUTOR = make_executor()
TORCH = thunder.get_executor("torch")
CHANGES: dict[str, Callable[[], Any]] = {
    "an operation more": lambda: changed(EXECUTOR.implmap, PrimIDs.COS, TORCH.implmap[PrimIDs.COS]),
    "another operation": lambda: changed(EXECUTOR.implmap, PrimIDs.SIN, TORCH.implmap[PrimIDs.COS]),
    "a check": lambda: changed(EXECUTOR.implmap[PrimIDs.SIN], "checker", utils.check),
    "a default of a function of others": lambda: changed(takes, "__defaults__", (3,)),
    "the code of a function of others": other_code,
    "a lookaside": lambda: changed(EXECUTOR._lookasides, torch.sin, double),
    "a number": lambda: changed(EXECUTOR, "level", 2),
    "an attribute more": lambda: changed(EXECUTOR, "mark", 1),
    "an item": lambda: changed(EXECUTOR.settings, "modes", ["slow"]),
    "an item of an item": lambda: changed(EXECUTOR, "settings", {"modes": ["fast", "slow"]}),
    "its class": lambda: changed(OfOthers, "scale", 2),
    "its version": lambda: changed(EXECUTOR, "_version", "2"),
    "an operation of Thunder's": lambda: changed(TORCH.implmap, PrimIDs.SIN, TORCH.implmap[PrimIDs.COS]),
    "what a check of Thunder's is": lambda: changed(TORCH.implmap[PrimIDs.SIN], "checker", utils.check),
}


@pytest.fixture(scope="module", name="compiled")
def _compiled() -> Any:
    return jit(lambda x: torch.sin(x), executors=(EXECUTOR, TORCH), transforms=())


@pytest.fixture(scope="module", name="epoch")
def _epoch() -> Epoch:
    return Epoch()


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_in_an_executor_is_seen(what, compiled, epoch):
    key = key_of(compiled, X, epoch=epoch)
    assert_same(key, key_of(compiled, X))
    with CHANGES[what]():
        after, anew = key_of(compiled, X, epoch=epoch), key_of(compiled, X)
        assert after == anew != key
    assert_same(key, key_of(compiled, X, epoch=epoch))


def test_nothing_of_an_executor_is_named_again_while_nothing_changed(compiled, epoch):
    with called(compiled, X) as data:
        make_key(data, (X,), {}, epoch)
        known_map = epoch.find_map(data.executors_list)
        names = epoch.find_names(known_map, data.executors_list)
        assert id(TORCH.implmap) in names.names and id(TORCH.implmap) not in known_map.names.names
        make_key(data, (X,), {}, epoch)
        assert epoch.find_names(known_map, data.executors_list) is names


def test_hashes_of_code_are_forgotten_where_there_are_too_many(compiled, epoch):
    key = key_of(compiled, X, epoch=epoch)
    usual = len(epoch.code_digests)
    epoch.code_digests.update((-number, (double.__code__, "")) for number in range(1, 20_001))
    assert_same(key, key_of(compiled, X, epoch=epoch))
    assert 0 < len(epoch.code_digests) <= usual


def test_executors_of_many_functions_are_not_all_kept(epoch):
    for _ in range(20):
        key_of(jit(lambda x: x, executors=(make_executor(),), transforms=()), X, epoch=epoch)
    assert len(epoch.executors) == 16


def test_what_may_have_changed_is_read_again_and_nothing_else():
    table, reads = {"part": 1, "counter": 1}, []

    def read():
        reads.append(table["part"])
        return [table["part"]]

    fingerprint = Fingerprint(read=read, list_sources=lambda: [table.keys(), table.values()])
    changes = ({}, {"counter": 2}, {}, {"part": 3}, {"part": 1})
    for change, holds, more in zip(changes, (1, 1, 1, 0, 1), (0, 1, 0, 1, 0), strict=True):
        before = len(reads)
        table.update(change)
        assert fingerprint.holds() == holds and len(reads) - before == more
