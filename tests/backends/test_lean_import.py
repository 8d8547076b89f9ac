"""Thunder's translators imported without the rest of Thunder write the same definitions, and no GPU is asked for."""

import json
import os
import subprocess
import sys

import fake_cuda
import pytest
import torch
from models import find_fused
from repository import HELPERS, import_path
from thunder_versions import VERSION

from fusioncache.backends.nvfuser.definition import define, describe_contiguous
from fusioncache.ir import Graph, Instance
from fusioncache.ir.template import encode_region
from fusioncache.transform.region import region_of

_WORKER = """
import json, sys
from fusioncache.backends.nvfuser.translators import LateModule, import_torch
import_torch()
import torch
asked = []
for name in ("_cuda_init", "_cuda_getDeviceCount", "_cuda_isCurrentStreamCapturing"):
    setattr(torch._C, name, lambda *args, name=name: asked.append(name))
from fusioncache.backends.nvfuser.backend import NvFuser
NvFuser.prepare()
import fake_cuda
from fusioncache.backends.nvfuser.definition import define, describe_contiguous
from fusioncache.backends.torch_settings import write_versions
from fusioncache.ir.template import decode_region
regions = [decode_region(text.encode()).region for text in json.load(sys.stdin)]
with fake_cuda.pretend_gpu():
    texts = [repr(define(region, describe_contiguous(region))) for region in regions]
late = sorted(name for name, module in sys.modules.items() if type(module) is LateModule)
used = [torch.nested.nested_tensor, torch.optim.SGD, torch.distributions.Normal, torch._meta_registrations.meta_mm]
meta = torch.ones(2, 3, device="meta") @ torch.ones(3, 4, device="meta")
print(json.dumps({
    "late": late, "unloaded": [name for name in late if type(sys.modules[name]) is LateModule],
    "used": [one.__name__ for one in used], "meta": meta.shape,
    "texts": texts, "asked": asked, "versions": write_versions(),
    "whole": [name for name in ("thunder.core.jit_ext", "torch._dynamo") if name in sys.modules],
}))
"""


def many_operations(x, y, weight):
    import thunder.torch as ltorch

    a = ltorch.softmax(ltorch.layer_norm(x, (x.shape[-1],), weight[0]), -1) + ltorch.gelu(y, approximate="tanh")
    b = ltorch.rms_norm(y, (y.shape[-1],)) * ltorch.sigmoid(x) - ltorch.silu(a)
    c = ltorch.cat([b[:, 5:], -b[:, :5]], -1).transpose(0, 1)
    d = ltorch.where(c > 0, c.to(torch.float32), 0.5) ** 2 / (1 + ltorch.exp(c).sum(0, keepdim=True))
    e = ltorch.var(d, -1, keepdim=True) + ltorch.amax(d, -1, keepdim=True) * ltorch.rsqrt(ltorch.abs(d.mean()) + 1e-5)
    f = ltorch.pad(ltorch.tanh(weight @ a), (1, 2), value=0.0)[:, 1:-2]
    return (e * d.reshape(-1).reshape(d.shape) + ltorch.full_like(f, 2.0) * f).to(x.dtype)


def make_regions() -> list[Graph]:
    """Returns the regions of a training step, for a GPU that is not there."""
    traces = [
        trace
        for dtype in ("float32", "bfloat16")
        for trace in fake_cuda.make_traces(many_operations, [(10, 10)] * 3, grad=True, dtype=dtype)
    ]
    with fake_cuda.pretend_gpu():
        return [region_of(fusion) for trace in traces for fusion in find_fused(trace)]


def test_definitions_are_the_same_and_no_gpu_is_opened():
    pytest.importorskip("nvfuser_direct")
    fake_cuda.find_nvfuser_executor()
    regions = make_regions()
    with fake_cuda.pretend_gpu():
        expected = [repr(define(region, describe_contiguous(region))) for region in regions]
    sent = [
        encode_region(Instance(region, tuple(range(len(region.inputs))), tuple(range(len(region.outputs))))).decode()
        for region in regions
    ]
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    command = [sys.executable, "-W", "ignore", "-c", _WORKER]
    done = subprocess.run(command, input=json.dumps(sent), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(expected) >= 4 and sum(text.count("fd.ops.") for text in expected) > 100
    assert found["texts"] == expected
    assert not found["asked"] and not found["whole"]
    assert {"torch._meta_registrations", "torch._refs", "torch.export", "torch.nested"} <= {*found["late"]}
    assert "torch.export" in found["unloaded"] and len(found["unloaded"]) < len(found["late"])
    assert found["used"] == ["nested_tensor", "SGD", "Normal", "meta_mm"] and found["meta"] == [2, 4]
    assert f"thunder {VERSION}" in found["versions"]
