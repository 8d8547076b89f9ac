"""The ingredient that names settings: what of torch's state and of the process's variables changes what is compiled.

A region's text does not say all that becomes of it: where both branches of a ``where`` are numbers, torch gives the
result its default dtype, whatever Thunder said. So what a translator or a compiler reads besides the region is written
down, one name and value a line. Too much in the list costs a compile after a change; too little would be a wrong model.

Left out is what nothing reads while a region is compiled: gradients and autocast are off then, as they are around all
that Thunder runs. Functions of torch that somebody replaced are not seen here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import Any

SETTINGS = "settings"
"""The name of the ingredient."""


def torch_settings() -> list[str]:
    """What every backend depends on: defaults of torch, its precisions, and whether it has to be deterministic."""
    import torch

    matmul, cudnn, mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    asked: dict[str, Callable[[], Any]] = {
        "torch.default_dtype": torch.get_default_dtype,
        "torch.default_device": torch.get_default_device,
        "torch.deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "torch.deterministic_algorithms.warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "torch.fill_uninitialized_memory": torch._C._get_deterministic_fill_uninitialized_memory,
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision,
        "torch.backends.fp32_precision": lambda: torch.backends.fp32_precision,
        "torch.backends.cuda.matmul.fp32_precision": lambda: matmul.fp32_precision,
        "torch.backends.cuda.matmul.fp16_reduction": lambda: matmul.allow_fp16_reduced_precision_reduction,
        "torch.backends.cuda.matmul.bf16_reduction": lambda: matmul.allow_bf16_reduced_precision_reduction,
        "torch.backends.cuda.matmul.fp16_accumulation": lambda: matmul.allow_fp16_accumulation,
        "torch.backends.cudnn": lambda: (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "torch.backends.cudnn.fp32_precision": lambda: (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision),
        "torch.backends.mkldnn": lambda: (mkldnn.enabled, mkldnn.deterministic),
        "torch.backends.mkldnn.fp32_precision": lambda: (mkldnn.matmul.fp32_precision, mkldnn.conv.fp32_precision),
    }
    return [f"{name} {_answer(question)}" for name, question in asked.items()]


def variables(prefixes: tuple[str, ...], names: Collection[str], but: tuple[str, ...]) -> Iterator[str]:
    """The process's environment variables that a compiler reads, in order, each with its value.

    Args:
        prefixes: what their names begin with.
        names: of others.
        but: what names begin with that say no more than where something is put, printed or asked for.
    """
    for name in sorted(os.environ):
        if (name.startswith(prefixes) or name in names) and not name.startswith(but):
            yield f"{name} {os.environ[name]!r}"


def _answer(question: Callable[[], Any]) -> str:
    try:
        return str(question()).replace("\n", " ")
    except (RuntimeError, AttributeError) as error:  # mixed with another way to set the same, or another torch
        return f"no answer: {type(error).__name__}"
