"""Imports Thunder's translators to nvFuser and little else, and opens no GPU, for a process that only compiles.

The whole of both takes twice as long: Thunder's interpreter, what that knows of all of torch, distributed tensors. Of
what is imported here nothing differs from what ``import thunder`` gives: the translators are the same functions.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_PLACEHOLDERS: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.tensor": ("DTensor",),
    "torch.distributed.tensor.placement_types": ("Placement", "Replicate", "Shard"),
    "networkx": (),
}
"""Modules that take seconds to import and of which no definition has anything: distributed tensors, which are no inputs
here, and the graphs of Thunder's passes. Of each the classes that are asked for by name."""


def import_translators() -> None:
    """Imports the translators for this process, which is of little use for anything else from then on.

    Raises:
        ImportError: if Thunder or nvFuser is not installed, or they do not import in this way. Then nothing is left of
            the attempt.
    """
    if "thunder" in sys.modules or "nvfuser_direct" in sys.modules:
        return
    before = set(sys.modules)
    try:
        with pretend_gpu(), _without_distributed():
            _add_placeholders()
            _add_bare_package()
            importlib.import_module("thunder.executors.nvfuserex")  # first: each of the two imports the other
            importlib.import_module("thunder.executors.nvfuserex_impl")
    except Exception as error:
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("thunder", "nvfuser_direct", "nvfuser") or name in _PLACEHOLDERS:
                del sys.modules[name]
        raise ImportError(f"the translators do not import by themselves: {error!r}") from error


def _add_placeholders() -> None:
    for name, classes in _PLACEHOLDERS.items():
        module: Any = ModuleType(name, "Nothing, put here by fusioncache.")
        module.__path__ = []
        for class_ in classes:
            setattr(module, class_, type(class_, (), {}))
        sys.modules.setdefault(name, module)


def _add_bare_package() -> None:
    """Makes Thunder a package whose modules can be imported one by one, without those that its own start imports."""
    spec = find_spec("thunder")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("there is no module thunder")
    package: Any = ModuleType("thunder", "Parts of Thunder, put here by fusioncache.")
    package.__path__, package.__spec__ = spec.submodule_search_locations, spec
    sys.modules["thunder"] = package
    package.__version__ = importlib.import_module("thunder.__about__").__version__


@contextmanager
def _without_distributed() -> Iterator[None]:
    """Has Thunder leave out what it has for distributed tensors: regions with such never get here."""
    from unittest.mock import patch

    import torch

    with patch.object(torch.distributed, "is_available", lambda: False):
        yield


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """Lets Thunder's translators be imported where there is no GPU, or where none is to be opened.

    What is imported keeps nothing of what it is told here but that there is one.
    """
    from unittest.mock import patch

    import torch

    one_gpu: dict[str, Any] = {"is_available": lambda: True, "device_count": lambda: 1}
    with (
        patch.multiple(torch.cuda, **one_gpu, get_device_capability=lambda *_: (9, 0)),
        # To be asked opens a GPU, and Thunder asks to find out whether it can.
        patch.object(torch.cuda.graphs, "is_current_stream_capturing", lambda: False),
    ):
        yield
