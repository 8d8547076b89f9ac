"""A call of a model that Thunder compiled, from its arguments to the program that fits them, in a few functions.

Thunder goes through some thirty functions and context managers of its own to the prologue and back. Of what they do
everything that anybody could notice is done here: the same prologues are asked in the same order and context, the same
is computed, the same statistics are kept. Where anything is out of the ordinary, and where no program fits, nothing was
done, and Thunder's own function is called.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from fusioncache.accelerators.steps.environment import describe_call
from fusioncache.accelerators.steps.programs import Program, make_program

Forward = Callable[..., Any]

Order = Callable[[list[Any], tuple[Any, ...], dict[str, Any]], Iterable[Any]]
"""Takes Thunder's entries and the arguments of a call; returns the entries in the order in which they are tried."""

_is_autocast_enabled: Any = torch.is_autocast_enabled
_count_modes: Any = torch._C._len_torch_function_stack
_are_transforms_active: Any = torch._C._are_functorch_transforms_active
_clock = time.perf_counter_ns


def make_forward(own: Forward, compiled: Any, statistics: Any, order: Order) -> Forward:
    """Returns what does what Thunder's function of a module does.

    Args:
        own: Thunder's.
        compiled: what Thunder knows of the module.
        statistics: Thunder's, of its calls.
        order: of the entries.
    """
    # Thunder holds neither in its function, as each would be a cycle.
    find = _make_finder(weakref.ref(compiled), weakref.ref(statistics), order)
    counts_of = weakref.ref(statistics)

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        start = _clock()
        found = None if _is_extraordinary() else find(args, kwargs)
        if found is None:
            return own(*args, **kwargs)
        entry, program, handed, for_epilogue = found
        counts: Any = counts_of()
        _count(counts, entry, start)
        try:
            return program(handed, for_epilogue)
        finally:
            counts.last_computation = entry.computation_fn
            counts.last_trace_host_stop = _clock()

    return forward


def _is_extraordinary() -> bool:
    """Tells whether the call is in a context with which Thunder deals by itself."""
    is_mode = _count_modes() or _are_transforms_active()
    return bool(is_mode or _is_autocast_enabled("cpu") or _is_autocast_enabled("cuda"))


type _Found = tuple[Any, Program, Any, Any]


def _make_finder(
    compiled_of: Callable[[], Any], counts_of: Callable[[], Any], order: Order
) -> Callable[[tuple[Any, ...], dict[str, Any]], _Found | None]:
    """Returns what finds the entry that fits a call, its program, and what the prologue hands on."""
    from fusioncache.thunder_adapter.accelerator_api import _cache_info_ctx, _compile_data, _langctx, resolve_language
    from fusioncache.thunder_adapter.api import get_tracectx

    programs: dict[int, tuple[Any, Program]] = {}
    language = resolve_language(compiled_of().langctx)

    def program_of(entry: Any, entries: list[Any]) -> Program:
        known = programs.get(id(entry))
        if known is None:
            if len(programs) >= len(entries):  # some are of entries that are no more
                held = {id(each) for each in entries}
                for identity in [each for each in tuple(programs) if each not in held]:
                    programs.pop(identity, None)
            known = programs[id(entry)] = entry, make_program(entry, counts_of, _clock)
        return known[1]

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Found | None:
        compiled, counts = compiled_of(), counts_of()
        if compiled is None or counts is None or get_tracectx() is not None:
            return None
        entries = counts.interpreter_cache
        if not entries:
            return None
        tokens = _langctx.set(language), _cache_info_ctx.set({}), _compile_data.set((compiled, counts))
        try:
            counts.last_trace_cache_start = _clock()
            describe_call(_cache_info_ctx.get(), compiled, args, kwargs)
            for entry in order(entries, args, kwargs):
                try:
                    handed, for_epilogue = entry.prologue_fn(*args, **kwargs)
                except Exception:
                    continue
                return entry, program_of(entry, entries), handed, for_epilogue
        except Exception:  # whatever it is, Thunder meets it again
            return None
        finally:
            _compile_data.reset(tokens[2])
            _cache_info_ctx.reset(tokens[1])
            _langctx.reset(tokens[0])
        return None

    return find


def _count(counts: Any, entry: Any, start: int) -> None:
    """Counts a call as Thunder does where an entry fits."""
    counts.calls += 1
    counts.last_trace_host_start = start
    counts.cache_hits += 1
    counts.last_traces = entry.computation_traces
    counts.last_interpreted_instructions = None
    counts.last_interpreter_log = None
    counts.last_prologue_traces = entry.prologue_traces
    counts.last_prologue = entry.prologue_fn
    counts.last_prologue_transformation_start = 0
    counts.last_prologue_transformation_stop = 0
    counts.last_computation_transformation_start = 0
    counts.last_computation_transformation_stop = 0
