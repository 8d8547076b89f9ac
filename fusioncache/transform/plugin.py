"""The plugin for ``thunder.compile``."""

from __future__ import annotations

from typing import Any

from fusioncache.accelerators.attention import NAME as ATTENTION
from fusioncache.backends.registry import problem
from fusioncache.thunder_adapter.executors_api import Plugin as ThunderPlugin
from fusioncache.thunder_adapter.executors_api import PluginPolicy
from fusioncache.transform.executors import Attention, executors
from fusioncache.transform.transform import FusionCache


class Plugin(ThunderPlugin):
    """Registers ``FusionCache`` with ``thunder.compile(model, plugins=[fusioncache.Plugin()])``.

    Where nvFuser does not work it brings fusioncache's executor as well. There Thunder's default recipe refuses to
    start: pass ``recipe=thunder.recipes.BaseRecipe(fuser="torch.compile")``.

    Args:
        attention: as for ``fusioncache.executors``.
        options: as for ``FusionCache``.

    Raises:
        ValueError: if ``attention`` is no such name.
    """

    policy = PluginPolicy.PRE

    def __init__(self, *, attention: Attention = "thunder", **options: Any):
        self._executors = executors(attention=attention)
        self.transform = FusionCache(**options)

    def setup_transforms(self) -> list[FusionCache]:
        """Returns the transform. Thunder calls this."""
        return [self.transform]

    def setup_executors(self) -> list[Any]:
        """Returns the executors that Thunder is to use besides its own. Thunder calls this."""
        if problem("nvfuser", "cuda") is not None:
            return self._executors
        return [executor for executor in self._executors if executor.name == ATTENTION]
