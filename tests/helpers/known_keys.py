"""Keys as a keeper makes them, one after the other, beside those that are made without any memory."""

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import thunder.transforms.autodiff  # takes tables of ``transforms`` when it is imported: whole ones
import torch
from program_keys import called, jit, key_of
from thunder.core import jit_ext, rematerialization, symbol, transforms

from fusioncache.accelerators.programs import function_map
from fusioncache.accelerators.programs.function_map import Epoch, KnownMap
from fusioncache.accelerators.programs.key import make_key
from fusioncache.ir import Declined, Key

X = torch.zeros(3, 4)


def few_of_thunder() -> pytest.MonkeyPatch:
    """Has keys made of a few of Thunder's modules and functions."""
    patch = pytest.MonkeyPatch()
    modules = ("rematerialization", "symbol", "transforms", "jit_ext")
    patch.setattr(function_map, "MODULES", tuple(f"thunder.core.{each}" for each in modules))
    for module in (rematerialization, symbol, transforms, jit_ext, thunder.torch):
        for name, table in list(vars(module).items()):
            if isinstance(table, dict) and len(table) > 20 and not name.startswith("__"):
                patch.setattr(module, name, dict(list(table.items())[:20]))
    return patch


class Known:
    """What is compiled, and what is known of its keys."""

    def __init__(self, fn: Any, **options: Any) -> None:
        self.fn, self.compiled = fn, jit(fn, executors=(), **options)
        self.epoch = Epoch()
        self.key = self.make()
        assert isinstance(self.key, Key)

    @property
    def map(self) -> KnownMap:
        """The function map that is known."""
        return self.epoch.find_map(self.compiled._lc_cd.executors_list)

    def make(self, x: torch.Tensor = X, **kwargs: Any) -> Key | str:
        """Returns the key as a keeper makes it, or why there is none."""
        with called(self.compiled, x, **kwargs) as data:
            try:
                return make_key(data, (x,), kwargs, self.epoch)[0]
            except Declined as reason:
                return str(reason)

    def make_anew(self, x: torch.Tensor = X, **kwargs: Any) -> Key | str:
        """Returns the key as it is made without any memory, or why there is none."""
        try:
            return key_of(self.compiled, x, **kwargs)
        except Declined as reason:
            return str(reason)

    def assert_seen(self, change: Callable[[], Any]) -> None:
        """Sees to it that a change makes the key that is made without any memory, and so does its end."""
        assert self.make() == self.key
        maps = dict(self.epoch.maps)
        assert self.make() == self.key
        assert self.epoch.maps == maps  # which is how it is where nothing changed
        with change():
            after, anew = self.make(), self.make_anew()
            assert after == anew != self.key
            assert self.make() == anew
        assert self.make() == self.key


def with_attributes(attributes: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1.0

    vars(function).update(attributes)
    return function
