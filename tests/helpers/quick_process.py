"""Speeds up a test process when it is imported, which must happen before the imports of torch and Thunder."""

from __future__ import annotations

import gc
import os
import sys
from unittest import mock

# Tracing allocates very many objects. With the default thresholds, garbage collections take a tenth or more of the time
# of all tests. A test that needs a collection starts it.
gc.set_threshold(100_000, 50, 50)

# Every process in which TorchInductor compiles would first start others that import torch, to check whether compiled
# code runs for each vector instruction set. With this it trusts the processor's flags; an older compiler fails then.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Every process in which Dynamo compiles would start one more that imports torch, and keep processes ready for Triton
# kernels, which no test here compiles.
os.environ.setdefault("TORCH_WARM_POOL", "0")

# Python calls audit hooks for each call of ``id``, and Thunder makes hundreds of thousands. The hook of filelock checks
# for locks that are held during a fork, and cannot be removed.
with mock.patch.object(sys, "addaudithook", lambda hook: None):
    import filelock  # noqa: F401


def skip_vector_checks() -> None:
    """Makes TorchInductor, once imported, trust the processor's flags for other vector instruction sets as well."""
    kinds = sys.modules.get("torch._inductor.cpu_vec_isa")
    if kinds is not None:
        kinds.VecISA.check_build = lambda self, code: True  # type: ignore[attr-defined]
