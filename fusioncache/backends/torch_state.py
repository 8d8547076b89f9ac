"""What torch says of its devices at this moment: a capture, a device that is full, a device that is lost."""

from __future__ import annotations


def is_capturing() -> bool:
    """True if a CUDA graph is captured on the current stream."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_out_of_memory(error: Exception) -> bool:
    """True if a device has no memory left, which says nothing of what was computed."""
    import torch

    return isinstance(error, torch.OutOfMemoryError)


def is_device_lost() -> bool:
    """True if CUDA fails whatever is asked of it, as behind an illegal access: nothing can run then."""
    import torch

    if not torch.cuda.is_initialized() or is_capturing():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
