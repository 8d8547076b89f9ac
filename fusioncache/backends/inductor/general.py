"""TorchInductor's code for any sizes: compiled once by ``torch.compile``, whose guards say what it is right for.

A variable that is a size of an argument is read there, inside of what is compiled. Any other one, such as the product
of two sizes, is the size of an empty tensor that is given beside the arguments: as a plain number it would be a
constant, or, as a float, silently stay what it was at first (pytorch#194976).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.bound_symbols import define_source, read_shapes
from fusioncache.backends.inductor.carriers import CarriedRegion
from fusioncache.ir import Declined, Ref, Scope, Value


def layout_of_any_size(args: Sequence[Any]) -> Hashable:
    """Returns the order of the dimensions of each tensor in memory, and whether there are gaps; None for a number.

    What else code may depend on is in the guards of ``torch.compile``, and they are asked.
    """
    return tuple(_kind_of_layout(arg) if hasattr(arg, "stride") else None for arg in args)


def _kind_of_layout(tensor: Any) -> Hashable:
    dimensions = [index for index, size in enumerate(tensor.shape) if size != 1]
    order = tuple(sorted(dimensions, key=lambda index: -tensor.stride(index)))
    step = 1
    for index in reversed(order):
        if tensor.stride(index) != step:
            return order, tuple(tensor.stride(index) == 0 for index in dimensions)
        step *= tensor.shape[index]
    return order


class GeneralCode:
    """Compiles a region for any sizes, and says for which its code is right.

    Args:
        carried: the region.
        args: of one of its instances.
        values: of its variables there.
        mode: as for ``torch.compile``.

    Raises:
        Declined: if Thunder runs other sizes by other operations.
        Exception: whatever TorchInductor raises, also where it takes a size for constant.
    """

    def __init__(self, carried: CarriedRegion, args: Sequence[Any], values: Sequence[Value], mode: str | None):
        from fusioncache.backends.bound_symbols import on_each_gpu

        def make(gpu: int) -> Callable[..., Any]:
            # One function with all that is compiled: Dynamo keeps its guards by code, and only a few for each.
            source = read_shapes(carried.source(gpu), carried.places)
            return _compile(define_source(source), self._compile_graph)

        self._places = carried.places
        self._mode = mode
        self._checking: int | None = None
        self._run = on_each_gpu(carried.general.graph, args, make)
        self._run_first(carried, args, values)

    def fit(self, args: Sequence[Any], values: Sequence[Value]) -> Run:
        """Returns the function for arguments of these sizes.

        Raises:
            Declined: if the code is not for them.
        """
        run, carriers = self._run, _make_carriers(self._places, values)

        def for_these(args: Sequence[Any]) -> Sequence[Any]:
            results: Sequence[Any] = run([*map(_plain, args), *carriers])
            return results

        self._check_guards(for_these, args)
        return for_these

    def _run_first(self, carried: CarriedRegion, args: Sequence[Any], values: Sequence[Value]) -> None:
        """Compiles, with those sizes marked that vary. Sizes that are equal here need not be elsewhere."""
        from torch._dynamo import mark_dynamic
        from torch.fx.experimental import _config

        tensors, carriers = [_plain(arg) for arg in args], _make_carriers(self._places, values)
        for tensor, type_ in zip(tensors, carried.types, strict=True):
            for dimension, size in enumerate(type_.shape):
                if isinstance(size, Ref):
                    mark_dynamic(tensor, dimension)
        for carrier in carriers:
            mark_dynamic(carrier, 0)
        with _config.patch(use_duck_shape=False):
            self._run([*tensors, *carriers])

    def _check_guards(self, run: Run, args: Sequence[Any]) -> None:
        """Runs once what must not compile.

        Raises:
            Declined: if it would have to.
        """
        from torch._dynamo.exc import BackendCompilerFailed

        self._checking = threading.get_ident()
        try:
            run(args)
        except BackendCompilerFailed as error:
            raise Declined("TorchInductor's code for any sizes excludes these sizes", Scope.GENERAL) from error
        finally:
            self._checking = None

    def _compile_graph(self, graph: Any, inputs: Sequence[Any]) -> Any:
        """Compiles what Dynamo found, as its backend, unless guards are being checked on this thread."""
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        if self._checking == threading.get_ident():
            raise Declined("TorchInductor's code for any sizes excludes these sizes", Scope.GENERAL)
        return compile_fx(graph, inputs, config_patches=list_mode_options(self._mode) if self._mode else {})


def _make_carriers(places: Sequence[tuple[int, int] | None], values: Sequence[Value]) -> list[Any]:
    """Makes an empty tensor for each variable that is no size of an argument."""
    import torch

    further = [value for place, value in zip(places, values, strict=True) if place is None]
    return [torch.empty((value, 0), dtype=torch.float32, device="cpu") for value in further]  # type: ignore[list-item]


def _compile(function: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    from fusioncache.thunder_adapter.api import no_autocast

    compiled: Callable[..., Any] = torch.no_grad()(
        no_autocast(torch.compile(function, backend=backend, fullgraph=True))
    )
    return compiled


def _plain(tensor: Any) -> Any:
    """Returns a tensor that differs from others of its layout in its numbers only, so that one guard fits all.

    What is to be negated or conjugated when it is read is copied: torch.compile forgets to do so.
    """
    return tensor.detach().resolve_conj().resolve_neg()
