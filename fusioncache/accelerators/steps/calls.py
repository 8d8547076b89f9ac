"""Calls a model that Thunder compiled, from its arguments to its results, with few Python functions.

Thunder runs some thirty functions and context managers around a prologue. All their observable effects are kept here:
the same prologues are tried in the same order and context, the same values are computed, and the same statistics are
counted. If a call is unusual, or no program fits, nothing is changed and Thunder's function is called.

Each function that Thunder compiles from a trace runs without gradients and without autocast, which takes two Python
functions, an object and four settings of autocast around each. Here that is done once for all functions of a call.

A program has two autograd nodes, the same as Thunder's with less code around them: so no code holds the gradients of
outputs while backward computes. The node of the outputs puts them in a channel, and the node of the inputs takes them
out and calls backward. A tensor on the device ``meta`` links them. Thunder makes it with random numbers, for which
torch runs 40 Python functions on that device; here it is empty. Tensors are saved, checked and freed as with Thunder:
a saved tensor that was changed in place raises, a second backward through freed tensors raises, and after
``create_graph`` a second differentiation raises.

Behind Dynamo Thunder makes one node for both, which holds the gradients of outputs while backward computes. So it is
here. Some outputs of a graph may have no gradients: Dynamo knows them.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.autograd.function import Function, once_differentiable

from fusioncache.process.warning import log_errors
from fusioncache.thunder_adapter.api import CACHE_OPTIONS, ThunderModule, _compile_data, get_tracectx, no_autocast
from fusioncache.thunder_adapter.installation import is_known_whole
from fusioncache.transform.dynamo_graphs import OWN_CALL

Backward = Callable[[list[Any], list[Any]], Sequence[Any]]
"""Takes the saved tensors and other saved values, and the gradients of outputs, and empties these lists."""

_IN_ONE, _DIFFERENTIABLE = "thunderfx_disable_split_autograd", "is_differentiable_outputs"
"""Thunder's options that give a program one autograd node, and tell which outputs have gradients."""

_unwrap: Any = torch._C._functorch.unwrap_if_dead
_is_grad_enabled, _set_grad_enabled = torch.is_grad_enabled, torch._C._set_grad_enabled
_is_autocast_enabled = torch.is_autocast_enabled


class Channel:
    """Calls the backward of a program, and passes tensors between the two nodes of one call, outside of autograd.

    Args:
        backward: as Thunder made it.
        inner: the same without the functions around it; None if it has none such.
        others: the saved values that are not tensors.
        hides: whether gradients bypass autograd, as in FSDP without synchronization.

    Attributes:
        waiting: the saved tensors, and the gradients of the outputs, from one node until the other takes them.
    """

    __slots__ = ("backward", "hides", "inner", "others", "waiting")

    def __init__(self, backward: Backward, inner: Backward | None, others: Any, *, hides: bool = False):
        self.backward = backward
        self.inner = inner
        self.others = others
        self.hides = hides
        self.waiting: tuple[list[Any], list[Any]] | None = None

    def run(self, saved: list[Any], gradients: list[Any]) -> Sequence[Any]:
        """Returns the gradients of the inputs, computed from saved tensors and the gradients of the outputs."""
        plain = self.inner is not None and not (_is_grad_enabled() or _is_autocast_on())
        run: Any = self.inner if plain else self.backward
        computed: Sequence[Any] = run([saved, self.others], gradients)
        assert not gradients
        assert not saved, "the program's backward holds on to what was saved"
        return (None,) * len(computed) if self.hides else computed


class ProgramInputs(Function):
    """The autograd node whose edges lead to the inputs of a program."""

    @staticmethod
    def forward(ctx: Any, channel: Channel, *inputs: Any) -> torch.Tensor:
        """Takes the inputs, so that autograd records edges to them."""
        ctx.channel = channel
        return _make_link()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Computes the gradients of the inputs."""
        return _take_once(ctx, *gradients) if _is_grad_enabled() else _take(ctx, *gradients)


def _take(ctx: Any, *gradients: Any) -> Any:
    channel = ctx.channel
    waiting, channel.waiting = channel.waiting, None
    return None, *channel.run(*waiting)


_take_once = once_differentiable(_take)


def _take_saved(ctx: Any) -> list[Any]:
    """Takes the saved tensors out of a node, so that backward frees each after its last use."""
    saved = list(ctx.saved_tensors)
    ctx.maybe_clear_saved_tensors()
    return saved


class WholeProgram(Function):
    """The only autograd node of a program behind Dynamo."""

    @staticmethod
    def forward(
        ctx: Any, channel: Channel, outputs: Any, saved: Sequence[Any], constant: Sequence[Any], *inputs: Any
    ) -> Any:
        """Returns the outputs, so that autograd makes this their node, except for those that are constant to it."""
        ctx.channel = channel
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*constant)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Computes the gradients of the inputs."""
        return _differentiate_once(ctx, *gradients) if _is_grad_enabled() else _differentiate(ctx, *gradients)


def _differentiate(ctx: Any, *gradients: Any) -> Any:
    return None, None, None, None, *ctx.channel.run(_take_saved(ctx), list(gradients))


_differentiate_once = once_differentiable(_differentiate)


class ProgramOutputs(Function):
    """The autograd node of the outputs of a program, which holds its saved tensors."""

    @staticmethod
    def forward(ctx: Any, link: Any, channel: Channel, outputs: Any, saved: Sequence[Any], *inputs: Any) -> Any:
        """Returns the outputs, so that autograd makes this their node."""
        ctx.channel = channel
        ctx.others = (None,) * (3 + len(inputs))
        ctx.save_for_backward(*saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Passes the gradients of the outputs, and the saved tensors, to the other node."""
        assert not ctx.channel.waiting, "two backward passes run through one call at the same time"
        ctx.channel.waiting = _take_saved(ctx), list(gradients)
        return _make_link(), *ctx.others


# ``connect`` does what Python's ``apply`` does beside torch's function in C, without a call for each argument.
_apply_inputs: Any = super(Function, ProgramInputs).apply
_apply_outputs: Any = super(Function, ProgramOutputs).apply
_apply_whole: Any = super(Function, WholeProgram).apply

type MakeNodes = Callable[[Channel, Sequence[Any], Any, Sequence[Any]], object]
"""Makes the autograd nodes of a call. Takes what ``connect`` takes."""


def make_two_nodes(channel: Channel, inputs: Sequence[Any], outputs: Any, saved: Sequence[Any]) -> None:
    """Makes a node of the outputs and one of the inputs."""
    link = _apply_inputs(channel, *inputs)
    # An input that is returned unchanged must be an input of this node as well.
    is_returned = not {id(each) for each in inputs}.isdisjoint([id(each) for each in outputs])
    _apply_outputs(link, channel, outputs, saved, *(inputs if is_returned else ()))


def choose_nodes(options: Mapping[str, Any]) -> MakeNodes:
    """Returns the function that makes the same nodes as Thunder with these options of a compilation."""
    if not options.get(_IN_ONE):
        return make_two_nodes
    differentiable = options.get(_DIFFERENTIABLE)

    def make_one_node(channel: Channel, inputs: Sequence[Any], outputs: Any, saved: Sequence[Any]) -> None:
        constant: list[Any] = []
        if differentiable is not None:
            assert len(outputs) == len(differentiable)
            constant = [each for each, has_gradient in zip(outputs, differentiable, strict=True) if not has_gradient]
        _apply_whole(channel, outputs, saved, constant, *inputs)

    return make_one_node


def connect(
    channel: Channel,
    inputs: Sequence[Any],
    outputs: Any,
    saved: Sequence[Any],
    make_nodes: MakeNodes = make_two_nodes,
) -> None:
    """Connects the outputs of a program to its inputs in autograd's graph.

    Args:
        channel: calls the program's backward.
        inputs: of the program.
        outputs: a tuple of the computed values; each tensor among them can be differentiated from now on.
        saved: tensors for backward.
        make_nodes: makes the nodes.

    No transform of ``torch.func`` may be active.
    """
    # A view of an output that is saved would never be freed, see https://github.com/pytorch/pytorch/issues/94990.
    saved = [t.detach() if isinstance(t, torch.Tensor) and t._base is not None else t for t in saved]
    was_enabled = _is_grad_enabled()
    _set_grad_enabled(True)
    try:
        make_nodes(channel, _unwrap_all(inputs), outputs, saved)
    finally:
        _set_grad_enabled(was_enabled)


def _unwrap_all(inputs: Sequence[Any]) -> list[Any]:
    """Returns the inputs, with tensors of a finished ``torch.func`` transform unwrapped."""
    try:
        return list(map(_unwrap, inputs))
    except TypeError:  # some are not tensors
        return [_unwrap(each) if isinstance(each, torch.Tensor) else each for each in inputs]


def _make_link() -> torch.Tensor:
    return torch.empty(1, dtype=torch.float32, device="meta")


def _is_autocast_on() -> bool:
    return _is_autocast_enabled("cpu") or _is_autocast_enabled("cuda")


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})
"""Types of arguments that contain no other arguments."""

_CPU = torch.device("cpu")


def describe_call(info: dict[str, Any], compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Fills Thunder's dictionary that describes a call.

    Neither a torch function mode (such as a default device) nor autocast may be active.

    Args:
        info: the dictionary.
        compiled: Thunder's data of the called function. Its ``is_grad_enabled`` is set.
        args: of the call.
        kwargs: of the call.
    """
    if not _share_no_memory((*args, *kwargs.values())) or compiled.compile_options.get("skip_inplace_alias_updates"):
        compiled.populate_cache_info(info, *args, **kwargs)
        return
    compiled.is_grad_enabled = torch.is_grad_enabled()
    info["default_dtype"] = torch.get_default_dtype()
    info["default_device"] = _find_default_device()
    info["is_autocast_enabled"] = False
    info["alias_tensor_indices"] = ""
    info["is_grad_enabled"] = compiled.is_grad_enabled
    info["no_grad_sync"] = _is_synchronization_off(compiled.fn)


def _share_no_memory(args: tuple[Any, ...]) -> bool:
    """True if arguments are plain, and no two of them share memory. Parameters are not compared."""
    if not _PLAIN.issuperset(map(type, args)):
        return False
    tensors = [arg for arg in args if type(arg) is torch.Tensor]
    if len(tensors) < 2:
        return True
    if any(each.layout is not torch.strided for each in tensors):
        return False
    return len({each.untyped_storage().data_ptr() for each in tensors}) == len(tensors)


def _find_default_device() -> torch.device:
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not None:
        return torch.get_default_device()
    return _CPU


def _is_synchronization_off(model: Any) -> bool:
    """True if gradients are not to be exchanged among the ranks that share the model."""
    names = vars(model)
    if not (names.get("use_ddp") or names.get("use_fsdp")):
        return False
    from fusioncache.thunder_adapter.api import get_skip_data_parallel_grad_sync

    return bool(get_skip_data_parallel_grad_sync())


def find_inner(function: Callable[..., Any]) -> FunctionType | None:
    """Returns the function that Thunder wrapped to run without gradients and autocast; None for any other function.

    The wrappers must be exactly ``torch.no_grad`` and ``no_autocast``, in this order. The latter restores the autocast
    state of the time when it was made, so autocast must have been off then.
    """
    without_grad, without_autocast = _find_codes()
    outer, middle = function, getattr(function, "__wrapped__", None)
    if _code_of(outer) is not without_grad or _code_of(middle) is not without_autocast:
        return None
    clone, around = (_cell(outer, name) for name in ("ctx_factory", "func"))
    if around is not middle or type(getattr(clone, "__self__", None)) is not torch.no_grad:
        return None
    inner: Any = _cell(middle, "fn")
    was_off = not any(_cell(middle, name) for name in ("prev_cpu", "prev"))
    return inner if was_off and isinstance(inner, FunctionType) else None


@cache
def _find_codes() -> tuple[CodeType, CodeType]:
    def nothing() -> None:
        pass

    return torch.no_grad()(nothing).__code__, no_autocast(nothing).__code__


def _code_of(function: Any) -> CodeType | None:
    return getattr(function, "__code__", None)


def _cell(function: Any, name: str) -> Any:
    names = function.__code__.co_freevars
    return function.__closure__[names.index(name)].cell_contents


Program = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Takes the prologue's values for the computation and for the epilogue, and returns the results of the model."""


def make_program(entry: Any, statistics: Any, clock: Callable[[], int], make_nodes: MakeNodes) -> Program:
    """Returns a function that runs the program of one of Thunder's cache entries, after its prologue.

    Autocast must be off when it is called.

    Args:
        entry: Thunder's.
        statistics: a weak reference to Thunder's, in which the time of the computation is stored.
        clock: returns nanoseconds.
        make_nodes: makes the autograd nodes of a call.
    """
    computation: Callable[..., Any] = find_inner(entry.computation_fn) or entry.computation_fn
    backward, hides = entry.backward_fn, bool(entry.return_none_instead_of_grads)
    inner = find_inner(backward) if backward else None
    finish = _make_epilogue(entry.epilogue_fn)

    def run(inputs: Sequence[Any], for_epilogue: Sequence[Any]) -> Any:
        was_enabled, counts = _is_grad_enabled(), statistics()
        _set_grad_enabled(False)
        counts.last_trace_host_execution_start = clock()
        try:
            results = computation(*inputs)
        finally:
            counts.last_trace_host_execution_stop = clock()
            _set_grad_enabled(was_enabled)
        if backward:
            made, (saved, others) = results
            channel = Channel(backward, inner, others, hides=hides)
            connect(channel, made["flat_args"], made["flat_output"], saved, make_nodes)
            results = made["output"]
        return finish(*for_epilogue, *results)

    return run


def _make_epilogue(epilogue: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an epilogue, without its wrappers if it only returns its arguments."""
    inner = find_inner(epilogue)
    return epilogue if inner is None or inner.__code__.co_names else inner


Forward = Callable[..., Any]

Order = Callable[[list[Any], tuple[Any, ...], dict[str, Any]], Iterable[Any]]
"""Takes Thunder's cache entries and the arguments of a call; returns the entries in the order to try them."""

_count_modes: Any = torch._C._len_torch_function_stack
_are_transforms_active: Any = torch._C._are_functorch_transforms_active
_clock = time.perf_counter_ns


def make_forward(own: Forward, compiled: Any, statistics: Any, order: Order) -> Forward:
    """Returns a function that replaces Thunder's forward function of a module.

    Args:
        own: Thunder's function.
        compiled: Thunder's data of the module.
        statistics: Thunder's, of its calls.
        order: of the entries.
    """
    # Weak references, as in Thunder's function: strong ones would make cycles.
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
    """True if the call is in a context that only Thunder's function handles."""
    return bool(_count_modes() or _are_transforms_active() or _is_autocast_on())


type _Found = tuple[Any, Program, Any, Any]


def _make_finder(
    compiled_of: Callable[[], Any], counts_of: Callable[[], Any], order: Order
) -> Callable[[tuple[Any, ...], dict[str, Any]], _Found | None]:
    """Returns a function that finds the entry that fits a call, its program, and the results of the prologue."""
    from fusioncache.thunder_adapter.accelerator_api import _cache_info_ctx, _langctx, resolve_language

    programs: dict[int, tuple[Any, Program]] = {}
    language = resolve_language(compiled_of().langctx)
    make_nodes = choose_nodes(compiled_of().compile_options)

    def program_of(entry: Any, entries: list[Any]) -> Program:
        known = programs.get(id(entry))
        if known is None:
            if len(programs) >= len(entries):  # some belong to entries that were removed
                programs.clear()
            known = programs[id(entry)] = entry, make_program(entry, counts_of, _clock, make_nodes)
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
        except Exception:  # any error occurs again in Thunder's function
            return None
        finally:
            _compile_data.reset(tokens[2])
            _cache_info_ctx.reset(tokens[1])
            _langctx.reset(tokens[0])
        return None

    return find


def _count(counts: Any, entry: Any, start: int) -> None:
    """Updates the statistics as Thunder does for a call that an entry fits."""
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


def shorten_calls(module: Any, order: Order) -> None:
    """Shortens the calls of one of Thunder's modules, if they are as this file knows them. Never raises.

    Args:
        module: the one that ``thunder.jit`` is making.
        order: in which Thunder tries its entries.
    """
    with log_errors("calls stay as long as Thunder's are"):
        if _can_shorten(module):
            module._forward_fn = make_forward(module._forward_fn, module._lc_cd, module._lc_cs, order)


def _can_shorten(module: Any) -> bool:
    compiled, model = module._lc_cd, module._model
    if type(module) is not ThunderModule or not is_known_whole("short calls"):
        return False
    is_own = module._forward_fn.__code__.co_qualname == OWN_CALL
    options = compiled.compile_options
    if options.get(_DIFFERENTIABLE) is not None and not options.get(_IN_ONE):
        return False  # Thunder raises
    flags = ("use_ddp", "use_fsdp")
    return (
        is_own
        and compiled.cache_option is CACHE_OPTIONS.CONSTANT_VALUES
        and not any(hasattr(type(model), flag) for flag in flags)  # they are read from the model's own dictionary
    )
