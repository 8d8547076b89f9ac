"""Makes a process of tests quicker when it is imported, which has to be before torch and Thunder are."""

from __future__ import annotations

import gc
import os
import sys
from unittest import mock

# Tracing makes and keeps very many objects. By default the collector looks through them so often that it takes a tenth
# of the time of all tests and more. What a test wants collected it collects itself.
gc.set_threshold(100_000, 50, 50)

# Every process in which TorchInductor compiles would first start more that import torch, to see whether what the
# compiler makes for each kind of vector runs. Not asked, it goes by the processor, and an older compiler fails.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# And each that has Dynamo compile would start one more that imports torch, and has processes ready for kernels of
# Triton's, which no test here compiles.
os.environ.setdefault("TORCH_WARM_POOL", "0")

# Python asks hooks that audit for each call of ``id``, which Thunder calls hundreds of thousands of times. That of
# filelock looks after locks that are held during a fork, and cannot be taken out again.
with mock.patch.object(sys, "addaudithook", lambda hook: None):
    import filelock  # noqa: F401


def take_vectors_on_trust() -> None:
    """Has TorchInductor, once it is imported, go by the processor for other kinds of vectors as well."""
    kinds = sys.modules.get("torch._inductor.cpu_vec_isa")
    if kinds is not None:
        kinds.VecISA.check_build = lambda self, code: True  # type: ignore[attr-defined]
