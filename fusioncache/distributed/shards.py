"""Shards of parameters: checkpoints with ``DTensor``s, and gradient clipping by the norm over all ranks.

Thunder's ``thunder.distributed.checkpoint`` saves parameters with their padding, so that no other number of ranks can
load them, and omits the second name of tied parameters. Its ``state_dict`` has plain shards, so that each rank would
save a different tensor under one name. Here all tensors have the names and shapes of the original module.

``torch.nn.utils.clip_grad_norm_`` uses only this rank's shards: each rank would clip by a different norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fusioncache.thunder_adapter.api import ThunderModule


@dataclass(frozen=True, slots=True)
class Shards:
    """How a model's parameters are sharded.

    Attributes:
        group: the process group whose ranks share them.
        shapes: the whole shape of each sharded parameter, by name.
        dims: the dimension along which each of these is cut, by name.
    """

    group: Any
    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, int]

    def measure(self, name: str, padded: int) -> int:
        """Returns the length of this rank's shard without padding, along the dimension of the cut.

        Thunder pads a parameter if the number of ranks does not divide its rows.

        Args:
            name: of the parameter.
            padded: the length of each shard with padding.
        """
        return max(0, min(padded, self.shapes[name][self.dims[name]] - int(self.group.rank()) * padded))


def find_shards(model: Any) -> Shards | None:
    """Returns how a model's parameters are sharded; None if each rank has the whole model.

    Args:
        model: the result of ``fsdp``, ``ddp`` or ``tensor_parallel``.

    Raises:
        TypeError: if it is not a module that Thunder compiled.
    """
    from fusioncache.distributed.cut_layers import TensorParallelTransform
    from fusioncache.thunder_adapter.accelerator_api import FSDPTransform

    if not isinstance(model, ThunderModule):
        raise TypeError(f"not a model that fsdp(), ddp() or tensor_parallel() returned: {type(model).__name__}")
    for transform in model._lc_transforms:
        if isinstance(transform, FSDPTransform):
            shapes = {name: tuple(whole) for name, (whole, *_) in transform.sharded_params.items()}
            return Shards(transform.process_group, shapes, dict.fromkeys(shapes, 0))
        if isinstance(transform, TensorParallelTransform):
            cut = transform.parameters
            shapes = {name: parameter.shape for name, parameter in cut.items()}
            return Shards(transform.process_group, shapes, {name: parameter.dim for name, parameter in cut.items()})
    return None


def state_dict(model: Any) -> dict[str, Any]:
    """Returns a model's parameters and buffers, with the names and shapes of the original module.

    They alias the model's memory, so that loading into them changes the model, as ``torch.distributed.checkpoint.load``
    does. Shards are ``DTensor``s, so that any number of ranks, FSDP2 or a single process can load the checkpoint::

        torch.distributed.checkpoint.save(fusioncache.distributed.state_dict(model), checkpoint_id=folder)
        torch.distributed.checkpoint.load(fusioncache.distributed.state_dict(model), checkpoint_id=folder)

    Args:
        model: the result of ``fsdp``, ``ddp`` or ``tensor_parallel``.
    """
    wholes = _Wholes(find_shards(model))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
    return {name: wholes.of(name, parameter) for name, parameter in parameters.items()} | buffers


def optimizer_state_dict(model: Any, optimizer: Any) -> dict[str, Any]:
    """Returns an optimizer's state tensors of a model's parameters, under names such as ``exp_avg.head.weight``.

    They alias the optimizer's memory, as the tensors of ``state_dict`` alias the model's. If the optimizer took no step
    yet, its state is first made by a step with zero gradients. Options, such as learning rates, are not included.

    Args:
        model: the result of ``fsdp``, ``ddp`` or ``tensor_parallel``.
        optimizer: of its parameters.
    """
    _fill(optimizer)
    return dict(_name_state(_Wholes(find_shards(model)), model, optimizer))


def _name_state(wholes: _Wholes, model: Any, optimizer: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                shares = value.dim() > 0 and value.shape == parameter.shape
                yield f"{key}.{name}", wholes.of(name, value) if shares else value


class _Wholes:
    """Wraps shards in ``DTensor``s of the whole shape, which alias their memory.

    Args:
        shards: how parameters are sharded; None: each rank has them whole.
    """

    def __init__(self, shards: Shards | None):
        self._shards = shards
        self._mesh = None if shards is None else _make_mesh(shards.group)

    def of(self, name: str, value: Any) -> Any:
        """Returns the ``DTensor`` of a parameter or its optimizer state; the tensor if not sharded.

        Args:
            name: of the parameter.
            value: this rank's shard: the part that ``DTensor`` assigns to this rank as well, followed by padding.
        """
        from torch.distributed.tensor import DTensor, Shard

        value = value.detach()
        if self._shards is None or name not in self._shards.shapes:
            return value
        shape, dim = torch.Size(self._shards.shapes[name]), self._shards.dims[name]
        local = value.narrow(dim, 0, self._shards.measure(name, value.shape[dim]))
        strides = tuple(local.stride()) if dim == 0 else torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local, self._mesh, [Shard(dim)], run_check=False, shape=shape, stride=strides)


def _make_mesh(group: Any) -> Any:
    kind = "cuda" if torch.distributed.get_backend(group) == "nccl" else "cpu"
    return torch.distributed.DeviceMesh.from_group(group, kind)


def _fill(optimizer: Any) -> None:
    """Makes the state of an optimizer that took no step, by a step with zero gradients and rates. Restores these."""
    if optimizer.state:
        return
    rates = [group.get("lr") for group in optimizer.param_groups]
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    gradients = [parameter.grad for parameter in parameters]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def clip_grad_norm_(model: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    """Clips a model's gradients like ``torch.nn.utils.clip_grad_norm_``, but by their norm over all ranks.

    All ranks of the model must call it. Returns the norm of all gradients before clipping, the same on each rank.

    Args:
        model: the result of ``fsdp``, ``ddp`` or ``tensor_parallel``.
        max_norm: the maximum norm of the gradients afterwards.
        norm_type: the order of the norm; infinity is the maximum norm.
    """
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    parameters = dict(model.named_parameters())
    gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    shards = find_shards(model)
    cut = gradients.keys() & shards.shapes.keys() if shards else set()
    norm = get_total_norm([gradient for name, gradient in gradients.items() if name not in cut], norm_type)
    if shards is not None:
        # A whole parameter has the same gradient on each rank, and counts once.
        parts = get_total_norm([gradients[name] for name in gradients if name in cut], norm_type)
        together = _add_up(parts.to(next(iter(parameters.values())).device), norm_type, shards.group)
        norm = get_total_norm([together, norm.to(together)], norm_type) if cut < gradients.keys() else together
    clip_grads_with_norm_(parameters.values(), max_norm, norm)
    return norm


def _add_up(norm: Any, norm_type: float, group: Any) -> Any:
    """Returns the norm over all ranks, given the norm of this rank's gradients."""
    norm = norm.float()
    if norm_type == float("inf"):
        torch.distributed.all_reduce(norm, torch.distributed.ReduceOp.MAX, group)
        return norm
    powers = norm**norm_type
    torch.distributed.all_reduce(powers, torch.distributed.ReduceOp.SUM, group)
    return powers ** (1.0 / norm_type)
