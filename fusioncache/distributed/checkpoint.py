"""What ``torch.distributed.checkpoint`` saves and loads of a model that ranks share, and of its optimizer.

Thunder's ``thunder.distributed.checkpoint`` saves parameters with the rows that pad them, so that no other number of
ranks can load them, and leaves out the second name of tied ones. Its ``state_dict`` has bare shards, of which each rank
would save its own under one name. Here all have the names and the shapes of the module that was shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fusioncache.distributed.shards import Shards, find_shards


def state_dict(model: Any) -> dict[str, Any]:
    """Returns a model's parameters and buffers, with the names and shapes of the module that was shared.

    They lie in the memory of the model: what loads into them, as ``torch.distributed.checkpoint.load`` does, changes
    it. Shards are ``DTensor``s, so that any number of ranks, FSDP2 or a single process can load what was saved::

        torch.distributed.checkpoint.save(fusioncache.distributed.state_dict(model), checkpoint_id=folder)
        torch.distributed.checkpoint.load(fusioncache.distributed.state_dict(model), checkpoint_id=folder)

    Args:
        model: what ``fsdp``, ``ddp`` or ``tensor_parallel`` returned.
    """
    wholes = _Wholes(find_shards(model))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
    return {name: wholes.of(name, parameter) for name, parameter in parameters.items()} | buffers


def optimizer_state_dict(model: Any, optimizer: Any) -> dict[str, Any]:
    """Returns the tensors that an optimizer keeps of a model's parameters, as in ``exp_avg.head.weight``.

    They lie in the optimizer's memory, as those of ``state_dict`` do in the model's. What an optimizer that took no
    step would not have yet is made, by a step without gradients. Options, such as learning rates, are not among these.

    Args:
        model: what ``fsdp``, ``ddp`` or ``tensor_parallel`` returned.
        optimizer: of its parameters.
    """
    _fill(optimizer)
    return dict(_name_state(_Wholes(find_shards(model)), model, optimizer))


def _name_state(wholes: _Wholes, model: Any, optimizer: Any) -> Iterator[tuple[str, Any]]:
    import torch

    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                shares = value.dim() > 0 and value.shape == parameter.shape
                yield f"{key}.{name}", wholes.of(name, value) if shares else value


class _Wholes:
    """Gives a shard the shape of what it is a part of, in its memory.

    Args:
        shards: how parameters are shared; None: each rank keeps them whole.
    """

    def __init__(self, shards: Shards | None):
        self._shards = shards
        self._mesh = None if shards is None else _make_mesh(shards.group)

    def of(self, name: str, value: Any) -> Any:
        """Returns a parameter, or what an optimizer keeps of it.

        Args:
            name: of the parameter.
            value: what this rank keeps of it: the part that ``DTensor`` gives this rank, too, and then padding.
        """
        import torch
        from torch.distributed.tensor import DTensor, Shard

        value = value.detach()
        if self._shards is None or name not in self._shards.shapes:
            return value
        shape, dim = torch.Size(self._shards.shapes[name]), self._shards.dims[name]
        local = value.narrow(dim, 0, self._shards.measure(name, value.shape[dim]))
        strides = tuple(local.stride()) if dim == 0 else torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local, self._mesh, [Shard(dim)], run_check=False, shape=shape, stride=strides)


def _make_mesh(group: Any) -> Any:
    from torch.distributed import get_backend
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(group, "cuda" if get_backend(group) == "nccl" else "cpu")


def _fill(optimizer: Any) -> None:
    """Has an optimizer that took no step make what it keeps. Nothing else changes: gradients and rates are zero."""
    import torch

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
