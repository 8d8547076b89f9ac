"""Compiling ahead for real: in processes of their own, and with a compiler."""

import os
import sys
from typing import Any

import torch
from repository import HELPERS
from store_processes import PersistentEager, Process, X, Y, make_region, make_unary_region

import fusioncache
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.precompile import workers

# A worker whose backend is the double, on another machine than the test's; one operation is its death.
_WORKER = """
import os, signal, sys
from store_processes import PersistentEager
from fusioncache.precompile import entry_compiler as warmer
from fusioncache.precompile import worker

class Mortal(PersistentEager):
    def compile(self, graph, args):
        if any(op.name == "prims.exp" for op in graph.ops):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compile(graph, args)

warmer.make_backend = lambda name, **options: Mortal({"machine": "there"})
worker.main(sys.argv[1])
"""


def test_several_processes_of_which_one_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "worker_command", lambda directory: [sys.executable, "-c", _WORKER, str(directory)])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HELPERS), *filter(None, sys.path)]))
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
