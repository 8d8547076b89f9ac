"""Processes that share a directory of stored executables, a backend that stores without a compiler, regions, inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from drawn_regions import draw

from fusioncache.backends.api import Compiled, Run
from fusioncache.backends.eager import Eager
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.cache import Cache
from fusioncache.cache.executable import Builder, BuiltFunction, Executable
from fusioncache.cache.peers import Ranks
from fusioncache.ir import Graph, Key
from fusioncache.ir.template import layouts_of
from fusioncache.template.canonical import canonicalize
from fusioncache.template.writer import instance_of

CODE = b"run it op by op"


class PersistentEager(Eager):
    """An eager backend that records its calls. It makes one artifact unless it has a reason to refuse."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, refuse: str | None = None, *, lasting: bool = True
    ):
        super().__init__()
        self.compiled, self.loaded = [], []
        self.more = {"machine": "here", **(environment or {})}
        self.refuse, self.lasting = refuse, lasting
        self.error: Exception | None = None

    def artifact_environment(self) -> Mapping[str, str]:
        return self.more

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        self.compiled.append(graph)
        if self.error:
            raise self.error
        return super().compile(graph, args)

    def persist(self, graph: Graph, args: Sequence[Any]) -> Compiled:
        run = self.compile(graph, args)
        if self.refuse:
            return Compiled(run, None, self.refuse, self.lasting)
        return Compiled(run, {"code": CODE}, None)

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        if artifacts["code"] != CODE:
            raise ValueError("other code")
        self.loaded.append(graph)
        return Eager.compile(self, graph, args)


X, Y = torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(0, 5, 6).reshape(2, 3)


def make_region(*, swapped: bool = False) -> Graph:
    """Returns ``sin(x), y - x``, or the same with inputs, ops and outputs the other way round."""
    shape = (2, 3)
    return draw("sub(y, x)", "sin(x)", y=shape, x=shape) if swapped else draw("sin(x)", "sub(y, x)", x=shape, y=shape)


def make_unary_region(name="cos", device="cpu"):
    return draw(f"{name}(x)", device=device)


class Process:
    """The state of one process: its own cache, over a directory that it shares with other processes."""

    def __init__(self, directory: Path, backend: Any = None, ranks: Ranks | None = None):
        self.backend = backend or PersistentEager()
        self.cache = Cache(record=False, store=directory)
        if ranks:
            self.cache.ranks = ranks
        self.ledger = self.cache.ledger
        self.executables = BackendExecutables(self.backend, self.cache, self.ledger)
        self.built, self.loaded, self.seconds = [], [], []

    def builder(self) -> Builder:
        return self.executables.builder(self.backend.environment())

    def key(self, source: Graph, *inputs: Any) -> Key:
        """Returns the key of the store entry of a region for inputs of these layouts."""
        canonical = canonicalize(source)
        layouts = layouts_of([inputs[index] for index in canonical.binding.arguments])
        builder = self.builder()
        return builder.key(builder.region_task(canonical.graph, instance_of(source, canonical.binding), layouts))

    def executable(self, source: Graph) -> Executable:
        canonical = canonicalize(source)
        return self.executables.executable(canonical.graph, instance_of(source, canonical.binding))

    def run(self, source: Graph, *inputs: Any) -> list[Any]:
        binding = canonicalize(source).binding
        args = [inputs[index] for index in binding.arguments]
        results = self.executable(source).run_for(args, layouts_of(args), self.record_build)(args)
        return [results[index] for index in binding.outputs]

    def record_build(self, executable: Executable, function: BuiltFunction) -> None:
        self.built.append((executable, function))
        self.loaded.append(function.loaded)
        self.seconds.append(function.compile_seconds)


def fill_store(directory, *environments, **options):
    for environment in environments or ({},):
        process = Process(directory, PersistentEager(environment, **options))
        process.run(make_region(), X, Y)
        process.run(make_unary_region(), X)
