"""The layers that tensor parallelism cuts, and what each rank does of what one process would do.

Thunder 0.2.6 has ``thunder.distributed.column_parallel`` and ``row_parallel``. They need CUDA, fail for a gated MLP,
and gather and split between layers where they do not see that one feeds the other.

A trace tells what a whole model does. Here it is gone through once: what takes whole tensors stays as it is, and what
takes a cut one computes a part. Of each operation it is known what it does to a cut, or else it is refused: a program
is the same computation, or there is none. So neither numbers of heads nor shapes in a model's code need to change.

Where a whole tensor is used by something that computes a part, each rank has a summand of its gradient. These are added
up: that is the collective in front of column layers, one for all that read the same tensor.
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
    align_right,
    is_elementwise,
    operation_name,
    take_part,
)
from fusioncache.distributed.rank_symbols import register_rank_symbols
from fusioncache.thunder_adapter.api import Transform, prims


def partition_trace(trace: Any, values: CutValues) -> Any:
    """Returns what each rank does of what a trace does.

    Args:
        trace: a computation as Thunder's interpreter found it, of a whole model.
        values: which of its inputs are cut.

    Raises:
        CutError: if it does something with a tensor that is cut of which it is not known how, with the layer.
    """
    from fusioncache.thunder_adapter.api import TraceProvenance, from_trace, tracectx

    new = from_trace(trace)
    values.starts(trace.args)
    new.args = tuple(values.now(value) for value in trace.args)
    walk = _Partitioner(values, new)
    with tracectx(new):
        for symbol in trace.bound_symbols:
            new.set_current_source_location(symbol.source_filename, symbol.source_positions)
            walk.visit(symbol)
    new.set_current_source_location(None, None)
    new.set_provenance(TraceProvenance("Layers cut among ranks by fusioncache"))
    return new


class _Partitioner:
    """Goes through a trace and writes the new one."""

    def __init__(self, values: CutValues, trace: Any):
        self._values = values
        self._trace = trace
        self._line = ""

    def visit(self, symbol: Any) -> None:
        """Writes what is done in the place of a bound symbol, which may be a part of another one."""
        from fusioncache.thunder_adapter.api import PrimIDs

        if symbol.sym.id == PrimIDs.RETURN:
            self._return(symbol)
            return
        self._line = _line_of(symbol) or self._line
        if symbol.sym.id != PrimIDs.UNPACK_TRIVIAL and any(map(self._values.cut_of, symbol.flat_proxy_args)):
            self._cut(symbol)
        else:
            self._keep(symbol, {})
        self._values.train(symbol.flat_proxy_args, symbol.flat_proxy_outs)

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
        # Else it gives numbers, or what it takes.

    def _compute_elements(self, symbol: Any) -> bool:
        """Returns whether a part could be computed element by element, and computes it then."""
        (given,) = symbol.flat_proxy_outs
        cuts = [(value, cut) for value in symbol.flat_proxy_args if (cut := self._values.cut_of(value))]
        dims = {align_right(cut.dim, value.ndim, given.ndim) for value, cut in cuts}
        if len(dims) > 1:
            return False
        (dim,), (_, cut) = dims, cuts[0]
        now = {value.name: self._values.fit(value, dim, given.ndim) for value in symbol.flat_proxy_args}
        return self._values.compute(symbol, now, cut.moved(dim))

    def _gather_rows(self, symbol: Any, name: str) -> None:
        """Has an operation take whole tensors where only the residual stream is cut.

        Raises:
            CutError: if a layer's features are.
        """
        gathered: dict[str, Any] = {}
        for value in symbol.flat_proxy_args:
            cut = self._values.cut_of(value)
            if cut is None:
                continue
            if not cut.of_rows:
                raise CutError(_explain(symbol, name, value, cut, self._line))
            gathered[value.name] = self._values.gather(value, partial=False)
        self._keep(symbol, gathered)

    def _keep(self, symbol: Any, instead: Mapping[str, Any]) -> None:
        """Writes a bound symbol as it is, with what stands for the values that it takes."""
        from fusioncache.thunder_adapter.api import variableify

        now = {value.name: instead.get(value.name, self._values.now(value)) for value in symbol.flat_proxy_args}
        changed = {variableify(value): now[value.name] for value in symbol.flat_proxy_args}
        changed = {variable: new for variable, new in changed.items() if variable.proxy is not new}
        self._trace.scopes[-1].append(symbol.from_bsym_swap_proxies(changed, skip_output=bool(instead)))

    def _return(self, symbol: Any) -> None:
        """Returns whole tensors.

        Raises:
            CutError: if a layer's features are cut.
        """
        from fusioncache.thunder_adapter.api import tree_map

        (returned,) = symbol.args
        outputs = tree_map(self._whole, returned["output"])
        arguments = [self._values.now(value) for value in returned["flat_args"]]
        new = {**returned, "output": outputs, "flat_args": arguments}
        self._trace.scopes[-1].append(symbol.from_bsym(args=(new,)))

    def _whole(self, value: Any) -> Any:
        cut = self._values.cut_of(value)
        if cut is None:
            return self._values.now(value)
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
    """Returns why an operation cannot be computed in parts."""
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
    """Its results are: of a linear layer each rank has some features, of an embedding some of the vocabulary."""
    ROW = "row"
    """What it takes is; ranks add up what it gives."""
    GATHERED = "gathered"
    """As a column layer, and each rank gets all of its result."""


@dataclass(frozen=True, slots=True)
class CutParameter:
    """A parameter that is cut.

    Attributes:
        layer: the name of the module that it is of.
        role: of that module.
        dim: the dimension along which it is cut.
        shape: of all of it.
    """

    layer: str
    role: Role
    dim: int
    shape: Shape

    def part(self, ranks: int) -> Shape:
        """Returns the shape of what one rank has."""
        return take_part(self.shape, self.dim, ranks)


def find_cut_parameters(model: Any, roles: Mapping[Role, Sequence[str]], ranks: int) -> Mapping[str, CutParameter]:
    """Returns the parameters that are cut, by their names; one that has several, under each.

    Args:
        model: a module.
        roles: patterns of names of modules for each role, as in ``"*.mlp.gate"``.
        ranks: how many there are.

    Raises:
        CutError: if a pattern fits no module, or a layer cannot be cut in this way.
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
    """Raises where a parameter of several names is cut under one of them only, or in two ways."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for shared in names.values():
        cuts = {found[name].dim if name in found else None for name in shared}
        if len(cuts) > 1:
            raise CutError(f"{' and '.join(shared)} are one parameter, which cannot be cut in two ways")


class TensorParallelTransform(Transform):
    """Has each rank keep its parts of a model's layers, and compute with these.

    Args:
        group: the process group whose ranks share the model.
        parameters: those that are cut, by name.
        of_rows: whether the residual stream is cut along its sequence between these layers.
        origin: the rank of the group whose parameters all take; None: each takes its own.
        release: whether the module that was given lets go of whole parameters of which this rank keeps a part.
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
        # A program that another process made names these.
        register_rank_symbols()
        self._origin = origin
        self._release = release

    def cache_key(self) -> str:
        """Returns what programs depend on that this transform takes part in: which layers are cut, and how.

        Its group is in their keys by itself, and which rank this is in no program.
        """
        cut = (
            f"{name}={parameter.role} {parameter.dim} {parameter.shape}" for name, parameter in self.parameters.items()
        )
        return f"of_rows={self.of_rows} {' '.join(sorted(cut))}"

    def transform_module(self, model: Any) -> None:
        """Thunder's hook: called with its module before anything is traced, which takes parts for parameters."""
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
        """Returns what this rank keeps of a parameter or a buffer: itself if that is all of it, and its own."""
        from torch.distributed import broadcast, get_global_rank

        moved = tensor
        if self._origin is not None:
            moved = tensor.clone(memory_format=torch.contiguous_format)
            broadcast(moved, get_global_rank(self.process_group, self._origin), self.process_group)
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
        """Thunder's hook: called with whole parameters, of which it takes this rank's parts."""
        return self._exchange_parts(submodule_name, state_dict, self._cut)

    def reverse_transform_state_dict_for_submodule(
        self, model: Any, submodule_name: str, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """Thunder's hook: called with this rank's parts, of which it returns whole parameters."""
        return self._exchange_parts(submodule_name, state_dict, self._join)

    def _exchange_parts(
        self, submodule: str, tensors: dict[str, Any], exchange: Callable[[Any, int], Any]
    ) -> dict[str, Any]:
        """Returns the tensors of a submodule, with others for those that are cut, along the dimension of the cut."""
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
        """Thunder's hook: called with what the model does as one process would, and returns what each rank does.

        Raises:
            CutError: if what the model does cannot be cut in the way that was asked for.
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
        """Has the prologue expect parts."""
        ranks = self.process_group.size()
        for symbol in trace.bound_symbols:
            if symbol.sym is not prims.check_tensor_shape_and_metadata or symbol.args[0].name not in checked:
                continue
            proxy, _, *others = symbol.args
            parameter = self.parameters.get(checked[proxy.name])
            if parameter is not None:
                symbol.args = (proxy, parameter.part(ranks), *others)


def _release_whole(module: Any, parameters: Iterable[str]) -> None:
    """Puts parameters without memory, which Thunder traces as if they lay where they did, into a module."""
    for name in parameters:
        owner, _, own = name.rpartition(".")
        whole = module.get_parameter(name)
        empty = torch.nn.Parameter(whole.to("meta"), requires_grad=whole.requires_grad)
        empty._thunder_device = whole.device
        module.get_submodule(owner).register_parameter(own, empty)


def _unpacked(trace: Any) -> list[Any]:
    """Returns the bound symbols of a prologue that take a model's parameters and buffers."""
    return [symbol for symbol in trace.bound_symbols if symbol.sym in (prims.unpack_parameter, prims.unpack_buffer)]


def _check_alone() -> None:
    """Raises if Thunder shares the model in another way as well: the ranks of its groups have different parameters."""
    from fusioncache.thunder_adapter.api import get_compile_data

    data = get_compile_data()
    others = [type(one).__name__ for one in (data.transforms if data else ()) if _shares(one)]
    if others or getattr(data, "use_ddp", False) or getattr(data, "use_fsdp", False):
        raise CutError("a model that ranks share by tensor_parallel() cannot be shared by fsdp() or ddp() as well")


def _shares(transform: Any) -> bool:
    module = type(transform).__module__
    return module.startswith("thunder.distributed.")
