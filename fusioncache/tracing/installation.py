"""Takes a few detours out of Thunder's tracing: the same traces, in a fraction of the time.

Thunder interprets the bytecode of a model, and looks up whatever that uses through interpreted code of its own. For one
layer of litgpt's Llama it runs 11,000 frames so, of which 10,000 only subscript a dict of globals or builtins.
Each replacement computes what the original computes, and is installed only where the original has the source that the
replacement was written for.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusioncache.process import forks
from fusioncache.tracing import interpreter as shortcuts
from fusioncache.tracing.thunder_version import explain_untried

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A shortcut, and what it replaces in Thunder's interpreter.

    Attributes:
        holder: the dict, or the object, that holds the original as an item or as an attribute.
        key: the key of the item, or the name of the attribute.
        source: the first 16 digits of the SHA-256 of the source that the shortcut was written for; None if any will do.
        make: makes the shortcut from the original.
    """

    holder: Any
    key: Any
    source: str | None
    make: Callable[[Any], Any]

    def get(self) -> Any:
        """Returns what the holder has there now; None if it has nothing."""
        return self.holder.get(self.key) if isinstance(self.holder, dict) else getattr(self.holder, self.key, None)

    def put(self, new: Any) -> None:
        """Puts something into the place of what the holder has."""
        if isinstance(self.holder, dict):
            self.holder[self.key] = new
        else:
            setattr(self.holder, self.key, new)

    def fits(self) -> bool:
        """Tells whether the holder has what the shortcut was written for."""
        try:
            return self.source is None or digest_source(self.get()) == self.source
        except Exception:  # there is nothing, or no function, or it has no source, or its file has changed
            return False


_lock = forks.lock()
_installed: list[tuple[Replacement, Any, Any]] = []
"""The replacements that are installed, each with Thunder's own function and the shortcut. The process has one list."""


def install() -> None:
    """Lets Thunder trace faster from now on, in this process. A second call does nothing. Never raises.

    A function whose source is not the one that a shortcut was written for, or cannot be read, stays as it is.
    """
    try:
        with _lock:
            _install()
    except Exception as error:  # whatever is otherwise in this Thunder, tracing goes on
        logger.info("tracing keeps what Thunder has", exc_info=error)


def _install() -> None:
    if explain_untried():
        return
    for replacement in replacements():
        own = replacement.get()
        if any(own is new for _, _, new in _installed):
            continue
        if replacement.fits():
            new = replacement.make(own)
            _installed.append((replacement, own, new))
            replacement.put(new)
        else:
            logger.info("tracing keeps Thunder's own %s: it is not the known one", replacement.key)


def uninstall() -> None:
    """Gives Thunder its own functions back. Does nothing if ``install`` was not called.

    What somebody else has replaced since stays as they left it.
    """
    with _lock:
        while _installed:
            replacement, own, new = _installed.pop()
            if replacement.get() is new:
                replacement.put(own)


def replacements() -> tuple[Replacement, ...]:
    """Returns what ``install`` replaces."""
    from thunder.core import interpreter

    handlers, lookasides = interpreter._default_opcode_handler_map, interpreter._default_lookaside_map
    frame = interpreter.InterpreterFrame
    return (
        Replacement(interpreter, "globals_lookup", "7cc0d44bcf43854c", shortcuts.shorten_globals),
        Replacement(handlers, "BINARY_SUBSCR", "b2e3186dfb932905", shortcuts.shorten_subscript),
        Replacement(handlers, "CONTAINS_OP", "e586789bf05a9ffc", shortcuts.shorten_contains),
        Replacement(lookasides, len, "9f057d29fa62bfbc", shortcuts.shorten_len),
        Replacement(lookasides, bool, "6b366b2aa762c893", shortcuts.shorten_bool),
        # Of Python's own library, where any version will do.
        Replacement(interpreter, "dis", None, shortcuts.cache_instructions),
        Replacement(frame, "get_or_make_python_frame", "5b5ddf0171f34fb9", shortcuts.sleep_for_frame),
    )


def digest_source(function: Callable[..., Any]) -> str:
    """Returns the first digits of the SHA-256 of a function's source.

    Raises:
        OSError: if there is no source.
        TypeError: if it is not a function written in Python.
    """
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
