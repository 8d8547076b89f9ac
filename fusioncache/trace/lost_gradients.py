"""Where Thunder 0.2.6 silently trains on less than it was given: ``no_sync()`` under ``fsdp``."""

from __future__ import annotations

from fusioncache.process.warning import warn_once

_LOST = (
    "under Thunder's fsdp, what runs inside of no_sync() leaves no gradients at all, and the model is trained on the "
    "other batches alone; leave no_sync() out, and gradients of several batches add up"
)


def warn_of_lost_gradients() -> None:
    """Warns once if the model that Thunder compiles now is shared by ``fsdp``, and runs inside of ``no_sync()``.

    Thunder's backward function then returns None for all gradients. Once a pass stashed them first; now none does.
    """
    from thunder.core.compile_data import get_compile_data
    from thunder.distributed import get_skip_data_parallel_grad_sync

    if get_skip_data_parallel_grad_sync() and getattr(get_compile_data(), "use_fsdp", False):
        warn_once(_LOST)
