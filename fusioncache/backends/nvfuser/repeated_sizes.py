"""Sizes that come again and again: what nvFuser launches for them is launched without nvFuser's own call.

nvFuser looks at each argument of a definition with symbolic extents in every call: at its sizes, its strides, the
kernel that does for them, how that is launched. For one set of sizes all of this comes out the same each time. So after
a few calls a run is captured, as one that is stored would be, and its kernels, which are in this process already, are
launched with these very parameters. What is launched was tried: it has nvFuser's own bits, for other values at other
addresses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from fusioncache.backends.api import NotPersistable, NotPersistableNow, Run
from fusioncache.backends.nvfuser.capture import capture
from fusioncache.backends.nvfuser.driver import Driver, driver
from fusioncache.backends.nvfuser.persistence import check_tensors
from fusioncache.backends.nvfuser.stored_run import StoredRun
from fusioncache.backends.nvfuser.verification import compare, copy_tensor, refuse_arguments, roll_tensor
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

AFTER = 8
"""After how many calls with the same sizes they are captured: fewer do not make up for it."""
_LATER = 100
"""How many calls there are between two tries, where something of the moment forbids it."""
MOST_BYTES = 64 << 20
"""How many bytes arguments may have: with more a GPU is busy for longer than nvFuser's call takes. They are copied."""
PART = 20
"""A capture is made when so many times as long as the last one took went by: at most this part of all time is spent."""


class Pace:
    """Spreads captures over the steps of a process, so that no step waits for many of them."""

    def __init__(self) -> None:
        self._free = 0.0
        self._lock = forks.lock()

    def begin(self) -> bool:
        """Tells whether a capture may be made now. Whoever is told so says when it is made. Nobody waits."""
        return time.monotonic() >= self._free and self._lock.acquire(blocking=False)

    def end(self, seconds: float) -> None:
        """Says that the capture was made, and how long it took."""
        self._free = time.monotonic() + PART * seconds
        self._lock.release()


def launch_if_repeated(run: Run, pace: Pace) -> Run:
    """Returns a function that does as ``run``, and that launches what it launches once it was called a few times.

    Args:
        run: nvFuser's own call of a definition. The arguments of all calls have one layout. It writes into none.
        pace: says when.
    """
    calls, due = 0, float(AFTER)
    current = run

    def look(args: Sequence[Any]) -> None:
        nonlocal current, due
        due = float("inf")  # for the other threads, and if something fails
        start = time.monotonic()
        try:
            current = launch_of(run, args)
        except NotPersistableNow as refusal:
            due = calls + _LATER
            logger.info("sizes that come again are not launched yet: %s", refusal)
        except Exception as error:  # nvFuser's own call works, whatever this is
            logger.info("sizes that come again are not launched", exc_info=error)
        finally:
            pace.end(time.monotonic() - start)

    def call(args: Sequence[Any]) -> Sequence[Any]:
        nonlocal calls
        calls += 1
        if calls >= due and pace.begin():
            look(args)
        return current(args)

    return call


def launch_of(run: Run, args: Sequence[Any]) -> Run:
    """Returns what launches the kernels of a run on the GPU of these arguments, and is ``run`` for others.

    Raises:
        NotPersistable: if it launches anything that is not understood, or is not worth it.
        Exception: whatever torch and CUDA raise.
    """
    device = _check(args)
    with torch.cuda.device(device), torch.no_grad():
        if torch.cuda.is_current_stream_capturing():
            raise NotPersistableNow("a CUDA graph is being captured")
        own, others = [copy_tensor(arg) for arg in args], [roll_tensor(arg) for arg in args]
        run(own)  # so that nothing is left to prepare for tensors that lie as these do
        launched = _capture(run, own, others, device, driver())

    def launch_here(args: Sequence[Any]) -> Sequence[Any]:
        # The kernels are on one GPU, and nothing says that all calls are.
        return launched(args) if args[0].get_device() == device else run(args)

    return launch_here


def _check(args: Sequence[Any]) -> int:
    """Returns the GPU that all arguments are on. Raises what ``launch_of`` does."""
    if not args or not all(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
        raise NotPersistable("an input that is no CUDA tensor")
    if sum(arg.nbytes for arg in args) > MOST_BYTES:
        raise NotPersistable("large arguments")
    check_tensors(args)
    return int(args[0].get_device())


def _capture(run: Run, own: Sequence[Any], others: Sequence[Any], device: int, driver: Driver) -> Run:
    captured = capture(driver, run, own, others)
    functions = {device: captured.functions}
    tried = StoredRun(captured.recipe, {}, refuse_arguments, driver, device, poison=True, functions=functions)
    compare(tried, run, others)
    return tried.launching(run).run
