"""Compiles every template of a store once, in one way, in a process of its own."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.processes import serve
from benchmarks.common.tensors import digest_all
from benchmarks.nvfuser_seconds.code import digest_code
from benchmarks.nvfuser_seconds.spec import Variant
from benchmarks.nvfuser_seconds.views import compile_parts
from fusioncache.accelerators.precompile.entry_compiler import make_arguments, read_request, survey
from fusioncache.backends.nvfuser import persistence
from fusioncache.backends.nvfuser.definition import Switches, compile_definition, define, describe_arguments
from fusioncache.ir import Graph
from fusioncache.store import Store

_TURNS = 2
_STEPS = ("compile_definition", "capture", "pack", "verify")
"""The functions of ``persistence`` whose seconds are told apart."""


def measure(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what was found for each template, the same order in every process."""
    variant = Variant(**options["variant"])
    switches = tuple(variant.enable), tuple(variant.disable)
    store = Store.open(Path(options["store"]))
    _pay_once(switches)
    steps = _time_steps()
    if options["dump"]:
        _write_output_to(options["dump"])
    ids = sorted(survey(store).seconds, key=lambda id_: _size(store, id_))
    if variant.way == "in turns":
        return [_take_turns(id_, read_request(store, id_).request, variant) for id_ in ids]
    return [_measure(id_, read_request(store, id_).request, variant, switches, steps) for id_ in ids]


def _size(store: Store, id_: str) -> tuple[int, str]:
    """Orders templates, the largest last, which is not the order of their digests in another version."""
    graph = read_request(store, id_).request.graph
    return len(graph.ops), repr(graph)


def _measure(id_: str, asked: Any, variant: Variant, switches: Switches, steps: dict[str, float]) -> dict[str, Any]:
    graph, args = asked.graph, make_arguments(asked.graph, asked.layouts)
    ctypes.CDLL(None).fflush(None)  # what nvFuser printed so far stands before it
    print(f"== template {id_[:8]}\n{define(graph, describe_arguments(args))!r}", flush=True)
    torch.cuda.synchronize()
    steps.clear()
    start, start_cpu = time.perf_counter(), time.process_time()
    run, read_code = _compile(graph, args, variant, switches)
    torch.cuda.synchronize()
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    names = list(dict.fromkeys(op.name.rpartition(".")[2] for op in graph.ops))
    outputs = dict(enumerate(run(make_arguments(graph, asked.layouts))))
    found = {"id": id_[:8], "operations": len(graph.ops), "names": names, "seconds": seconds, "cpu": cpu}
    found["bits"] = digest_all({f"{number} {tensor.stride()}": tensor for number, tensor in outputs.items()})[:16]
    if read_code is not None:
        code = read_code()
        found |= {"kernels": code.count("__global__"), "code": digest_code(code)}
        print(code, flush=True)
    return found | {"steps": dict(steps)}


def _take_turns(id_: str, asked: Any, variant: Variant) -> dict[str, Any]:
    """Compiles with each of the options off, and with none of them off, in turns; the least seconds count."""
    args = make_arguments(asked.graph, asked.layouts)
    seconds: dict[str, list[float]] = {}
    for _ in range(_TURNS):
        for option in ("", *variant.disable):
            # What NVRTC keeps would serve every turn but the first.
            switches = (), (*filter(None, (option,)), "nvrtc_caching")
            torch.cuda.synchronize()
            start = time.perf_counter()
            compile_definition(asked.graph, args, switches)
            torch.cuda.synchronize()
            seconds.setdefault(option, []).append(time.perf_counter() - start)
    return {"id": id_[:8], "in_turns": {option: min(found) for option, found in seconds.items()}}


def _compile(
    graph: Graph, args: Sequence[Any], variant: Variant, switches: Switches
) -> tuple[Callable[..., Sequence[Any]], Callable[[], str] | None]:
    """Returns a function, and what tells the CUDA of its kernels, if that can be told."""
    if variant.way == "persist":
        return persistence.persist(graph, args, switches).run, None
    codes: list[Callable[[], str]] = []

    def compile_graph(graph: Graph, args: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        compiled = compile_definition(graph, args, switches)
        device = args[0].get_device() if compiled.device is None else compiled.device
        read_code = compiled.definition.fec.get_cuda_kernel
        codes.append(partial(read_code, list(args), intrinsic_code=False, device=device))
        return compiled.run

    in_parts = variant.way == "views"
    run = compile_parts(graph, args, compile_graph) if in_parts else compile_graph(graph, args)
    return run, lambda: "".join(read_code() for read_code in codes)


def _time_steps() -> dict[str, float]:
    """Times the steps of persisting from now on, and returns where the seconds of each are added up."""
    seconds: dict[str, float] = {}

    def time_step(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start

        return call

    for name in _STEPS:
        setattr(persistence, name, time_step(name, getattr(persistence, name)))
    return seconds


def _pay_once(switches: Switches) -> None:
    """Pays the one-time costs of a process, with a definition that no template is."""
    from nvfuser_direct import FusionDefinition

    x = torch.ones(3, 7, device="cuda")
    with FusionDefinition() as definition:
        tensor = definition.from_pytorch(x)
        definition.add_output(definition.ops.cos(definition.ops.sum(tensor, [1])))
    on, off = map(list, switches)
    definition.execute([x], _enable_options=on, _disable_options=off)
    torch.cuda.synchronize()


def _write_output_to(file: str) -> None:
    """Sends what this process prints, nvFuser's own words among it, to a file."""
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)


if __name__ == "__main__":
    serve(measure)
