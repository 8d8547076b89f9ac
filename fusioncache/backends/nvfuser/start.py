"""What nvFuser costs once in a process, and whether Thunder alone finds equal regions again."""

from __future__ import annotations

import torch

from fusioncache.backends.nvfuser.definition import nvfuser_executor
from fusioncache.backends.nvfuser.lean_import import import_translators


def start() -> None:
    """Imports nvFuser, opens the GPU that is in use, and compiles the smallest kernel, unless a graph is captured.

    Raises:
        Exception: whatever nvFuser or CUDA raise.
    """
    import_translators()
    if torch.cuda.is_current_stream_capturing():
        return
    from nvfuser_direct import DataType, FusionDefinition

    with FusionDefinition() as definition:
        x = definition.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
        definition.add_output(definition.ops.neg(x))
    definition.execute([torch.ones(2, device="cuda")])


def is_found_again() -> bool:
    """Tells whether this Thunder has nvFuser's cache of definitions, in which a further equal region is found."""
    return hasattr(nvfuser_executor().create_fd, "num_fusions")
