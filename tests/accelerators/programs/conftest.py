"""Fixtures for tests of keys: a model as Thunder compiles it, and a small part of Thunder."""

from collections.abc import Iterator
from typing import Any

import pytest
import thunder
import thunder.transforms.autodiff  # imports whole tables of ``transforms``, before ``few`` cuts them
import torch
from program_keys import Model, jit
from thunder.core import jit_ext, rematerialization, symbol, transforms

from fusioncache import tracing
from fusioncache.accelerators.programs import function_map


@pytest.fixture(scope="module")
def few_functions() -> Iterator[None]:
    """Reduces Thunder to a small part, because describing all of it takes a third of a second for each key."""
    modules = "rematerialization", "symbol", "transforms", "jit_ext", "utils", "interpreter"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function_map, "MODULES", ("thunder.torch.langctx", *(f"thunder.core.{each}" for each in modules)))
        for module in (rematerialization, symbol, transforms, jit_ext, thunder.torch):
            for name, table in list(vars(module).items()):
                if isinstance(table, dict) and len(table) > 20 and not name.startswith("__"):
                    patch.setattr(module, name, dict(list(table.items())[:20]))
        yield


@pytest.fixture(scope="module")
def hooks() -> Iterator[None]:
    """Lets recorders observe Thunder's interpreter."""
    tracing.install()
    yield
    tracing.uninstall()


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Model()


@pytest.fixture(scope="module")
def jitted(model: torch.nn.Module) -> Any:
    return jit(model)
