"""Compiling ahead for real: in processes of their own, and with a compiler."""

import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from pool_processes import fork_process
from store_processes import PersistentEager, Process, X, Y, make_region, make_unary_region

import fusioncache
from fusioncache.accelerators.precompile import entry_compiler, pool
from fusioncache.backends.api import Run
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Graph

pytestmark = pytest.mark.filterwarnings("ignore:This process")


class _Mortal(PersistentEager):
    """The backend of the workers, on another machine than the test's; one operation is its death."""

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        if any(op.name == "prims.exp" for op in graph.ops):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compile(graph, args)


def test_several_processes_of_which_one_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "start_process", fork_process)
    monkeypatch.setattr(entry_compiler, "make_backend", lambda name, **options: _Mortal({"machine": "there"}))
    before, after = Process(tmp_path), Process(tmp_path, PersistentEager({"machine": "there"}))
    before.run(make_region(), X, Y)
    before.run(make_unary_region("exp"), X)
    warmed = fusioncache.warm(tmp_path, jobs=2)
    assert (warmed.known, warmed.compiled, warmed.refused, warmed.failed) == (2, 1, {"worker died": 1}, 1)
    after.run(make_region(), X, Y)
    assert after.told == [True]


def test_what_an_older_torchinductor_compiled(tmp_path):
    class Older(Inductor):
        def environment(self) -> Any:
            return {**super().environment(), "versions": "torch 2.9.0"}

    before, after = Process(tmp_path, Older()), Process(tmp_path, Inductor())
    before.run(make_region(), X, Y)
    warmed = fusioncache.warm(tmp_path)
    assert (warmed.ready, warmed.compiled, warmed.refused) == (0, 1, {})
    assert torch.allclose(after.run(make_region(), X, Y)[0], X.sin())
    assert (before.told, after.told) == ([False], [True])
    assert fusioncache.warm(tmp_path).ready == 1
