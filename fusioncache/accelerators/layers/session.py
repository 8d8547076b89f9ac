"""Sessions, which copy similar blocks of a model in one trace as soon as one was interpreted as predicted.

A session decides for one trace which blocks are recorded and which are copied, and stores what forbids either.

A block is copied only if its arguments equal those of another block, except for the identity of tensors. All context
that a trace depends on must be the same as well, unless it is checked again for each block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

import torch

from fusioncache.accelerators.layers.block_independence import explain_call, is_plain
from fusioncache.accelerators.layers.block_replay import (
    BlockReplay,
    Conflict,
    check_agreement,
    compare,
    describe_value,
    find_reads,
    is_proxy,
    list_wrappers,
)
from fusioncache.accelerators.layers.recording import BlockRecording, State
from fusioncache.ir.errors import Declined, Scope, is_declined
from fusioncache.process.warning import logger
from fusioncache.thunder_adapter import api, hooks
from fusioncache.thunder_adapter.accelerator_api import interpreter, jit_ext
from fusioncache.thunder_adapter.hooks import Observer, has_type, name_instruction


def describe_args(recording: BlockRecording, context: Any) -> tuple[Any, ...]:
    """Returns a description that two calls must share: of each argument, and of which arguments are the same."""
    described: list[tuple[Any, ...]] = []
    first: dict[str, int] = {}
    for wrapper in list_wrappers(recording.args):
        value = wrapper.value
        if is_proxy(value):
            renamed = api.variableify(value) in context._proxy_swapmap
            seen = first.setdefault(value.name, len(first))
            described.append(
                (describe_value(value), renamed, seen, type(wrapper.original_value), value.history is None)
            )
        elif value is None or has_type(value, (bool, int, float, str)):
            described.append((type(value), repr(value), name_instruction(wrapper.provenance.inst)))
        elif type(value) is tuple:
            described.append((tuple, len(value)))
        else:  # other code may change it, or it may contain another argument
            raise Declined(f"an argument is a {type(value).__name__}", Scope.BLOCK)
        described.append((wrapper.provenance.ext_flag, wrapper.has_item_tracking))
    return tuple(described)


def uses_unmatched_argument(template: BlockRecording, target: BlockRecording) -> bool:
    """True if the template uses a proxy that was not its argument, but is a new argument of the wanted call."""
    args = list(_pair_proxies(template, target))
    changed = {new for _, old, new in args if new != old}
    taken = {old for _, old, _ in args}
    made = api.tree_flatten([each.output for each in template.symbols])[0]
    own = taken | {each.name for each in made if is_proxy(each)} | {read.proxy.name for read in template.reads}
    return any(each.name in changed for each in _list_used(template) if each.name not in own)


def _list_used(recording: BlockRecording) -> list[Any]:
    """Returns the proxies that a block's operations take."""
    leaves = api.tree_flatten([(each.args, each.kwargs) for each in recording.symbols])[0]
    return [each for each in leaves if is_proxy(each)]


def find_changed(template: BlockRecording, target: BlockRecording) -> frozenset[int]:
    """Returns the positions of the arguments, including tuple items, that are other proxies in the wanted call."""
    return frozenset(place for place, old, new in _pair_proxies(template, target) if old != new)


def _pair_proxies(template: BlockRecording, target: BlockRecording) -> Iterator[tuple[int, str, str]]:
    """Yields the position and both names of each argument, including tuple items, that is a proxy."""
    pairs = zip(list_wrappers(template.args), list_wrappers(target.args), strict=True)
    for place, (old, new) in enumerate(pairs):
        if is_proxy(old.value):
            yield place, old.value.name, new.value.name


def check_result(wrapper: Any) -> None:
    """Raises ``Declined`` if a result is not a tensor, None or a tuple of these."""
    for each in list_wrappers([wrapper]):
        if each.value is not None and type(each.value) not in (tuple, api.TensorProxy):
            raise Declined(f"a block returns a {type(each.value).__name__}", Scope.BLOCK)


def find_wrapper(value: Any, runtime: Any) -> Any:
    """Returns the wrapper that the interpreter has for an object; None if it has none."""
    known = runtime._known_wrappers.get(id(value))
    return known[0]() if known is not None else None


def check_context(context: Any, runtime: Any, wrapper: Any) -> None:
    """Raises ``Declined`` if a block is called in a context that its trace depends on and that is not compared."""
    from fusioncache.thunder_adapter.accelerator_api import SHARP_EDGES_OPTIONS, _bsym_header

    compiled, trace = api.get_compile_data(), context.computation_trace
    if compiled is None or compiled.cache_option is not api.CACHE_OPTIONS.CONSTANT_VALUES:
        raise Declined("sizes are symbolic", Scope.BLOCK)
    if context.sharp_edges is not SHARP_EDGES_OPTIONS.ALLOW:
        raise Declined("sharp edges are reported", Scope.BLOCK)
    if len(trace.scopes) != 1 or api.get_tracectx() is not trace or _bsym_header.get():
        raise Declined("the block is called inside of a symbol", Scope.BLOCK)
    if not compiled.is_grad_enabled or not compiled.autocast_stack.is_empty():
        raise Declined("the block is called without gradients, or under autocast", Scope.BLOCK)
    if any(context._additional_outputs.values()):
        raise Declined("an attribute of a module was set before", Scope.BLOCK)
    if runtime is None:
        return
    if runtime._record_history or runtime.curexc is not None or runtime.exception_stack != [None]:
        raise Declined("the block is called while an exception is handled, or a history is kept", Scope.BLOCK)
    if wrapper.attribute_wrappers or wrapper.has_item_tracking:
        raise Declined("the block has been looked at before", Scope.BLOCK)


def check_untouched(module: Any, runtime: Any, objects: Any) -> None:
    """Raises ``Declined`` if a part of a block, other than the block itself, has been looked at before."""
    if objects is None:
        objects = [each for one in module.modules() for each in (one, vars(one), *vars(one).values())]
        objects = [each for each in objects if isinstance(each, dict | list) or hasattr(each, "_parameters")]
    for each in objects:
        if each is not module and find_wrapper(each, runtime) is not None:
            raise Declined("a part of the block has been looked at before", Scope.BLOCK)


_FEWEST_ALIKE = 3
_MOST_REFUSALS = 3


class Session(Observer):
    """The recordings and copies of one model's blocks while it is traced.

    Attributes:
        blocks: the blocks, by address.
        recording: of the block that is being interpreted; None outside a block.
        written: how many blocks were copied. All others were interpreted.
        reasons: why others were interpreted, with the counts.
    """

    def __init__(self, model: Any) -> None:
        """Finds the blocks of the traced function, if it is a model."""
        self.blocks = find_blocks(model)
        self.recording: BlockRecording | None = None
        self.written = 0
        self.reasons: Counter[str] = Counter()
        self._templates: list[BlockRecording] = []
        self._refusals: Counter[type] = Counter()
        self._changed = False
        self._copies: dict[int, Any] = {}
        self._owned: dict[int, Any] = {}
        """The objects of copied blocks, except tensors, and the blocks' provenance records, by address."""

    def replace_call(self, fn: Any) -> Callable[..., Any] | None:
        """Returns a function that calls a block; None if the interpreter should call this module itself."""
        wrapper = find_wrapper(fn, interpreter.get_interpreterruntimectx()) if self._can_handle(fn) else None
        return None if wrapper is None else partial(self._call, fn, wrapper)

    def _can_handle(self, module: Any) -> bool:
        """True if a module is a block whose call may be recorded or copied now."""
        is_block = id(module) in self.blocks and self.recording is None and not self._changed
        return is_block and self._refusals[type(module)] < _MOST_REFUSALS and hooks.is_covered()

    def _call(self, module: Any, wrapper: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of a block, which is copied if possible and interpreted otherwise.

        Args:
            module: the block.
            wrapper: the interpreter's wrapper of the block.
            args: its positional arguments, wrapped.
            kwargs: its keyword arguments, wrapped.

        Raises:
            Conflict: if the block was copied before, or an error occurs while it is copied.
        """

        def interpret() -> Any:
            call = interpreter._interpret_call(getattr, wrapper, interpreter.wrap_const("__call__"))
            assert not isinstance(call, interpreter.INTERPRETER_SIGNALS)
            interpreter.populate_attribute_wrapper(call, "__self__", wrapper)
            return interpreter._interpret_call(call, *args, **kwargs)

        if id(module) in self._owned:
            raise Conflict("a block is used twice")
        context, runtime = jit_ext.get_jit_ctx(), interpreter.get_interpreterruntimectx()
        recording = self._begin(module, wrapper, args, kwargs, context, runtime)
        if recording is None:
            return interpret()
        written = self._write(recording, context, runtime)
        return written if written is not None else self._record(recording, interpret, context, runtime)

    def _begin(
        self, module: Any, wrapper: Any, args: Any, kwargs: dict[str, Any], context: Any, runtime: Any
    ) -> BlockRecording | None:
        """Returns the recording of a call before it is interpreted; None if such a call cannot be copied."""
        try:
            check_context(context, runtime, wrapper)
            given = (*args, *kwargs.values())
            recording = BlockRecording(module, wrapper.provenance, given, tuple(kwargs), State.of(context))
            recording.described = describe_args(recording, context)
        except Exception as error:
            self._count(error)
            return None
        return recording

    def _write(self, target: BlockRecording, context: Any, runtime: Any) -> Any:
        for template in self._templates:
            if not template.is_proved or not self._can_match(template, target):
                continue
            if not find_changed(template, target) <= template.varied:
                continue
            try:
                correspondence = compare(template.module, target.module)
                check_untouched(target.module, runtime, correspondence.partners.values())
                self._check_unclaimed(correspondence.partners.values())
                values = find_reads(template, target.module, correspondence)
                replay = BlockReplay(template, target.root, target.args, context)
            except Exception as error:
                self._count(error)
                continue
            try:
                result = replay.write(values)
            except Exception as error:
                raise Conflict("a block could not be copied") from error
            parts = (each for each in correspondence.partners.values() if not isinstance(each, torch.Tensor))
            self._owned |= {id(each): each for each in (target.root, *parts)}
            self.written += 1
            hooks.notify_copied(*replay.summarize())
            return result
        return None

    def _can_match(self, template: BlockRecording, target: BlockRecording) -> bool:
        alike = type(template.module) is type(target.module) and template.keywords == target.keywords
        alike = alike and template.described == target.described
        return alike and not uses_unmatched_argument(template, target)

    def _check_unclaimed(self, partners: Any) -> None:
        if any(id(each) in self._owned for each in partners):
            raise Declined("a part of the block is part of another block that was copied", Scope.BLOCK)

    def _record(self, recording: BlockRecording, interpret: Callable[[], Any], context: Any, runtime: Any) -> Any:
        try:
            check_untouched(recording.module, runtime, None)
        except Exception as error:
            recording.refuse(_explain(error))
        self.recording, result = recording, None
        try:
            result = interpret()
        finally:
            self.recording = None
            recording.end()
        if isinstance(result, interpreter.INTERPRETER_SIGNALS):
            return result
        try:
            self._finish(recording, result, context)
        except Exception as error:
            self._count(error)
            self._refusals[type(recording.module)] += recording.refusal is not None
        return result

    def _finish(self, recording: BlockRecording, result: Any, context: Any) -> None:
        check_context(context, None, None)
        if not hooks.is_covered():
            recording.refuse("it used a function whose effects are unknown")
        trace = context.computation_trace
        counts = recording.counts = recording.start.until(State.of(context))
        if counts.renamed or counts.stored or counts.objects or counts.operators or self._changed:
            recording.refuse("something was renamed, set or registered")
        recording.symbols = trace.bound_symbols[recording.start.symbols :]
        recording.source = trace._current_source_filename, trace._current_source_positions
        check_result(result)
        recording.finish(result)
        for position, template in enumerate(self._templates):
            if self._can_match(template, recording):
                try:
                    correspondence = compare(template.module, recording.module)
                    check_agreement(template, recording, correspondence)
                except Exception as error:
                    self._count(error)
                    continue
                recording.touched |= template.touched
                recording.varied = template.varied | find_changed(template, recording)
                recording.is_proved = True
                self._templates[position] = recording
                return
        self._templates.append(recording)

    def see_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_opaque: bool) -> None:
        """Checks a call that is not interpreted, before it is made. Refuses the recording if it may distinguish blocks.

        Raises:
            Conflict: if the trace is not covered, and blocks were copied.
        """
        self._check_covered()
        if args and id(args[0].value) in self._copies and getattr(fn, "__name__", "") in hooks.MUTATING:
            self._changed = True
        if self.recording is None:
            return
        try:
            frame = interpreter.get_interpreterruntimectx().peek_frame_stack()
            reason = explain_call(fn, args, frame, is_opaque=is_opaque)
        except Exception as error:  # attribute lookups on the callee may raise
            reason = _explain(error)
        if reason is not None:
            self.recording.refuse(reason)

    def see_instruction(self, name: str, inst: Any, state: dict[str, Any]) -> None:
        """Checks an instruction that compares or hashes objects, before it is executed.

        Raises:
            Conflict: if the trace is not covered, and blocks were copied.
        """
        self._check_covered()
        if self.recording is None:
            return
        stack = state["stack"]
        if name in ("IS_OP", "COMPARE_OP"):
            plain = is_plain(stack.getitem_wrapped(-2).value), is_plain(stack.getitem_wrapped(-1).value)
            if not (any(plain) if name == "IS_OP" else all(plain)):
                self.recording.refuse("compares objects")
        elif name in hooks.HASHING:
            hashed = hooks.find_hashed(name, inst.arg, stack)
            if not all(map(hooks.has_builtin_hash, hashed)):
                self.recording.refuse(f"executes {name} with an object")

    def _check_covered(self) -> None:
        """Raises ``Conflict`` if blocks were copied and a lasting effect may follow: a restart would repeat it."""
        if self.written and not hooks.is_covered():
            raise Conflict("a function whose effects are unknown, after blocks were copied")

    def note_copy(self, copy: Any) -> None:
        """Records the copy of one of the model's containers that Thunder changes in place of it."""
        self._copies[id(copy)] = copy

    def check_wrapper(self, wrapper: Any) -> None:
        """Assigns a new wrapper to the current recording.

        Raises:
            Conflict: if the wrapper is of a part of a copied block.
        """
        wrapper.born = self.recording
        if self._owned and any(id(each) in self._owned for each in (wrapper.value, *wrapper.provenance.inputs)):
            raise Conflict("a copied block is inspected")

    def end(self) -> None:
        """Drops all references to the model."""
        self.blocks, self.recording = {}, None
        self._templates, self._owned = [], {}

    def _count(self, error: Exception) -> None:
        self.reasons[_explain(error)] += 1
        logger.debug("a block is interpreted: %s", _explain(error))


def _explain(error: Exception) -> str:
    if is_declined(error, Scope.BLOCK):
        return error.reason
    return f"{type(error).__name__} was raised while it was looked at"


def find_blocks(model: Any) -> dict[int, Any]:
    """Returns the blocks of a model by address: modules in a container with at least three of their class."""
    if not isinstance(model, torch.nn.Module):
        return {}
    blocks: dict[int, Any] = {}
    for container in model.modules():
        if isinstance(container, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict):
            children = list(container.children())
            kinds = Counter(type(each) for each in children)
            blocks.update((id(each), each) for each in children if kinds[type(each)] >= _FEWEST_ALIKE)
    return blocks


CURRENT: ContextVar[Session | None] = ContextVar("fusioncache_layers", default=None)
"""The session of the trace that is being made in this context."""


def watch_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``thunder_general_jit`` to use a session for each covered trace.

    A conflict, or any exception after blocks were copied, restarts the trace without a session. A restart repeats no
    lasting effect: no block is copied after such an effect, and an effect that is about to follow a copied block is
    itself a conflict.
    """

    @wraps(original)
    def thunder_general_jit(fn: Any, args: Any, kwargs: Any, /, *, sharp_edges: Any, ad_hoc_executor: Any) -> Any:
        def trace() -> Any:
            return original(fn, args, kwargs, sharp_edges=sharp_edges, ad_hoc_executor=ad_hoc_executor)

        if not hooks.is_covered():
            return trace()
        session, restore = Session(fn), _save_state(ad_hoc_executor)
        try:
            with hooks.assign(CURRENT, session), hooks.observe(session):
                return trace()
        except (Exception, Conflict) as error:  # Thunder's interpreter wraps others in an exception of its own
            if not session.written or not _can_restart(error):
                raise
            session.reasons[_explain_restart(error)] += 1
        finally:
            session.end()
        logger.info("a model is traced again, with every block interpreted")
        restore()
        with hooks.assign(CURRENT, None):
            return trace()

    return thunder_general_jit


# Separate functions: a local variable with an exception would keep the frames of its traceback alive.
def _can_restart(error: BaseException) -> bool:
    return isinstance(error.__cause__ or error, Exception | Conflict)


def _explain_restart(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause) if isinstance(cause, Conflict) else "an exception was raised"


def _save_state(executor: Any) -> Callable[[], None]:
    """Returns a function that restores the state that tracing changes and that Thunder does not create per trace."""
    compiled = api.get_compile_data()
    saved = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(executor).items()}
    enabled = compiled.is_grad_enabled if compiled is not None else None
    contexts = list(compiled.autocast_stack.stack) if compiled is not None else []

    def restore() -> None:
        vars(executor).update(saved)
        if compiled is not None:
            compiled.is_grad_enabled = enabled
            compiled.autocast_stack.stack.clear()
            compiled.autocast_stack.stack.extend(contexts)

    return restore


@hooks.while_set(CURRENT)
def watch_wrappers(session: Session, original: Callable[..., Any], value: Any) -> Any:
    """Wraps the interpreter's wrap callback to check each new wrapper."""
    session.check_wrapper(value)
    return original(value)


@hooks.while_set(CURRENT)
def watch_reads(session: Session, original: Callable[..., Any], context: Any, value: Any) -> Any:
    """Wraps ``proxify`` to record each value of a block that gets a proxy."""
    if isinstance(value.value, api.Proxy) or value.original_value is not value.nothing:
        return original(context, value)
    recording, trace, own = session.recording, context.computation_trace, value.value
    symbols, names = len(trace.bound_symbols), trace.name_ctr
    proxy = original(context, value)
    if not isinstance(proxy, api.Proxy):
        session.note_copy(proxy)
    if recording is None:
        return proxy
    if isinstance(proxy, api.Proxy):
        recording.note_read(value, own, proxy, symbols - recording.start.symbols, names - recording.start.names)
    elif vars(value).get("born") is not recording:
        recording.refuse("a container of the model's is given proxies")
    return proxy
