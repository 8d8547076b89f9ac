"""Puts the shorter way through a call into the place of Thunder's, where that is the one that it was written for."""

from __future__ import annotations

import logging
from typing import Any

from fusioncache.accelerators.steps.forward import Order, make_forward
from fusioncache.thunder_adapter.installation import is_known_whole
from fusioncache.transform.dynamo_frames import OWN_CALL

logger = logging.getLogger("fusioncache")


def shorten_calls(module: Any, order: Order) -> bool:
    """Shortens the calls of one of Thunder's modules; returns whether they are shortened. Never raises.

    Args:
        module: that ``thunder.jit`` makes at this moment.
        order: in which Thunder tries its entries.
    """
    try:
        if not _can_shorten(module):
            return False
        module._forward_fn = make_forward(module._forward_fn, module._lc_cd, module._lc_cs, order)
    except Exception as error:  # whatever it is, Thunder's own way is there
        logger.info("calls stay as long as Thunder's are", exc_info=error)
        return False
    return True


def _can_shorten(module: Any) -> bool:
    from fusioncache.thunder_adapter.api import CACHE_OPTIONS, ThunderModule

    compiled, model = module._lc_cd, module._model
    if type(module) is not ThunderModule or not is_known_whole("short calls"):
        return False
    is_own = module._forward_fn.__code__.co_qualname == OWN_CALL
    is_split = not compiled.compile_options.get("thunderfx_disable_split_autograd", False)
    flags = ("use_ddp", "use_fsdp")
    return (
        is_own
        and is_split
        and compiled.cache_option is CACHE_OPTIONS.CONSTANT_VALUES
        and compiled.compile_options.get("is_differentiable_outputs") is None
        and not any(hasattr(type(model), flag) for flag in flags)  # they are looked for in the model's own dictionary
    )
