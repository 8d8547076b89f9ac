"""A backend without a compiler that can load again what it "compiled": what keeps programs is tested with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.eager import Eager
from fusioncache.ir import Graph

CODE = b"run it op by op"


@dataclass(frozen=True, slots=True)
class Compiled:
    run: Any
    artifacts: Mapping[str, bytes] | None
    reason: str | None = None
    lasting: bool = True


class KeepingEager(Eager):
    """Counts what it is asked for. Without a reason to refuse it keeps one artifact."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, refuse: str | None = None, *, lasting: bool = True
    ):
        self.compiled: list[Graph] = []
        self.loaded: list[Graph] = []
        self.more = {"machine": "here", **(environment or {})}
        self.refuse, self.lasting = refuse, lasting
        self.error: Exception | None = None

    @property
    def keeper(self) -> Any:
        return Keeper(self)

    def compile(self, graph: Graph, args: Sequence[Any]) -> Any:
        self.compiled.append(graph)
        if self.error:
            raise self.error
        return super().compile(graph, args)


class Keeper:
    """What ``Kept`` asks of such a backend."""

    def __init__(self, backend: KeepingEager):
        self.backend = backend

    def environment(self) -> Mapping[str, str]:
        return self.backend.more

    def compile(self, graph: Graph, args: Sequence[Any]) -> Compiled:
        run = self.backend.compile(graph, args)
        if self.backend.refuse:
            return Compiled(run, None, self.backend.refuse, self.backend.lasting)
        return Compiled(run, {"code": CODE})

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Any:
        if artifacts["code"] != CODE:
            raise ValueError("other code")
        self.backend.loaded.append(graph)
        return Eager.compile(self.backend, graph, args)
