"""The recorder of a GPU, with fakes in place of torch's CUDA functions."""

import gc
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fusioncache.accelerators.graphs import cuda
from fusioncache.accelerators.graphs.cuda import find_recorder
from fusioncache.ir.errors import Declined

DEVICE = torch.device("cuda", 0)


class Driver:
    """A fake of torch and CUDA that records calls in order, and determines their outcomes."""

    def __init__(self):
        self.calls: list[str] = []
        self.pools = self.stream = 0
        self.fails: set[str] = set()
        self.is_capturing = False

    def log_call(self, what, *args):
        self.calls.append(" ".join(map(str, (what, *args))))
        if what in self.fails:
            raise RuntimeError(f"{what} failed")

    def make_pool(self):
        self.pools += 1
        return 0, self.pools

    @property
    def begun(self):
        return [what for what in self.calls if what.startswith("begin (")]


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()

    class Graph:
        def capture_begin(self, pool=None, capture_error_mode=None):
            assert capture_error_mode == "thread_local"
            driver.log_call("begin", pool)

        def capture_end(self):
            driver.log_call("end")

        def replay(self):
            driver.log_call("replay")

    names = {
        "CUDAGraph": Graph,
        "graph_pool_handle": driver.make_pool,
        "synchronize": lambda device: driver.log_call("synchronize"),
        "empty_cache": lambda: None,
        "device": lambda device: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "is_current_stream_capturing": lambda: driver.is_capturing,
        "get_allocator_backend": lambda: "native",
        "default_generators": [SimpleNamespace(initial_seed=lambda: 1, get_offset=lambda: 4)],
    }
    for name, value in names.items():
        monkeypatch.setattr(torch.cuda, name, value)
    workspace = SimpleNamespace(stream="side", prepare=lambda: driver.log_call("prepare"))
    monkeypatch.setattr(cuda, "borrow_workspace", lambda device, borrower: workspace)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: driver.stream, raising=False)
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        what = name.removeprefix("_cuda_")
        monkeypatch.setattr(torch._C, name, lambda index, pool, what=what: driver.log_call(what, pool), raising=False)
    return driver


def take(arguments):
    assert not gc.isenabled()
    taken = arguments.copy()
    arguments.clear()
    return taken


def test_captures_that_live_share_a_pool_which_ends_with_the_last_of_them(driver):
    recorder = find_recorder(DEVICE)
    recorder.record(take, [], 1)
    kept = [recorder.record(take, [1, 2], number) for number in (0, 1, 2, 1)]
    assert kept[0].results == [1, 2]
    kept[0].replay()
    assert driver.calls[-1] == "replay"
    ended, forward, one, two, again = driver.begun
    assert len({ended, forward, one, two}) == 4 and one == again
    assert gc.isenabled()


@pytest.mark.parametrize("where", ["the function", "the capture", "both"])
def test_after_a_capture_that_fails_the_next_one_has_another_pool(driver, where):
    recorder = find_recorder(DEVICE)
    kept = recorder.record(take, [])
    pool = driver.calls[-2].removeprefix("begin ")
    if where != "the function":
        driver.fails.add("end")
    with pytest.raises(ZeroDivisionError if where != "the capture" else RuntimeError):
        recorder.record(take if where == "the capture" else lambda arguments: 1 / 0, [])
    assert gc.isenabled()
    assert (f"endAllocateToPool {pool}" in driver.calls) is (where != "the function")
    assert (f"releasePool {pool}" in driver.calls) is (where != "the function")
    driver.fails.clear()
    recorder.record(take, [])
    assert (driver.calls[-2] == f"begin {pool}") is (where == "the function")
    kept.replay()


def test_replays_come_on_one_stream_and_in_no_other_capture(driver):
    recorder = find_recorder(DEVICE)
    assert recorder.explain_unready() is None
    driver.stream = 7
    assert recorder.explain_unready() == "another stream than that of the first call"
    driver.stream = 0
    assert recorder.explain_unready() is None
    driver.is_capturing = True
    assert recorder.explain_unready() == "the call is captured by another CUDA graph"
    recorder.finish()
    assert "synchronize" not in driver.calls
    driver.is_capturing = False
    recorder.finish()
    assert driver.calls == ["synchronize"]


def test_random_numbers_are_known_by_seed_and_offset(driver):
    recorder = find_recorder(DEVICE)
    before = recorder.read_random_state()
    assert recorder.read_random_state() == before
    for name in ("initial_seed", "get_offset"):
        own = getattr(torch.cuda.default_generators[0], name)
        setattr(torch.cuda.default_generators[0], name, lambda: 9)
        assert recorder.read_random_state() != before
        setattr(torch.cuda.default_generators[0], name, own)


REFUSED = {
    "tensors on the CPU": ("cpu",),
    "tensors on a device of type meta": ("meta",),
    "a GPU that is not NVIDIA's": ("cuda:0", torch.version, "hip", "6.0"),
    "another allocator than torch's": ("cuda:0", torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_devices_on_which_nothing_is_captured(driver, monkeypatch, reason):
    device, *change = REFUSED[reason]
    if change:
        monkeypatch.setattr(*change)
    with pytest.raises(Declined, match=reason):
        find_recorder(torch.device(device))
