"""Keeps what TorchInductor compiles: see ``Keeper`` in ``cache/persistence.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fusioncache.backends.api import Compiled, NotPersistable, NotPersistableNow, Run
from fusioncache.backends.inductor import machine as ingredients
from fusioncache.backends.inductor.admission import for_plain, refuse_unkeepable
from fusioncache.backends.inductor.language import checked, defined
from fusioncache.backends.inductor.libraries import loaded
from fusioncache.backends.inductor.package import package
from fusioncache.backends.inductor.signature import artifacts_of, contents, read_signature, refuse_unfitting
from fusioncache.ir import Graph


class Compiler(Protocol):
    """TorchInductor, as ``backends/inductor/backend.py`` has it."""

    mode: str | None

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """A function for arguments of this layout."""


class InductorKeeper:
    """Compiles as ``Inductor`` does, bit for bit, and gives the code as bytes as well.

    Args:
        backend: whose code to keep.
        scratch: where libraries lie for the moment of being loaded; the system's directory for temporary files if None.
            It must be on a file system that code may be run from.
    """

    def __init__(self, backend: Compiler, scratch: Path | None = None):
        self._backend = backend
        self._scratch = scratch

    def environment(self) -> Mapping[str, str]:
        """What kept code depends on beyond ``Inductor.environment``: ingredients of a key, by name."""
        return ingredients.environment()

    def compile(self, graph: Graph, args: Sequence[Any]) -> Compiled:
        """The compiled graph and the artifacts to load it from, or the reason why there are none.

        Raises:
            Whatever ``Inductor.compile`` raises, which is asked where code cannot be kept.
        """
        try:
            run, artifacts = self._kept(graph, args)
            return Compiled(run, artifacts, None)
        except NotPersistable as refusal:
            reason, lasting = str(refusal), not isinstance(refusal, NotPersistableNow)
        except Exception as error:  # a region that fails here may well work with torch.compile
            reason, lasting = f"{type(error).__name__} where its code is to be kept", False
        return Compiled(self._backend.compile(graph, args), None, reason, lasting)

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """The function that was kept as these artifacts. Nothing is compiled, nothing is run.

        Raises:
            ValueError: if they are none of this format, or not for this graph and arguments of this layout.
            OSError: if there is no room for temporary files.
        """
        signature = read_signature(artifacts)
        refuse_unfitting(signature, graph, args)
        wrapper, libraries = contents(artifacts, signature)
        try:
            run = defined(checked(wrapper.decode(), libraries), loaded(libraries, self._scratch))
        except ImportError as error:
            raise ValueError(f"a kernel that does not load: {error}") from error
        return self._for_plain(run, graph, args)

    def _kept(self, graph: Graph, args: Sequence[Any]) -> tuple[Run, Mapping[str, bytes]]:
        from fusioncache.backends.bound_symbols import bind
        from fusioncache.backends.torch_function import torch_function

        refuse_unkeepable(graph, args)
        bound = bind(graph)
        function = torch_function(bound.bound_symbols, bound.inputs, bound.outputs)
        made = package(function, args, self._backend.mode)
        if made.outputs != len(graph.outputs):
            raise NotPersistable("outputs of TorchInductor's own")
        run = defined(made.code, made.kernels)
        run(args)  # what cannot run shows here
        artifacts = artifacts_of(made.wrapper, made.libraries, made.source, made.outputs, args)
        return self._for_plain(run, graph, args), artifacts

    def _for_plain(self, run: Run, graph: Graph, args: Sequence[Any]) -> Run:
        return for_plain(run, args, lambda args: self._backend.compile(graph, args))
