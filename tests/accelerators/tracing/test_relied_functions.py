"""What shortcuts rely on beside the function that they replace: where that is another one, they are not put in."""

import importlib
from typing import Any

import pytest

from fusioncache.thunder_adapter.installation import find_replacements

RELIED = {
    "flattening": ("optree:tree_flatten",),
    "leaps": (
        "thunder.torch.experimental.dtensor_torch_and_prims:dispatch_to_impl",
        "thunder.core.pytree:tree_flatten",
        "optree:tree_flatten",
        "torch.distributed:is_available",
    ),
    "min_cut": ("thunder.core.rematerialization:find_cut",),
    "printing": (
        *(f"thunder.core.codeutils:{name}" for name in ("_to_printable", "is_printable")),
        *(f"thunder.core.baseutils:is_base_printable{part}" for part in ("", "_value", "_type")),
    ),
}
"""The functions by their groups, each by module and name."""


def other(*args: Any, **kwargs: Any) -> Any:
    """Stands in for a function, as another version would have it."""
    raise AssertionError("it is only looked at")


@pytest.mark.parametrize(("group", "place"), [(group, place) for group, places in RELIED.items() for place in places])
def test_where_another_function_is_called_on_the_way_there_is_no_shortcut(group, place, monkeypatch):
    assert find_replacements(group)
    module, _, name = place.partition(":")
    monkeypatch.setattr(importlib.import_module(module), name, other)
    with pytest.raises(LookupError, match="has another source"):
        find_replacements(group)
