"""What the keys of a program at several sizes have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fusioncache.ir import Key
from fusioncache.ir.key_text import read_values, write_key, write_values
from fusioncache.program.describe import escape_name

if TYPE_CHECKING:
    import torch


def write_form(key: Key, tensors: Mapping[int | str, torch.Tensor]) -> str:
    """Returns the text of a key without the sizes of arguments. It says how many dimensions each has.

    Args:
        key: of a program.
        tensors: the arguments that are tensors by themselves, by their place. Those that are not contiguous keep
            their sizes.
    """
    values = read_values(key.texts["arguments"])
    for place, tensor in tensors.items():
        name = f"args.{place}" if isinstance(place, int) else f"kwargs.{escape_name(place)}"
        sizes, text = f" {tuple(tensor.shape)} {tensor.stride()} ", values.get(name, "")
        if tensor.is_contiguous() and text.count(sizes) == 1:
            values[name] = text.replace(sizes, f" contiguous, {tensor.dim()} dimensions ")
    return write_key({**key.texts, "arguments": write_values(values.items())})
