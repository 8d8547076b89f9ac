"""Keys of programs, made as for a call of a compiled function, and the effects of changes on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import thunder
import torch
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.langctxs import langctx

import fusioncache
from fusioncache.accelerators.programs.function_map import KeyCache
from fusioncache.accelerators.programs.key import make_key
from fusioncache.ir import Key
from fusioncache.observe.explain.difference import compare


class Norm(torch.nn.Module):
    power = 2
    kinds = ("rows",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.register_buffer("shift", torch.zeros(size))
        self.eps = 1e-5
        self.settings = {"mode": "rms", "steps": [1, 2]}

    @property
    def gain(self) -> float:
        return 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(self.power).mean(-1, keepdim=True) + self.eps) * self.weight * self.gain


class Model(torch.nn.Module):
    """A norm between two linear layers, and a layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.norm = Norm(4)
        self.second = torch.nn.Linear(4, 4)
        self.idle = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, scale: Any = 1.0, **more: Any) -> torch.Tensor:
        return self.second(self.norm(torch.nn.functional.silu(self.first(x)))) * scale


class Keyed(thunder.Transform):
    """A transform with a cache key that may replace the model's parameters by ones of another dtype."""

    def __init__(self, key, dtype=None):
        self.key, self.dtype = key, dtype

    def cache_key(self):
        return self.key

    def transform_module(self, module):
        for name, parameter in list(module.named_parameters()) if self.dtype else ():
            module._overrides_parameters[name] = torch.nn.Parameter(parameter.detach().to(self.dtype))


def jit(fn: Any, **options: Any) -> Any:
    """Compiles a function with Thunder, with our executor and our transform unless others are given."""
    usual = {"transforms": [fusioncache.FusionCache(backend="eager")], "executors": fusioncache.executors()}
    return thunder.jit(fn, **{**usual, **options})


@contextmanager
def called(jitted: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Enters the state in which Thunder looks up a program for a call; yields the function's compile data."""
    data, stats = jitted._lc_cd, jitted._lc_cs
    before = list(data.autocast_stack.stack)
    data.populate_cache_info({}, *args, **kwargs)
    try:
        with langctx(data.langctx), compile_data_and_stats(data, stats):
            yield data
    finally:
        data.autocast_stack.stack.clear()
        data.autocast_stack.stack.extend(before)


def key_of(jitted: Any, *args: Any, key_cache: KeyCache | None = None, **kwargs: Any) -> Key:
    """Returns the key for a call of a compiled function. Without ``key_cache`` everything is described anew."""
    with called(jitted, *args, **kwargs) as data:
        return make_key(data, args, kwargs, key_cache or KeyCache())[0]


def foreign_in(jitted: Any, *args: Any, key_cache: KeyCache) -> list[str]:
    """Returns the places of foreign code that Thunder may run for a call of a compiled function."""
    with called(jitted, *args) as data:
        return make_key(data, args, {}, key_cache)[1].foreign


def assert_names(expected: str, key: Key, other: Key) -> None:
    """Asserts that two keys differ, and that a difference matches a pattern of ``subject: value, value``."""
    assert other != key and other.digest != key.digest
    changes = [f"{change.subject}: {change.a}, {change.b}" for change in compare(key.texts, other.texts).changes]
    assert any(re.match(expected, change) for change in changes), changes


def assert_same(key: Key, other: Key) -> None:
    """Asserts that two keys are equal; shows their differences otherwise."""
    assert compare(key.texts, other.texts).changes == ()
    assert other == key and other.digest == key.digest


def changed(owner: Any, name: Any, value: Any) -> AbstractContextManager[Any]:
    """Sets an attribute of an object, or an item of a dict, temporarily to another value."""
    if isinstance(owner, dict):
        return mock.patch.dict(owner, {name: value})
    return mock.patch.object(owner, name, value, create=not hasattr(owner, name))


@contextmanager
def setting(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Makes a setting that has a function to read it and one to write it, and restores it."""
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def attribute(owner: Any, name: str, value: Any) -> AbstractContextManager[None]:
    """Sets an attribute that cannot be deleted, and restores it."""
    return setting(partial(getattr, owner, name), partial(setattr, owner, name), value)
