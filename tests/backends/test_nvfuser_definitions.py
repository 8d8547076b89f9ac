"""What nvFuser is asked to compile, without a GPU: real traces for cuda:0, real definitions, nothing executed."""

import itertools
import json
import os
import re
import subprocess
import sys

import fake_cuda
import pytest
import thunder.torch as ltorch
import torch
from drawn_regions import draw
from models import find_fused, recompute
from nvfuser_definitions import add_residuals, define_executables, define_regions
from repository import HELPERS, import_path
from thunder_versions import VERSION

import fusioncache
from fusioncache import FusionCache
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.backends.nvfuser.definition import define, describe_contiguous, find_repeats, nvfuser_executor
from fusioncache.ir import Const, Graph, Instance, Op, Ref, TensorType
from fusioncache.ir.template import encode_region
from fusioncache.transform.region import region_of


def norm_residual(x, *weights):
    for weight in weights:
        x = x + weight @ ltorch.rms_norm(x, (x.shape[-1],))
    return x


def shared(function, inputs: int, *, grad: bool, dtype: str = "float32", residual: str = "auto"):
    """The transform and its traces for a function of square matrices."""
    traces = fake_cuda.make_traces(function, [(10, 10)] * inputs, grad=grad, dtype=dtype)
    with fake_cuda.pretend_gpu():
        transform = FusionCache(cache=fusioncache.Cache(), residual=residual)
        return transform, [transform.transform_trace_post_optimization(trace) for trace in traces]


def write(graph: Graph) -> str:
    with fake_cuda.pretend_gpu():
        return repr(define(graph, describe_contiguous(graph)))


@pytest.fixture(autouse=True)
def _needs_nvfuser():
    fake_cuda.find_nvfuser_executor()


# All folds of up to 32 terms are among the nine.
@pytest.mark.parametrize(("plan", "depths", "expected"), [("fold", (16, 18), (5, 9)), ("auto", (12, 14), (5, 5))])
def test_the_definitions_of_a_recomputed_residual_stream_do_not_grow_with_depth(plan, depths, expected):
    counts = {}
    for layers in depths:
        with recompute():
            transform, traces = shared(add_residuals, 2 * layers + 1, grad=True, residual=plan)
        stats = transform.stats()
        assert stats.regions == sum(len(find_fused(trace)) for trace in traces) == 4 * layers + 1
        assert not stats.bypasses
        counts[layers] = (stats.templates, len(define_executables(transform)))
    assert list(counts.values()) == [expected] * 2


def test_a_tensor_like_another_one_is_a_full_one():
    """Our executor has such a one in its regions, for its strides, which nvFuser chooses itself."""
    type_ = TensorType("float32", (5, 8), "cuda")
    like = Op("torch.full_like", (Ref(0), Const("float", (2.0).hex())), (type_,))
    text = write(Graph((type_,), (like, Op("prims.add", (Ref(0), Ref(1)), (type_,))), (2,)))
    assert text.count("ops.full") == text.count("ops.add") == 1


def test_other_options_are_another_template():
    def key(**options):
        with fake_cuda.pretend_gpu():
            return NvFuser(**options).environment()

    assert key() == key()
    assert key() != key(enable=["fuse_matmul"]) != key(disable=["fuse_matmul"])


def test_an_nvfuser_that_keeps_inputs_is_left_alone():
    traces = fake_cuda.make_traces(add_residuals, [(10, 10)] * 3, grad=False)
    for call in find_fused(traces[0]):
        call._call_ctx[call.sym.name].store_inputs = True
    with fake_cuda.pretend_gpu():
        transform = FusionCache(cache=fusioncache.Cache(), lean="thunder")
        assert transform.transform_trace_post_optimization(traces[0]) is traces[0]
    assert set(transform.stats().bypasses) == {"Thunder's nvFuser executor was told to save each region's inputs"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_template_is_compiled_from_the_very_definition_that_thunder_wrote_for_its_first_region(dtype):
    """nvFuser schedules a kernel by the order of its definition: the same definition is the same bits."""
    transform, _ = shared(norm_residual, 7, grad=True, dtype=dtype)
    plain = define_regions(fake_cuda.make_traces(norm_residual, [(10, 10)] * 7, grad=True, dtype=dtype))
    ours = define_executables(transform)
    assert len(ours) == transform.stats().templates < transform.stats().regions
    # Thunder hands on an input that nobody uses there, and ours does not.
    with_unused_inputs = {definition for definition in ours - plain if "permute(tv0" in definition}
    assert ours - plain == with_unused_inputs
    assert len(with_unused_inputs) == (dtype == "bfloat16")


def tensor(*shape: int | Ref) -> TensorType:
    return TensorType("float32", shape, "cuda")


KEYS = (2, 3, 1, 8)
EXPANDED = "broadcast_in_dim(keys, (2, 3, 4, 8), (0, 1, 2, 3))"
"""Each of three keys four times, as four queries share it."""
HEADS = f"reshape({EXPANDED}, (2, 12, 8))"
COPIED = f"shallow_copy(reshape(shallow_copy({EXPANDED}), (2, 12, 8)))"


def region(text: str, keys: tuple[int, ...] = KEYS) -> Graph:
    return draw(text, device="cuda", keys=keys, **{"whole": (2, 3, 4, 8)} if "whole" in text else {})


@pytest.mark.parametrize(
    ("text", "keys", "found"),
    [
        (f"tanh({HEADS})", KEYS, {1}),
        (f"tanh({COPIED})", KEYS, {2}),
        (HEADS, KEYS, set()),
        (COPIED, KEYS, set()),
        ("tanh(reshape(broadcast_in_dim(keys, (2, 3, 4, 8), (0, 1, 3)), (2, 12, 8)))", (2, 3, 8), {1}),
        ("tanh(reshape(broadcast_in_dim(keys, (2, 3, 1, 8), (0, 1, 3)), (6, 8)))", (2, 3, 8), set()),
        ("tanh(reshape(broadcast_in_dim(keys, (3, 8), (1,)), (24,)))", (8,), {1}),
        ("tanh(reshape(broadcast_in_dim(keys, (3, 8), ()), (24,)))", (), {1}),
        # An operation is between the expanded keys and the reshape.
        (f"tanh(reshape(cos({EXPANDED}), (2, 12, 8)))", KEYS, {2}),
        (f"tanh(reshape(mul({EXPANDED}, {EXPANDED}), (2, 12, 8)))", KEYS, {2}),
        (f"tanh(reshape(mul({EXPANDED}, whole), (2, 12, 8)))", KEYS, set()),
        (f"tanh(reshape(transpose({EXPANDED}, (0, 2, 1, 3)), (2, 12, 8)))", KEYS, {2}),
        (f"tanh(reshape(sum({EXPANDED}, (3,)), (2, 12)))", KEYS, {2}),
        # What was merged is reshaped once more.
        (f"tanh(reshape({HEADS}, (24, 8)))", KEYS, {1}),
        (f"tanh(reshape({HEADS}, (2, 3, 4, 8)))", KEYS, {1}),
        # What stays as it is beside a merged dimension stays expanded.
        ("tanh(reshape(reshape(broadcast_in_dim(keys, (5, 3, 4), (1, 2)), (5, 12)), (60,)))", (3, 1), {1, 2}),
    ],
)
def test_repeats_of_which_something_is_computed_are_found(text, keys, found):
    graph = region(text, keys)
    assert find_repeats(graph, [None] * len(graph.inputs)) == found


@pytest.mark.parametrize(
    ("shape", "contiguity", "found"),
    [
        ((2, 3, 4, 8), (True, True, None, True), {0}),
        ((2, 3, 4, 8), (True, True, True, True), set()),
        ((2, 3, 1, 8), (True, True, None, True), set()),
    ],
)
def test_an_argument_may_be_expanded(shape, contiguity, found):
    batch, groups, queries, size = shape
    graph = region(f"tanh(reshape(keys, ({batch}, {groups * queries}, {size})))", shape)
    assert find_repeats(graph, [(contiguity, (3, 2, 1, 0), ())]) == found


def test_a_repeat_of_any_length_is_found():
    length = Ref(1)
    two, four, *places = (Const("int", str(number)) for number in (2, 4, 0, 1, 2))
    expanded, heads = tensor(2, 4, length), tensor(8, length)
    ops = (
        Op("prims.broadcast_in_dim", (Ref(0), (two, four, length), tuple(places)), (expanded,)),
        Op("prims.reshape", (Ref(2), (Const("int", "8"), length)), (heads,)),
        Op("prims.tanh", (Ref(3),), (heads,)),
    )
    assert find_repeats(Graph((tensor(2, 1, length),), ops, (4,), sizes=1), [None]) == {1}


@pytest.mark.parametrize("heads", [HEADS, COPIED])
def test_nvfuser_is_told_to_copy_what_is_repeated(heads):
    calls = re.findall(r"(tv\d+) = fd\.ops\.(\w+)\((tv\d+)", write(region(f"tanh({heads})")))
    # nvFuser writes a copy as a cast to the type that it has.
    assert [name for _, name, _ in calls] == ["expand", "reshape", "cast", "tanh"]
    assert all(operand == result for (result, *_), (*_, operand) in itertools.pairwise(calls))


@pytest.mark.parametrize(
    "text",
    [
        HEADS,
        f"tanh(reshape(mul({EXPANDED}, whole), (2, 12, 8)))",
        "tanh(reshape(broadcast_in_dim(keys, (2, 3, 1, 8), (0, 1, 2, 3)), (6, 8)))",
    ],
)
def test_of_all_else_it_is_told_what_thunder_tells_it(text):
    from fusioncache.backends.bound_symbols import bind

    graph = region(text)
    found = write(graph)
    with fake_cuda.pretend_gpu():
        bound = bind(graph)
        thunders = nvfuser_executor().create_fd(
            bound.bound_symbols, describe_contiguous(graph), list(bound.inputs), list(bound.outputs)
        )
    assert found == repr(thunders)


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


def test_definitions_are_the_same_and_no_gpu_is_opened():
    with fake_cuda.pretend_gpu():
        regions = [
            region_of(fusion)
            for dtype in ("float32", "bfloat16")
            for trace in fake_cuda.make_traces(many_operations, [(10, 10)] * 3, grad=True, dtype=dtype)
            for fusion in find_fused(trace)
        ]
        expected = [repr(define(region, describe_contiguous(region))) for region in regions]
    instances = [
        Instance(region, tuple(range(len(region.inputs))), tuple(range(len(region.outputs)))) for region in regions
    ]
    sent = [encode_region(instance).decode() for instance in instances]
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
