"""Thunder's transform for tensor parallelism: parts of parameters in the model, and traces that compute with parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fusioncache.distributed.cut_values import CutValues
from fusioncache.distributed.cuts import Cut, CutError
from fusioncache.distributed.joined_symbols import register_joined_symbols
from fusioncache.distributed.joining import join_products
from fusioncache.distributed.parallel_layers import CutParameter, Role
from fusioncache.distributed.partition import partition_trace
from fusioncache.distributed.rank_symbols import register_rank_symbols
from fusioncache.thunder_adapter.api import Transform, prims


class TensorParallelTransform(Transform):
    """Has each rank keep its parts of a model's layers, and compute with these.

    Args:
        group: the process group whose ranks share the model.
        parameters: those that are cut, by name.
        of_rows: whether the residual stream is cut along its sequence between these layers.
        joins: whether its gathers and scatters are joined with the products beside them, as ranks agreed.
        report_left: is told why one is not joined all the same.
        broadcast_from: the rank of the group whose parameters all take; None: each takes its own.
        release: whether the module that was given lets go of whole parameters of which this rank keeps a part.
    """

    def __init__(
        self,
        group: Any,
        parameters: Mapping[str, CutParameter],
        *,
        of_rows: bool = False,
        joins: bool = False,
        report_left: Callable[[str], None] = lambda reason: None,
        broadcast_from: int | None = None,
        release: bool = False,
    ):
        super().__init__()
        self.process_group = group
        self.parameters = dict(parameters)
        self.of_rows = of_rows
        self.joins = joins
        self._report_left = report_left
        # A program that another process made names these.
        register_rank_symbols()
        register_joined_symbols()
        self._broadcast_from = broadcast_from
        self._release = release

    def cache_key(self) -> str:
        """Returns what programs depend on that this transform takes part in: which layers are cut, and how.

        Its group is in their keys by itself, and which rank this is in no program.
        """
        cut = (
            f"{name}={parameter.role} {parameter.dim} {parameter.shape}" for name, parameter in self.parameters.items()
        )
        return f"of_rows={self.of_rows} joins={self.joins} {' '.join(sorted(cut))}"

    def transform_module(self, model: Any) -> None:
        """Thunder's hook: called with its module before anything is traced, which takes parts for parameters."""
        import torch

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
        import torch
        from torch.distributed import broadcast, get_global_rank

        moved = tensor
        if self._broadcast_from is not None:
            moved = tensor.clone(memory_format=torch.contiguous_format)
            broadcast(moved, get_global_rank(self.process_group, self._broadcast_from), self.process_group)
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
        named = {name: f"{submodule_name}.{name}" if submodule_name else name for name in state_dict}
        return {
            name: self._cut(tensor, self.parameters[full].dim) if (full := named[name]) in self.parameters else tensor
            for name, tensor in state_dict.items()
        }

    def reverse_transform_state_dict_for_submodule(
        self, model: Any, submodule_name: str, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """Thunder's hook: called with this rank's parts, of which it returns whole parameters."""
        named = {name: f"{submodule_name}.{name}" if submodule_name else name for name in state_dict}
        return {
            name: self._join(tensor, self.parameters[full].dim) if (full := named[name]) in self.parameters else tensor
            for name, tensor in state_dict.items()
        }

    def _join(self, part: Any, dim: int) -> Any:
        import torch

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
        if self.joins:
            trace = join_products(trace, self._report_left)
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
    import torch

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
