"""Why Thunder made no region of a model, and what to do."""

from __future__ import annotations

from importlib.util import find_spec

from fusioncache.backends.registry import problem
from fusioncache.provenance.compilation import Compilation

_PASS = "pass executors=fusioncache.executors() to Thunder"
_INSTALL = 'install it with pip install "fusioncache[nvfuser]"'


def why_unfused(compilation: Compilation) -> str | None:
    """What to say of a trace without a region; None if the executors are as they should be, or not known.

    Nothing is done about it here: other executors compute other bits, and take their time to compile.
    """
    if compilation.fuses is not False:
        return None
    reason, advice = _problem()
    return f"Thunder fuses nothing, so there is nothing to share: {reason}. To change that, {advice}"


def _problem() -> tuple[str, str]:
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device, and nvFuser needs one", _PASS
    if find_spec("nvfuser_direct") is None:
        return "nvFuser is not installed", f"{_INSTALL}, or {_PASS}"
    said = problem("nvfuser", "cuda")
    if said is None:
        return "none of the executors that Thunder was given fuses", _PASS
    return f"nvFuser does not work here, {said}", f"{_INSTALL}, or {_PASS}"
