"""What a block is called in: whatever a trace depends on, and is not looked at again for each block."""

from __future__ import annotations

from typing import Any

from fusioncache.ir.errors import Declined, Scope


def find_wrapper(value: Any, runtime: Any) -> Any:
    """Returns the wrapper that the interpreter has for an object; None if it has none."""
    known = runtime._known_wrappers.get(id(value))
    return known[0]() if known is not None else None


def check_surroundings(context: Any, runtime: Any, wrapper: Any) -> None:
    """Refuses whatever a block might be called in that a trace depends on, and that is not looked at."""
    from fusioncache.thunder_adapter.accelerator_api import SHARP_EDGES_OPTIONS, _bsym_header
    from fusioncache.thunder_adapter.api import CACHE_OPTIONS, get_compile_data, get_tracectx

    compiled, trace = get_compile_data(), context.computation_trace
    if compiled is None or compiled.cache_option is not CACHE_OPTIONS.CONSTANT_VALUES:
        raise Declined("sizes are symbolic", Scope.BLOCK)
    if context.sharp_edges is not SHARP_EDGES_OPTIONS.ALLOW:
        raise Declined("sharp edges are reported", Scope.BLOCK)
    if len(trace.scopes) != 1 or get_tracectx() is not trace or _bsym_header.get():
        raise Declined("the block is called inside of a symbol", Scope.BLOCK)
    if not compiled.is_grad_enabled or not compiled.autocast_stack.is_empty():
        raise Declined("the block is called without gradients, or under autocast", Scope.BLOCK)
    if any(context._additional_outputs.values()):
        raise Declined("an attribute of a module was set before", Scope.BLOCK)
    if runtime is None:
        return
    if runtime._record_history or runtime.curexc is not None or runtime.exception_stack != [None]:
        raise Declined("the block is called while an exception is handled, or a history is kept", Scope.BLOCK)
    if wrapper is None or wrapper.attribute_wrappers or wrapper.has_item_tracking:
        raise Declined("the block has been looked at before", Scope.BLOCK)


def check_untouched(module: Any, runtime: Any, objects: Any) -> None:
    """Refuses a block of which anything but itself has been looked at."""
    if objects is None:
        objects = [each for one in module.modules() for each in (one, vars(one), *vars(one).values())]
        objects = [each for each in objects if isinstance(each, dict | list) or hasattr(each, "_parameters")]
    for each in objects:
        if each is not module and find_wrapper(each, runtime) is not None:
            raise Declined("a part of the block has been looked at before", Scope.BLOCK)
