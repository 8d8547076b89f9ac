"""Imports for a process that only compiles: Thunder's translators, nvFuser, and the parts of torch that these use.

A complete import takes twice as long. The result does not differ from ``import thunder``: the translators are the same
functions. Modules of torch that import slowly and that no compile uses are loaded late: when one of their attributes is
requested.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_LATE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("torch._meta_registrations", "torch.export", "torch.distributions", "torch.nested"), ()),
    **dict.fromkeys(("torch.optim", "torch.quantization", "torch.nn.intrinsic"), ()),
    "torch._refs": ("prod",),
}
"""Modules of torch that are loaded late, which saves a third of torch's import. For each one, the functions that an
import passes on without calling them. The first one registers functions of meta tensors, which no compile uses."""


class LazyModule(ModuleType):
    """A module that is loaded when an attribute is requested that it lacks so far.

    ``importlib.util.LazyLoader`` would load a module as soon as it is imported a second time.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _LATE[self.__name__]:
            return self._pass_on(name)
        self._load()
        return getattr(self, name)

    def _load(self) -> None:
        self.__class__ = ModuleType  # type: ignore[assignment]  # it behaves as any other module from now on
        lazy: Any = self.__loader__
        self.__spec__, self.__loader__ = lazy.found, lazy.found.loader
        lazy.found.loader.exec_module(self)

    def _pass_on(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if type(self) is LazyModule:
                self._load()
            return getattr(self, name)(*args, **kwargs)

        return call


class _LazyLoader(Loader):
    """Makes a ``LazyModule`` of the module whose spec was found. It has a loader."""

    def __init__(self, found: ModuleSpec):
        self.found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module is loaded later."""


class _LazyFinder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if name in _LATE else None
        if found is None or found.loader is None:
            return None
        lazy = ModuleSpec(name, _LazyLoader(found), origin=found.origin)
        lazy.submodule_search_locations = found.submodule_search_locations
        return lazy


def import_torch() -> None:
    """Imports torch, with modules that are loaded late, unless it is already imported."""
    if "torch" in sys.modules:
        return
    finder = _LazyFinder()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("torch")
        importlib.import_module("torch._refs")  # now, because one of the late modules imports it
    finally:
        sys.meta_path.remove(finder)


_PLACEHOLDERS: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.tensor": ("DTensor",),
    "torch.distributed.tensor.placement_types": ("Placement", "Replicate", "Shard"),
    "networkx": (),
}
"""Modules that take seconds to import and that no definition uses: distributed tensors, which are not inputs here, and
the graphs of Thunder's passes. For each one, the classes that are imported by name."""


def import_translators() -> None:
    """Imports the translators for this process, which is of little use for anything else from then on.

    Raises:
        ImportError: if Thunder or nvFuser is not installed, or they do not import in this way. Then the attempt leaves
            no modules behind.
    """
    from unittest.mock import patch

    if "thunder" in sys.modules or "nvfuser_direct" in sys.modules:
        return
    import_torch()
    import torch

    before = set(sys.modules)
    try:
        # Thunder omits its support for distributed tensors then: regions with them are not compiled here.
        with pretend_gpu(), patch.object(torch.distributed, "is_available", lambda: False):
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
    """Makes Thunder a package whose modules can be imported one by one, without running its ``__init__.py``."""
    spec = find_spec("thunder")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("there is no module thunder")
    package: Any = ModuleType("thunder", "Parts of Thunder, put here by fusioncache.")
    package.__path__, package.__spec__ = spec.submodule_search_locations, spec
    sys.modules["thunder"] = package
    package.__version__ = importlib.import_module("thunder.__about__").__version__


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """Makes Thunder's translators importable where there is no GPU, or none may be opened.

    The only fact from here that the imported modules store is that there is a GPU.
    """
    from unittest.mock import patch

    import torch

    one_gpu: dict[str, Any] = {"is_available": lambda: True, "device_count": lambda: 1}
    with (
        patch.multiple(torch.cuda, **one_gpu, get_device_capability=lambda *_: (9, 0)),
        # A call of the original opens a GPU, and Thunder makes one to find out whether it works.
        patch.object(torch.cuda.graphs, "is_current_stream_capturing", lambda: False),
    ):
        yield
