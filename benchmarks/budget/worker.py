"""One process of ``benchmarks/budget``: seconds of training steps with the fusioncache of a folder.

It is run by its path and imports nothing of the benchmarks. It uses only public names of fusioncache, those of commit
ef4487f, so that every later state can run it. Second processes are forks of a parent that imported only torch and
litgpt: importing torch takes longer than all that they measure.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from litgpt import GPT, Config
from torch import nn

_SEED, _MODEL = 2916, "Llama-2-7b-hf"
_WARM_UP = 100
"""Number of untimed steps before the measured later ones, at most as many as these."""

_FULL = 2
"""The oldest generation of objects, which only a full garbage collection visits."""


@dataclass(frozen=True, slots=True)
class Training:
    """A model and the data of its steps.

    Attributes:
        argument: the fields of ``ProcessSpec``.
        model: a narrow Llama.
        batches: tokens and target tokens, by length.
    """

    argument: Mapping[str, Any]
    model: nn.Module
    batches: Mapping[int, tuple[torch.Tensor, torch.Tensor]]

    def read_clock(self) -> float:
        """Returns wall seconds after the GPU has finished; on a CPU, CPU seconds of this process and its children."""
        if self.argument["device"] == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    @contextmanager
    def time_collector(self) -> Iterator[list[float]]:
        """Yields a list that gets the seconds of each full garbage collection until the context ends."""
        clock = time.perf_counter if self.argument["device"] == "cuda" else time.process_time
        found, begun = list[float](), [0.0]

        def follow(phase: str, info: Mapping[str, int]) -> None:
            if phase == "start":
                begun[0] = clock()
            elif info["generation"] == _FULL:
                found.append(clock() - begun[0])

        gc.callbacks.append(follow)
        yield found
        gc.callbacks.remove(follow)

    def step(self, compiled: Callable[..., Any], length: int) -> float:
        """Takes a step without an optimizer; returns its loss."""
        tokens, targets = self.batches[length]
        loss = nn.functional.cross_entropy(compiled(tokens).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        return float(loss.detach())

    def time_first(self, compiled: Callable[..., Any], length: int) -> tuple[float, float]:
        """Returns the seconds of the first step of a length, and of its full garbage collections, which it excludes."""
        self.model.zero_grad(set_to_none=True)
        with self.time_collector() as collections:
            start = self.read_clock()
            self.step(compiled, length)
            seconds = self.read_clock() - start
        return seconds - sum(collections), sum(collections)

    def time_later(self, compiled: Callable[..., Any]) -> float:
        """Returns the median seconds of later steps, which add to existing gradients."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        length, samples = self.argument["lengths"][0], list[float]()
        for _ in range(min(_WARM_UP, self.argument["steps"])):
            self.step(compiled, length)
        gc.collect()
        for _ in range(self.argument["steps"]):
            start = self.read_clock()
            self.step(compiled, length)
            samples.append(self.read_clock() - start)
        return median(samples)


def measure(argument: Mapping[str, Any]) -> Any:
    """Returns the results of a cold process, or for each side of its last second process, with medians over all.

    Second processes run alone, one of each side in turn: two that share a GPU slow each other down, even if one waits.
    A host may be twice as fast in one minute as in the next, so each is compared with its neighbour of the other side.
    """
    if "specs" not in argument:
        return measure_here(argument)
    specs, found = argument["specs"], list[list[dict[str, Any]]]()
    for number in range(specs[0]["processes"]):
        order = specs if number % 2 == 0 else specs[::-1]
        results = list(map(_measure_in_fork, order))
        found.append(results if order is specs else results[::-1])
    return [_summarize(results) for results in zip(*found, strict=True)]


def _measure_in_fork(spec: Mapping[str, Any]) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as fork:
        return fork.submit(measure_here, spec).result()


def _summarize(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    each = [one["seconds"] for one in results]
    return results[-1] | {"seconds": {name: median(one[name] for one in each) for name in each[0]}, "each": each}


def measure_here(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Returns seconds by figure, those of the import, which the first figure includes, the loss, and counts.

    A full garbage collection takes a third of a second, and may fall into any first step, depending on the number of
    objects. So its seconds are subtracted from first steps, and are a figure of their own.
    """
    torch.set_num_threads(1)
    sys.path.insert(0, argument["folder"])
    os.environ.update(argument["variables"])
    tempfile.tempdir = None  # importing torch cached another directory
    training = prepare(argument)
    gc.collect()
    with training.time_collector() as collections:
        start = training.read_clock()
        fusioncache = import_from(Path(argument["folder"]))
        imported = training.read_clock() - start
        compiled, transform = _compile(fusioncache, training)
        loss = training.step(compiled, argument["lengths"][0])
        first = training.read_clock() - start
    collector = sum(collections)
    seconds = {argument["process"]: first - collector}
    if argument["process"] == "cold":
        names = ("second_length", "third_length")
        for name, length in zip(names, argument["lengths"][1:], strict=False):
            seconds[name], more = training.time_first(compiled, length)
            collector += more
        seconds["collector"] = collector
    counts = _count(transform)
    if argument["process"] == "second":
        seconds["later"] = training.time_later(compiled)
        if argument["device"] == "cuda":
            seconds["graphs"] = time_graphs(fusioncache, training)
    return {"seconds": seconds, "import": imported, "loss": loss, "counts": counts}


def import_from(folder: Path) -> Any:
    """Imports the public names of fusioncache that are used here; returns the package.

    Raises:
        RuntimeError: if it was imported from another folder.
    """
    fusioncache: Any = import_module("fusioncache")
    found = Path(fusioncache.__file__).resolve().parents[1]
    if found != folder.resolve():
        raise RuntimeError(f"fusioncache is imported from {found}, and not from {folder}")
    for name in ("FusionCache", "executors"):
        getattr(fusioncache, name)
    return fusioncache


def prepare(argument: Mapping[str, Any]) -> Training:
    """Returns the model and its batches, from a fixed seed. Imports Thunder, which no figure includes."""
    import_module("thunder")
    torch.manual_seed(_SEED)
    embedding, heads, intermediate, vocabulary = argument["widths"]
    config = Config.from_name(
        _MODEL,
        n_layer=argument["layers"],
        block_size=max(argument["lengths"]),
        n_embd=embedding,
        n_head=heads,
        head_size=embedding // heads,
        n_query_groups=heads,
        intermediate_size=intermediate,
        padded_vocab_size=vocabulary,
    )
    device = argument["device"]
    model = GPT(config).to(device=device, dtype=getattr(torch, argument["dtype"]))
    shapes = {length: (2, argument["batch"], length) for length in argument["lengths"]}
    drawn = {length: torch.randint(0, vocabulary, shape).to(device) for length, shape in shapes.items()}
    batches = {length: (pair[0], pair[1]) for length, pair in drawn.items()}
    return Training(argument, model, batches)


def _compile(fusioncache: Any, training: Training, **options: Any) -> tuple[Callable[..., Any], Any]:
    """Returns the compiled model and its transform. On a CPU no workers compile: their CPU time would not count."""
    import thunder

    argument = training.argument
    options |= {"jobs": 0} if argument["device"] == "cpu" else {}
    if argument.get("accelerators") is not None:
        options["accelerators"] = argument["accelerators"]
    transform = fusioncache.FusionCache(backend=argument["backend"], **options)
    executors = fusioncache.executors()
    if argument["backend"] != "nvfuser" and all(one.name != "fusioncache" for one in executors):
        others = (one for one in executors if one.name != "nvfuser")
        executors = [*others, thunder.get_executor("fusioncache")]
    return thunder.jit(training.model, executors=executors, transforms=[transform]), transform


def time_graphs(fusioncache: Any, training: Training) -> float:
    """Returns the median seconds of later steps that are replayed from CUDA graphs.

    Raises:
        RuntimeError: if forward and backward were not captured and replayed.
    """
    compiled, transform = _compile(fusioncache, training, graphs=True)
    seconds = training.time_later(compiled)
    stats = transform.stats()
    if stats.captures < 2 or stats.graph_replays < training.argument["steps"]:
        raise RuntimeError(f"forward and backward are not replayed from CUDA graphs: {dict(stats.not_captured)}")
    return seconds


def _count(transform: Any) -> dict[str, int]:
    stats = transform.stats()
    names = ("regions", "templates", "compiles", "loads", "programs_loaded", "programs_made")
    return {name: getattr(stats, name) for name in names}


def answer(argument: str, file: Path) -> None:
    """Answers one argument, like ``serve`` of ``benchmarks/common/processes.py``, which cannot be imported here."""
    try:
        value = measure(json.loads(argument))
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        file.write_text(json.dumps({"raised": f"{type(error).__name__}: {first_line}"}))
        raise
    file.write_text(json.dumps({"value": value}))


if __name__ == "__main__":
    answer(sys.argv[1], Path(sys.argv[2]))
