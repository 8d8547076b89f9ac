"""TorchInductor's code, compiled as ``Inductor`` compiles it, bit for bit, and given as bytes as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusioncache.backends.api import Backend, Compiled, NotPersistable, NotPersistableNow, Run
from fusioncache.backends.inductor.admission import for_plain, refuse_unkeepable
from fusioncache.backends.inductor.language import checked, defined
from fusioncache.backends.inductor.libraries import loaded
from fusioncache.backends.inductor.package import package
from fusioncache.backends.inductor.signature import artifacts_of, contents, read_signature, refuse_unfitting
from fusioncache.ir import Graph


def persist(backend: Backend, graph: Graph, args: Sequence[Any], mode: str | None) -> Compiled:
    """Compiles a graph and gives the artifacts to load it from, or the reason why there are none.

    Raises:
        Exception: whatever ``backend`` raises, which compiles where code cannot be persisted.
    """
    try:
        run, artifacts = _compile(backend, graph, args, mode)
        return Compiled(run, artifacts, None)
    except NotPersistable as refusal:
        reason, lasting = str(refusal), not isinstance(refusal, NotPersistableNow)
    except Exception as error:  # a region that fails here may well work with torch.compile
        reason, lasting = f"{type(error).__name__} where its code is to be kept", False
    return Compiled(backend.compile(graph, args), None, reason, lasting)


def load(
    backend: Backend, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any], scratch: Path | None
) -> Run:
    """Makes the function of artifacts. Nothing is compiled, nothing is run.

    Raises:
        ValueError: if they are none of this format, or not for this graph and arguments of this layout.
        OSError: if there is no room for temporary files.
    """
    signature = read_signature(artifacts)
    refuse_unfitting(signature, graph, args)
    wrapper, libraries = contents(artifacts, signature)
    try:
        run = defined(checked(wrapper.decode(), libraries), loaded(libraries, scratch))
    except ImportError as error:
        raise ValueError(f"a kernel that does not load: {error}") from error
    return for_plain(run, args, lambda args: backend.compile(graph, args))


def _compile(backend: Backend, graph: Graph, args: Sequence[Any], mode: str | None) -> tuple[Run, Mapping[str, bytes]]:
    from fusioncache.backends.bound_symbols import bind
    from fusioncache.backends.torch_function import torch_function

    refuse_unkeepable(graph, args)
    bound = bind(graph)
    function = torch_function(bound.bound_symbols, bound.inputs, bound.outputs)
    made = package(function, args, mode)
    if made.outputs != len(graph.outputs):
        raise NotPersistable("outputs of TorchInductor's own")
    run = defined(made.code, made.kernels)
    run(args)  # what cannot run shows here
    artifacts = artifacts_of(made.wrapper, made.libraries, made.source, made.outputs, args)
    return for_plain(run, args, lambda args: backend.compile(graph, args)), artifacts
