"""Workspaces of cuBLAS, with torch's part of them played: whose they are, and where their memory comes from."""

import gc
from types import SimpleNamespace

import pytest
import torch

from fusioncache.accelerators.graphs import cuda
from fusioncache.accelerators.graphs.cuda import Workspace
from fusioncache.ir.errors import Declined

DEVICE = torch.device("cuda", 91)


@pytest.fixture
def told(monkeypatch):
    """What torch was told; each pool and each stream has a number."""
    told, numbers = [], iter(range(99))

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            assert capture_error_mode == "thread_local"
            told.append(("begin", pool))

        def capture_end(self):
            told.append(("end",))

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(numbers))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(cuda, "make_stream", lambda device: SimpleNamespace(number=next(numbers)))
    matrix = torch.ones(2, 2)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: matrix)
    for name in ("mm", "addmm"):
        monkeypatch.setattr(torch, name, lambda *_, name=name: told.append((name,)))
    yield told
    gc.collect()
    cuda.find_idle.cache_clear()


def test_both_workspaces_come_out_of_one_pool_each_time(told):
    own = Workspace(DEVICE)
    own.prepare()
    own.prepare()
    begin, *others = told[:4]
    assert told == [begin, *others] * 2
    assert [each[0] for each in others] == ["mm", "addmm", "end"]


def test_the_first_graph_keeps_the_pool(told):
    own = Workspace(DEVICE)
    kept = []
    for _ in range(3):
        own.prepare()
        kept.append(next(each for each in gc.get_referents(own) if type(each).__name__ == "Graph"))
    assert kept[0] is kept[1] is kept[2]


def test_a_capture_that_fails_is_ended(told, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch, "addmm", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        Workspace(DEVICE).prepare()
    assert told[-1] == ("end",)


def test_without_a_stream_nothing_is_captured(monkeypatch):
    from contextlib import nullcontext

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 0)
    library = SimpleNamespace(cuStreamCreate=lambda handle, flags: 2)
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: library)
    with pytest.raises(Declined, match="CUDA has no stream"):
        Workspace(DEVICE)
