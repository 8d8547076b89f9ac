"""The nodes of autograd's graph that stand for a program: the same as Thunder's, with less around them.

Thunder has two, so that no code holds the gradients of outputs while backward computes: that of the outputs leaves
them in a channel, and that of the inputs takes them out and calls backward. Between them is a tensor on the device
``meta``. Thunder draws it as a random number, for which torch has 40 Python functions there; here it is an empty one.
What is saved, when it is checked and when it is let go of is as with Thunder: a saved tensor that was changed in place
raises, a second backward through what was freed raises, and what ``create_graph`` differentiates once raises at twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import Function, once_differentiable

Backward = Callable[[list[Any], list[Any]], Sequence[Any]]
"""Takes the tensors that were saved with what else was saved, and the gradients of outputs, and empties these lists."""

_unwrap: Any = torch._C._functorch.unwrap_if_dead
_is_grad_enabled, _set_grad_enabled = torch.is_grad_enabled, torch._C._set_grad_enabled
_is_autocast_enabled = torch.is_autocast_enabled


class Channel:
    """What the two nodes of one call tell each other, past autograd.

    Args:
        backward: as Thunder made it.
        inner: the same without what is around it; None if there is no such.
        others: what was saved beside tensors.
        hides: whether gradients go another way than through autograd, as in FSDP without synchronization.
    """

    __slots__ = ("backward", "gradients", "hides", "inner", "others", "saved")

    def __init__(self, backward: Backward, inner: Backward | None, others: Any, *, hides: bool = False):
        self.backward = backward
        self.inner = inner
        self.others = others
        self.hides = hides
        self.saved: list[Any] | None = None
        self.gradients: list[Any] | None = None

    def run(self) -> Sequence[Any]:
        """Returns the gradients of the inputs, computed from what the node of the outputs has left here."""
        saved, gradients = self.saved, self.gradients
        assert saved is not None and gradients is not None
        self.saved = self.gradients = None
        plain = self.inner is not None and not (_is_grad_enabled() or _is_autocast_on())
        run: Any = self.inner if plain else self.backward
        computed: Sequence[Any] = run([saved, self.others], gradients)
        assert not gradients
        assert not saved, "the program's backward holds on to what was saved"
        return (None,) * len(computed) if self.hides else computed


class ProgramInputs(Function):
    """The node whose edges lead to the inputs of a program."""

    @staticmethod
    def forward(ctx: Any, channel: Channel, *inputs: Any) -> torch.Tensor:
        """Takes the inputs, for autograd to know them."""
        ctx.channel = channel
        return _make_link()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Computes the gradients of the inputs."""
        if _is_grad_enabled():
            return _run_once(ctx, *gradients)
        return None, *ctx.channel.run()


@once_differentiable
def _run_once(ctx: Any, *gradients: Any) -> Any:
    return None, *ctx.channel.run()


class ProgramOutputs(Function):
    """The node that the outputs of a program come from, which has all that it saved."""

    @staticmethod
    def forward(ctx: Any, link: Any, channel: Channel, outputs: Any, saved: Sequence[Any], *inputs: Any) -> Any:
        """Gives the outputs their node."""
        ctx.channel = channel
        ctx.others = (None,) * (3 + len(inputs))
        ctx.save_for_backward(*saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Leaves the gradients of the outputs, and what was saved, to the other node."""
        channel = ctx.channel
        assert channel.saved is None, "two backward passes at a time go through one call"
        channel.saved, channel.gradients = list(ctx.saved_tensors), list(gradients)
        ctx.maybe_clear_saved_tensors()  # so that backward frees each of them once it was used
        return _make_link(), *ctx.others


# What these do beside calling torch's function in C is done in ``connect``, without a call for each argument.
_apply_inputs: Any = super(Function, ProgramInputs).apply
_apply_outputs: Any = super(Function, ProgramOutputs).apply


def connect(channel: Channel, inputs: Sequence[Any], outputs: Any, saved: Sequence[Any]) -> None:
    """Makes outputs what backward starts from.

    Args:
        channel: knows the program's backward.
        inputs: of the program.
        outputs: a tuple of what it computed; gradients can be asked for each tensor among them from now on.
        saved: tensors for backward.

    No transform of ``torch.func`` may be active.
    """
    # A view of an output that is saved would never be freed, see https://github.com/pytorch/pytorch/issues/94990.
    saved = [t.detach() if isinstance(t, torch.Tensor) and t._base is not None else t for t in saved]
    was_enabled = _is_grad_enabled()
    _set_grad_enabled(True)
    try:
        inputs = _unwrap_all(inputs)
        link = _apply_inputs(channel, *inputs)
        # An input that is returned as it is has to be known to this node as well.
        is_returned = not {id(each) for each in inputs}.isdisjoint([id(each) for each in outputs])
        _apply_outputs(link, channel, outputs, saved, *(inputs if is_returned else ()))
    finally:
        _set_grad_enabled(was_enabled)


def _unwrap_all(inputs: Sequence[Any]) -> list[Any]:
    """Returns what is in tensors of a transform of ``torch.func`` that is over, and everything else as it is."""
    try:
        return list(map(_unwrap, inputs))
    except TypeError:  # some are no tensors
        return [_unwrap(each) if isinstance(each, torch.Tensor) else each for each in inputs]


def _make_link() -> torch.Tensor:
    return torch.empty(1, dtype=torch.float32, device="meta")


def _is_autocast_on() -> bool:
    return _is_autocast_enabled("cpu") or _is_autocast_enabled("cuda")
