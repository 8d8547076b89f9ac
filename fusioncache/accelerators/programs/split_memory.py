"""Answers Thunder's splitter from an earlier process where it asks whether Thunder supports an operation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.epoch import epoch_of_process
from fusioncache.accelerators.programs.split_answers import (
    describe_operation,
    keep_answers,
    make_answers_key,
    read_answers,
)
from fusioncache.ir import Key, Scope, is_declined
from fusioncache.process.collector import without_collector
from fusioncache.store import Store

logger = logging.getLogger("fusioncache")

_OPTION = "disable_torch_autograd"
"""The option of Thunder that the splitter looks at."""


@dataclass(slots=True, eq=False)
class Answers:
    """The answers that hold while one graph is split.

    Attributes:
        definitions: names the functions of Thunder.
        known: digests of operations that Thunder supports.
        found: those that were not known before.
    """

    definitions: Definitions
    known: set[str]
    found: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class SplitMemory:
    """The answers of this process. Dynamo holds a lock while it compiles: one graph is split at a time.

    Attributes:
        current: those of the graph that is split; None if there is none, or if nothing may be taken over for it.
        known: all that were read or found, by their key.
    """

    current: Answers | None = None
    known: dict[Key, set[str]] = field(default_factory=dict)

    @contextmanager
    def answering(self, store: Store | None) -> Iterator[None]:
        """Has the splitter's questions in the body answered from the store, which takes what is new. Never raises."""
        before, key = self.current, None
        self.current = None
        if store is not None and store.directory is not None:
            try:
                self.current, key = self._open(store)
            except Exception as error:  # whatever it is, the splitter asks
                if is_declined(error, Scope.PROGRAM):
                    logger.info("the splitter asks for each operation: %s", error)
                else:
                    logger.info("answers to the splitter are not taken over", exc_info=error)
        answers = self.current
        try:
            yield
        finally:
            self.current = before
        if store is not None and answers is not None and key is not None and answers.found:
            keep_answers(store, key, answers.known)

    def _open(self, store: Store) -> tuple[Answers, Key]:
        from fusioncache.thunder_adapter.api import CompileData

        definitions = Definitions(Describer(), epoch_of_process().names)
        with without_collector():
            key = make_answers_key(definitions, CompileData(fn=_nothing, disable_preprocessing=True))
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = set(read_answers(store, key))
        return Answers(definitions, known), key


def _nothing() -> None:
    """The function of Thunder's ``CompileData``, which the splitter makes for its questions as well."""


@cache
def split_memory_of_process() -> SplitMemory:
    """Returns the memory of this process, the same each time."""
    return SplitMemory()


def remember_answers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Thunder's function that tries an operation on proxies, which is not called for what is known."""

    @wraps(original)
    def try_execute_thunder_symbol(thunder_symbol: Any, node: Any, thunder_options: Mapping[str, Any]) -> Any:
        answers = split_memory_of_process().current
        operation = _describe(answers, thunder_symbol, node, thunder_options) if answers else None
        if answers and operation in answers.known:
            return True, None
        did_run, reason = original(thunder_symbol, node, thunder_options)
        if answers and operation is not None and did_run is True:
            answers.known.add(operation)
            answers.found.add(operation)
        return did_run, reason

    return try_execute_thunder_symbol


def _describe(answers: Answers, symbol: Any, node: Any, options: Mapping[str, Any]) -> str | None:
    try:
        return describe_operation(answers.definitions, symbol, node, [(_OPTION, repr(options.get(_OPTION)))])
    except Exception as error:  # whatever it is, the splitter asks
        logger.info("an operation of a graph is not described", exc_info=error)
        return None
