"""A backend without a compiler that can load again what it "compiled": what keeps programs is tested with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusioncache.backends.api import Compiled, Run
from fusioncache.backends.eager import Eager
from fusioncache.ir import Graph

CODE = b"run it op by op"


class PersistentEager(Eager):
    """Counts what it is asked for. Without a reason to refuse it keeps one artifact."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, refuse: str | None = None, *, lasting: bool = True
    ):
        super().__init__()
        self.compiled: list[Graph] = []
        self.loaded: list[Graph] = []
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
