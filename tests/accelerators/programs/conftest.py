"""What tests of keys share: a model as Thunder compiles it, and the key of its program before anything is changed."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from known_keys import few_of_thunder
from program_keys import Model, assert_same, jit, key_of

from fusioncache.ir import Key


@pytest.fixture(scope="module")
def few() -> Iterator[None]:
    """A small part of Thunder stands for the whole: to describe all of it takes a third of a second for each key."""
    patch = few_of_thunder()
    yield
    patch.undo()


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Model()


@pytest.fixture(scope="module")
def jitted(model: torch.nn.Module) -> Any:
    return jit(model)


@pytest.fixture(scope="module")
def key(jitted: Any) -> Iterator[Key]:
    x = torch.zeros(3, 4)
    key = key_of(jitted, x)
    yield key
    # Each test took back what it had changed.
    assert_same(key, key_of(jitted, x))
