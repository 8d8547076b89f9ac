"""The operations of Dynamo graphs that Thunder supports, stored for later processes.

``thunderfx`` splits each Dynamo graph into parts for Thunder and parts for TorchInductor. For each operation it runs
Thunder's meta function on proxies of the operands, which takes most of the splitter's time. The answer is the same in
each layer and in each process. It depends on Thunder, which the key of a program describes, on the state of torch, and
on the operation: its symbol, shapes, dtypes and devices of tensors, and all other arguments.

Only the answer "supported" is stored. The splitter tries an operation with an argument that cannot be described here
each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from itertools import chain
from typing import Any

import torch

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.function_map import KeyCache, key_cache_of_process
from fusioncache.accelerators.programs.key import read_process, write_parts
from fusioncache.accelerators.programs.writer import digest
from fusioncache.ir import Declined, Key, Scope, codec
from fusioncache.ir.keys import NamedValue, write_lines
from fusioncache.process.collector import without_collector
from fusioncache.process.warning import log_errors, logger
from fusioncache.store import Store
from fusioncache.store.entry import SPLITS_SLOT
from fusioncache.store.store import WRITE_SECONDS
from fusioncache.template.key import program_key_of

FORMAT = 1
_ANSWERS = "answers"
MOST_ANSWERS = 20_000
"""How many answers are stored under one key."""
_HELPERS = ("get_proxy_inputs_from_node", "_concrete_value")
"""The functions of Thunder's splitter that an answer depends on, besides the one that is wrapped."""
_PLAIN = (type(None), bool, int, str, type(...))


def make_answers_key(compile_data: Any, key_cache: KeyCache) -> tuple[Key, Definitions]:
    """Returns the key under which processes share answers, and the ``Definitions`` that named its values.

    Args:
        compile_data: Thunder's ``CompileData`` for a function under the current state of torch.
        key_cache: the cached names and function maps of this process.

    Raises:
        Declined: if an answer depends on foreign functions, or on a state that cannot be described.
    """
    from fusioncache.thunder_adapter.accelerator_api import dynamo_utils as utils

    known_map = key_cache.find_map(())
    definitions = Definitions(Describer(), known_map.names, known_map.met)

    helpers = write_lines((f"splitter.{name}", definitions.name(getattr(utils, name))) for name in _HELPERS)
    parts = {**read_process(compile_data), "function map": chain((known_map.text,), helpers)}
    texts = {"splits format": str(FORMAT), **write_parts(parts)}
    definitions.refuse_foreign()
    return program_key_of(texts), definitions


def describe_operation(definitions: Definitions, symbol: Any, node: Any, options: Iterable[NamedValue]) -> str | None:
    """Returns a digest of all that an answer depends on besides its key; None if something cannot be described.

    Args:
        definitions: names the functions of Thunder.
        symbol: Thunder's, or a function of Python that Thunder runs on proxies.
        node: of the graph.
        options: of Thunder that the splitter reads.
    """
    try:
        name = definitions.name(symbol)
        if definitions.foreign or definitions.is_foreign(symbol):  # met after the key was made, which had none
            return None
        args = [_write(each) for each in (tuple(node.args), dict(node.kwargs))]
    except Exception as error:  # on any error the splitter tries the operation
        logger.info("an operation of a graph is not described", exc_info=error)
        return None
    return digest("\n".join((name, *args, *write_lines(options))))


def _write(value: Any) -> str:
    """Returns the text of an argument of an operation.

    Raises:
        Declined: if its type is not supported here.
    """
    from torch.fx.immutable_collections import immutable_dict, immutable_list

    if isinstance(value, torch.fx.Node):
        return _write_result(value)
    if type(value) in (tuple, list, torch.Size, immutable_list):
        return f"{type(value).__name__}({', '.join(map(_write, value))})"
    if type(value) in (dict, immutable_dict):
        return f"dict({', '.join(f'{_write(key)}: {_write(each)}' for key, each in value.items())})"
    if isinstance(value, slice):
        return f"slice({', '.join(map(_write, (value.start, value.stop, value.step)))})"
    if type(value) is float:
        return value.hex()
    if type(value) in (*_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format):
        return f"{type(value).__name__} {value!r}"
    raise Declined(f"an argument of type {type(value).__qualname__}", Scope.VALUE)


def _write_result(node: Any) -> str:
    """Returns the text of another operation's result. The splitter reads only a tensor's shape, dtype and device.

    Of a symbolic number or size, it reads the example that Dynamo met.
    """
    if node.op == "get_attr" or "example_value" not in node.meta:
        raise Declined("an operand without an example", Scope.VALUE)
    value = node.meta["example_value"]
    if isinstance(value, torch.types.py_sym_types):
        return f"symbolic {_write(_read_example(value))}"
    if type(value) is tuple:
        return f"tensors({', '.join(map(_write_tensor, value))})"
    return _write_tensor(value)


def _write_tensor(value: Any) -> str:
    from torch._subclasses.fake_tensor import FakeTensor

    if type(value) not in (FakeTensor, torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        raise Declined(f"an operand of type {type(value).__qualname__}", Scope.VALUE)
    shape = tuple(map(_read_example, value.shape))
    if not all(type(size) is int for size in shape):
        raise Declined("an operand with an unknown size", Scope.VALUE)
    return f"tensor {value.dtype} {shape} {value.device} {value.requires_grad}"


def _read_example(number: Any) -> Any:
    """Returns the example of a symbolic number, if it has one, and another number as it is."""
    is_symbolic = isinstance(number, torch.types.py_sym_types) and number.node.has_hint()
    return number.node.hint if is_symbolic else number


def read_answers(store: Store, key: Key) -> frozenset[str]:
    """Returns the digests of operations stored as supported. Removes an entry that does not decode. Never raises."""
    return store.read(key, SPLITS_SLOT, _decode_answers, "answers that do not decode") or frozenset()


def _decode_answers(artifacts: Mapping[str, bytes]) -> frozenset[str]:
    return frozenset(codec.decode(_StoredAnswers, artifacts.get(_ANSWERS, b""), "answers", format=FORMAT).answers)


def store_answers(store: Store, key: Key, answers: Collection[str]) -> None:
    """Adds answers to the stored ones, unless there would be more than ``MOST_ANSWERS``. Never raises."""
    with store.take_turn(key, SPLITS_SLOT, WRITE_SECONDS):
        known = read_answers(store, key)
        if known.issuperset(answers) or len(known | set(answers)) > MOST_ANSWERS:
            return
        content = codec.encode(_StoredAnswers(tuple(sorted(known.union(answers)))), format=FORMAT)
        store.replace(key, SPLITS_SLOT, {_ANSWERS: content}, name="supported operations")


_OPTION = "disable_torch_autograd"
"""The option of Thunder that the splitter reads."""


@dataclass(frozen=True, slots=True)
class _StoredAnswers:
    """The digests of supported operations that are stored under one key."""

    answers: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Answers:
    """The answers that are valid while one graph is split.

    Attributes:
        definitions: names the functions of Thunder.
        known: digests of operations that Thunder supports.
    """

    definitions: Definitions
    known: set[str]


@dataclass(slots=True, eq=False)
class SupportedOperations:
    """The answers of this process. Dynamo holds a lock while it compiles: one graph is split at a time.

    Attributes:
        current: those for the graph that is being split; None if there are none, or stored ones cannot be used.
        known: digests of supported operations, loaded or found here, by key.
    """

    current: Answers | None = None
    known: dict[Key, set[str]] = field(default_factory=dict)

    @contextmanager
    def answering(self, store: Store | None) -> Iterator[None]:
        """Lets the splitter use stored answers in the body, and stores new ones at its end. Never raises."""
        before, key = self.current, None
        self.current = None
        if store is not None and store.directory is not None:
            with log_errors("the splitter asks for each operation"):  # the splitter then tries each
                self.current, key = self._open(store)
        answers, count = self.current, len(self.current.known) if self.current else 0
        try:
            yield
        finally:
            self.current = before
        if store is not None and answers is not None and key is not None and len(answers.known) > count:
            store_answers(store, key, answers.known)

    def _open(self, store: Store) -> tuple[Answers, Key]:
        from fusioncache.thunder_adapter.api import CompileData

        with without_collector():
            data = CompileData(fn=_nothing, disable_preprocessing=True)
            key, definitions = make_answers_key(data, key_cache_of_process())
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = set(read_answers(store, key))
        return Answers(definitions, known), key


def _nothing() -> None:
    """Dummy function for a ``CompileData`` like the one that the splitter makes to try operations."""


@cache
def split_memory_of_process() -> SupportedOperations:
    """Returns the answers of this process, the same object each time."""
    return SupportedOperations()


def wrap_try_execute(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Thunder's function that tries an operation on proxies: operations known as supported are not tried."""

    @wraps(original)
    def try_execute_thunder_symbol(thunder_symbol: Any, node: Any, thunder_options: Mapping[str, Any]) -> Any:
        answers = split_memory_of_process().current
        options = [(_OPTION, repr(thunder_options.get(_OPTION)))]
        operation = describe_operation(answers.definitions, thunder_symbol, node, options) if answers else None
        if answers and operation in answers.known:
            return True, None
        did_run, reason = original(thunder_symbol, node, thunder_options)
        if answers and operation is not None and did_run is True:
            answers.known.add(operation)
        return did_run, reason

    return try_execute_thunder_symbol
