"""Tensor parallelism: finds the parameters to cut, and rewrites the trace of a whole model into that of one rank.

Thunder 0.2.6 has ``thunder.distributed.column_parallel`` and ``row_parallel``. They need CUDA, fail for a gated MLP,
and gather and split between layers if they do not detect that one feeds the other.

The trace of the whole model is visited once. An operation on whole tensors stays as it is, and one on a cut tensor
computes a part. If its effect on a cut is unknown, the model is refused, so that the program never differs from the
model. Numbers of heads and shapes in the model's code need not change.

If an operation that computes a part uses a whole tensor, each rank has a summand of the tensor's gradient. Their sum is
the collective in front of column layers, one for all operations that read the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import torch

from fusioncache.distributed.cuts import (
    RULES,
    Cut,
    CutError,
    CutValues,
    Shape,
    is_elementwise,
    operation_name,
    take_part,
)
from fusioncache.distributed.rank_symbols import register_rank_symbols
from fusioncache.thunder_adapter.api import PrimIDs, Transform, get_compile_data, prims, tree_map, variableify


def partition_trace(trace: Any, values: CutValues) -> Any:
    """Returns the trace of one rank, given the trace of a whole model.

    Args:
        trace: the computation trace of Thunder's interpreter.
        values: the cuts of its inputs.

    Raises:
        CutError: if an operation cannot take a cut tensor. The message names the layer that was cut.
    """
    from fusioncache.thunder_adapter.api import TraceProvenance, from_trace, tracectx

    new = from_trace(trace)
    values.mark_inputs(trace.args)
    new.args = tuple(values.new(value) for value in trace.args)
    walk = _Partitioner(values, new)
    with tracectx(new):
        for symbol in trace.bound_symbols:
            new.set_current_source_location(symbol.source_filename, symbol.source_positions)
            walk.visit(symbol)
    new.set_current_source_location(None, None)
    new.set_provenance(TraceProvenance("Layers cut among ranks by fusioncache"))
    return new


class _Partitioner:
    """Visits the bound symbols of a trace and writes the new trace."""

    def __init__(self, values: CutValues, trace: Any):
        self._values = values
        self._trace = trace
        self._line = ""

    def visit(self, symbol: Any) -> None:
        """Writes the replacement of a bound symbol, which may be a subsymbol of another one."""
        if symbol.sym.id == PrimIDs.RETURN:
            self._return(symbol)
            return
        self._line = _line_of(symbol) or self._line
        if symbol.sym.id != PrimIDs.UNPACK_TRIVIAL and any(map(self._values.cut_of, symbol.flat_proxy_args)):
            self._cut(symbol)
        else:
            self._copy_symbol(symbol, {})
        self._values.propagate_gradients(symbol.flat_proxy_args, symbol.flat_proxy_outs)

    def _cut(self, symbol: Any) -> None:
        name = operation_name(symbol)
        rule = RULES.get(name)
        if rule is not None and rule(self._values, symbol):
            return
        if is_elementwise(symbol) and self._compute_elements(symbol):
            return
        taken = {value.name for value in symbol.flat_proxy_args}
        if symbol.subsymbols:
            for inner in symbol.subsymbols:
                self.visit(inner)
        elif any(value.name not in taken for value in symbol.flat_proxy_outs):
            self._gather_rows(symbol, name)
        # Else its results are numbers or its arguments.

    def _compute_elements(self, symbol: Any) -> bool:
        """Computes a part of an elementwise operation, if that is possible. Returns whether it did."""
        (given,) = symbol.flat_proxy_outs
        cut = self._values.cut_of_result(symbol.flat_proxy_args, given.ndim)
        if cut is None:
            return False
        arguments = {value.name: self._values.fit(value, cut.dim, given.ndim) for value in symbol.flat_proxy_args}
        return self._values.compute(symbol, arguments, cut)

    def _gather_rows(self, symbol: Any, name: str) -> None:
        """Writes an operation on whole tensors, after gathering operands that are cut by rows.

        Raises:
            CutError: if an operand is cut by a layer's features.
        """
        gathered: dict[str, Any] = {}
        for value in symbol.flat_proxy_args:
            cut = self._values.cut_of(value)
            if cut is None:
                continue
            if not cut.of_rows:
                raise CutError(_explain(symbol, name, value, cut, self._line))
            gathered[value.name] = self._values.gather(value, partial=False)
        self._copy_symbol(symbol, gathered)

    def _copy_symbol(self, symbol: Any, instead: Mapping[str, Any]) -> None:
        """Writes a bound symbol with the new trace's arguments, or those of ``instead``."""
        arguments = {value.name: instead.get(value.name, self._values.new(value)) for value in symbol.flat_proxy_args}
        changed = {variableify(value): arguments[value.name] for value in symbol.flat_proxy_args}
        changed = {variable: new for variable, new in changed.items() if variable.proxy is not new}
        self._trace.scopes[-1].append(symbol.from_bsym_swap_proxies(changed, skip_output=bool(instead)))

    def _return(self, symbol: Any) -> None:
        """Writes the return of whole tensors.

        Raises:
            CutError: if a result is cut by a layer's features.
        """
        (returned,) = symbol.args
        outputs = tree_map(self._whole, returned["output"])
        arguments = [self._values.new(value) for value in returned["flat_args"]]
        new = {**returned, "output": outputs, "flat_args": arguments}
        self._trace.scopes[-1].append(symbol.from_bsym(args=(new,)))

    def _whole(self, value: Any) -> Any:
        cut = self._values.cut_of(value)
        if cut is None:
            return self._values.new(value)
        if not cut.of_rows:
            raise CutError(
                f"the model returns what {cut.layer} gives, of which each rank has a part; name {cut.layer} among the "
                "gathered layers, or the layer that takes this among the row layers"
            )
        return self._values.gather(value, partial=False)


def _line_of(symbol: Any) -> str:
    if symbol.source_filename is None or symbol.source_positions is None:
        return ""
    return f"{symbol.source_filename}:{symbol.source_positions.lineno}"


def _explain(symbol: Any, name: str, value: Any, cut: Cut, line: str) -> str:
    """Returns the reason why an operation cannot be computed in parts."""
    where = f" in {line}" if line else ""
    start = f"{cut.layer} is cut, and each rank has a part of dimension {cut.dim} of {tuple(value.shape)}"
    if name == "prims.slice_prim":
        return (
            f"{start}, of which a part is taken{where} that lies on some ranks only. A layer that gives several things "
            "at once, such as queries, keys and values, cannot be cut: give each a layer of its own"
        )
    if name == "prims.reshape":
        return f"{start}, which gets the shape {tuple(symbol.flat_proxy_outs[0].shape)}{where}, that they cannot share"
    return f"{start}, which {name.rpartition('.')[2]}{where} cannot take in parts"


class Role(StrEnum):
    """How a layer is cut."""

    COLUMN = "column"
    """Each rank has some output features of a linear layer, or some of an embedding's vocabulary."""
    ROW = "row"
    """Each rank has some input features, and results are summed over ranks."""
    GATHERED = "gathered"
    """Like a column layer, but its result is gathered on each rank."""


@dataclass(frozen=True, slots=True)
class CutParameter:
    """A parameter that is cut.

    Attributes:
        layer: the name of its module.
        role: of that module.
        dim: the dimension along which it is cut.
        shape: of the whole parameter.
    """

    layer: str
    role: Role
    dim: int
    shape: Shape


def find_cut_parameters(model: Any, roles: Mapping[Role, Sequence[str]], ranks: int) -> Mapping[str, CutParameter]:
    """Returns the parameters to cut by name; a shared parameter is under each of its names.

    Args:
        model: a module.
        roles: patterns of module names for each role, such as ``"*.mlp.gate"``.
        ranks: the number of ranks.

    Raises:
        CutError: if a pattern matches no module, or a layer cannot be cut in this way.
    """
    found: dict[str, CutParameter] = {}
    for role, patterns in roles.items():
        for name, module in _find_modules(model, role, patterns):
            for own, parameter in _cut_layer(name, module, role, ranks):
                if own in found and found[own].role is not role:
                    raise CutError(f"{name} is named twice: as a {found[own].role} and as a {role} layer")
                found[own] = parameter
    _check_shared(model, found)
    return found


def _find_modules(model: Any, role: Role, patterns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(patterns, str):
        raise TypeError(f"{role} must be a sequence of names, got the text {patterns!r}")
    modules = dict(model.named_modules(remove_duplicate=False))
    for pattern in patterns:
        fitting = [name for name in modules if fnmatchcase(name, pattern)]
        if not fitting:
            raise CutError(f"the model has no layer {pattern!r}, which was named as a {role} layer")
        yield from ((name, modules[name]) for name in fitting)


def _cut_layer(name: str, module: Any, role: Role, ranks: int) -> Iterator[tuple[str, CutParameter]]:
    if isinstance(module, torch.nn.Embedding) and role is Role.COLUMN:
        _check_embedding(name, module)
        what, dims = "embeddings", {"weight": 0}
    elif isinstance(module, torch.nn.Linear):
        what = "inputs" if role is Role.ROW else "outputs"
        dims = {"weight": 1} if role is Role.ROW else {"weight": 0, "bias": 0}
    else:
        raise CutError(f"{name} is a {type(module).__name__}, which cannot be a {role} layer")
    for own, dim in dims.items():
        parameter = getattr(module, own)
        if parameter is None:
            continue
        if parameter.is_meta:
            raise CutError(f"{name}.{own} is on the meta device: give it values before it is cut")
        if parameter.shape[dim] % ranks:
            raise CutError(f"{name} has {parameter.shape[dim]} {what}, which {ranks} ranks cannot share equally")
        yield f"{name}.{own}", CutParameter(name, role, dim, tuple(parameter.shape))


def _check_embedding(name: str, module: Any) -> None:
    for option in ("padding_idx", "max_norm"):
        if getattr(module, option) is not None:
            raise CutError(f"{name} has the option {option}, with which an embedding cannot be cut")
    if module.sparse or module.scale_grad_by_freq:
        raise CutError(f"{name} has sparse or scaled gradients, with which an embedding cannot be cut")


def _check_shared(model: Any, found: Mapping[str, CutParameter]) -> None:
    """Raises ``CutError`` if a parameter with several names is cut under some of them only, or in two ways."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for shared in names.values():
        cuts = {found[name].dim if name in found else None for name in shared}
        if len(cuts) > 1:
            raise CutError(f"{' and '.join(shared)} are one parameter, which cannot be cut in two ways")


class TensorParallelTransform(Transform):
    """Gives each rank its parts of a model's layers, and the computation on them.

    Args:
        group: the process group whose ranks share the model.
        parameters: the cut parameters, by name.
        of_rows: whether the residual stream is cut along its sequence between these layers.
        origin: the rank of the group whose parameters are broadcast; None: each rank takes its own.
        release: whether the original module drops the whole parameters of which this rank stores a part.
    """

    def __init__(
        self,
        group: Any,
        parameters: Mapping[str, CutParameter],
        *,
        of_rows: bool = False,
        origin: int | None = None,
        release: bool = False,
    ):
        super().__init__()
        self.process_group = group
        self.parameters = dict(parameters)
        self.of_rows = of_rows
        # A program of another process refers to them by name.
        register_rank_symbols()
        self._origin = origin
        self._release = release

    def cache_key(self) -> str:
        """Returns this transform's ingredient of program keys: the layers that are cut, and how.

        The keys contain the group elsewhere, and no program depends on the rank.
        """
        cut = (
            f"{name}={parameter.role} {parameter.dim} {parameter.shape}" for name, parameter in self.parameters.items()
        )
        return f"of_rows={self.of_rows} {' '.join(sorted(cut))}"

    def transform_module(self, model: Any) -> None:
        """Thunder's hook, called with its module before tracing. Replaces parameters by this rank's parts."""
        shared = model._get_shared_names()
        made: dict[str, Any] = {}
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                moved = self._take(name, tensor)
                if moved is not tensor:
                    made.update((other, moved) for other in shared[name])
        for name, tensor in made.items():
            kept = isinstance(tensor, torch.nn.Parameter)
            (model._overrides_parameters if kept else model._overrides_buffers)[name] = tensor
        if self._release:
            _release_whole(model._model, self.parameters)

    def _take(self, name: str, tensor: Any) -> Any:
        """Returns this rank's tensor for a parameter or a buffer: the same one if neither broadcast nor cut."""
        moved = tensor
        if self._origin is not None:
            moved = tensor.clone(memory_format=torch.contiguous_format)
            origin = torch.distributed.get_global_rank(self.process_group, self._origin)
            torch.distributed.broadcast(moved, origin, self.process_group)
        if name in self.parameters:
            moved = self._cut(moved, self.parameters[name].dim).clone(memory_format=torch.contiguous_format)
        if moved is tensor or not isinstance(tensor, torch.nn.Parameter):
            return moved
        return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)

    def _cut(self, tensor: Any, dim: int) -> Any:
        return tensor.chunk(self.process_group.size(), dim)[self.process_group.rank()]

    def transform_state_dict_for_submodule(
        self, model: Any, submodule_name: str, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """Thunder's hook, called with whole parameters. Returns this rank's parts of them."""
        return self._exchange_parts(submodule_name, state_dict, self._cut)

    def reverse_transform_state_dict_for_submodule(
        self, model: Any, submodule_name: str, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """Thunder's hook, called with this rank's parts. Returns the whole parameters."""
        return self._exchange_parts(submodule_name, state_dict, self._join)

    def _exchange_parts(
        self, submodule: str, tensors: dict[str, Any], exchange: Callable[[Any, int], Any]
    ) -> dict[str, Any]:
        """Returns the tensors of a submodule, with ``exchange(tensor, dim)`` for each cut one."""
        cut = {name: self.parameters.get(f"{submodule}.{name}" if submodule else name) for name in tensors}
        return {
            name: tensor if (parameter := cut[name]) is None else exchange(tensor, parameter.dim)
            for name, tensor in tensors.items()
        }

    def _join(self, part: Any, dim: int) -> Any:
        parts = [torch.empty_like(part) for _ in range(self.process_group.size())]
        torch.distributed.all_gather(parts, part.contiguous(), self.process_group)
        return torch.cat(parts, dim)

    def transform_traces_pre_prologue(
        self, prologue_trace: Any, computation_trace: Any, epilogue_trace: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """Thunder's hook, called with the traces of the whole model. Returns those of one rank.

        Raises:
            CutError: if the model's computation cannot be cut in the requested way.
        """
        _check_alone()
        checked = {symbol.output.name: symbol.args[1] for symbol in _unpacked(prologue_trace)}
        cuts: dict[str, Cut] = {}
        for whole, proxy in zip(prologue_trace.output[0], computation_trace.args, strict=True):
            name = checked.get(getattr(whole, "name", ""))
            if name not in self.parameters:
                continue
            parameter = self.parameters[name]
            is_gathered = parameter.role is Role.GATHERED
            cuts[proxy.name] = Cut(parameter.dim, parameter.layer, is_gathered=is_gathered)
        self._check_parts(prologue_trace, checked)
        values = CutValues(self.process_group, cuts, of_rows=self.of_rows)
        trace = partition_trace(computation_trace, values)
        return prologue_trace, trace, epilogue_trace

    def _check_parts(self, trace: Any, checked: Mapping[str, str]) -> None:
        """Sets the prologue's guards on cut parameters to the shapes of parts."""
        ranks = self.process_group.size()
        for symbol in trace.bound_symbols:
            if symbol.sym is not prims.check_tensor_shape_and_metadata or symbol.args[0].name not in checked:
                continue
            proxy, _, *others = symbol.args
            parameter = self.parameters.get(checked[proxy.name])
            if parameter is not None:
                symbol.args = (proxy, take_part(parameter.shape, parameter.dim, ranks), *others)


def _release_whole(module: Any, parameters: Iterable[str]) -> None:
    """Moves parameters of a module to the meta device. Thunder traces them as on their former device."""
    for name in parameters:
        owner, _, own = name.rpartition(".")
        whole = module.get_parameter(name)
        empty = torch.nn.Parameter(whole.to("meta"), requires_grad=whole.requires_grad)
        empty._thunder_device = whole.device
        module.get_submodule(owner).register_parameter(own, empty)


def _unpacked(trace: Any) -> list[Any]:
    """Returns the bound symbols of a prologue that unpack parameters and buffers."""
    return [symbol for symbol in trace.bound_symbols if symbol.sym in (prims.unpack_parameter, prims.unpack_buffer)]


def _check_alone() -> None:
    """Raises ``CutError`` if Thunder's FSDP or DDP is applied too: ranks of its groups have different parameters."""
    data = get_compile_data()
    kinds = [type(one) for one in (data.transforms if data else ())]
    is_shared = any(kind.__module__.startswith("thunder.distributed.") for kind in kinds)
    if is_shared or getattr(data, "use_ddp", False) or getattr(data, "use_fsdp", False):
        raise CutError("a model that ranks share by tensor_parallel() cannot be shared by fsdp() or ddp() as well")
