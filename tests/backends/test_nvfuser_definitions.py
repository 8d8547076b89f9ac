"""What nvFuser is asked to compile, without a GPU: real traces for cuda:0, real definitions, nothing executed."""

import itertools

import fake_cuda
import pytest
import thunder.torch as ltorch
from models import find_fused, recompute
from nvfuser_definitions import add_residuals, define_executables, define_regions

import fusioncache
from fusioncache import FusionCache
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.backends.nvfuser.definition import define, describe_contiguous
from fusioncache.ir import Const, Graph, Op, Ref, TensorType


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_templates_of_normed_blocks_do_not_grow_with_depth(dtype):
    counts = set()
    for weights in (4, 8):
        transform, _ = shared(norm_residual, weights + 1, grad=True, dtype=dtype)
        assert not transform.stats().bypasses
        counts.add((transform.stats().templates, len(define_executables(transform))))
    assert len(counts) == 1


def test_bfloat16_sums_stay_in_float32_between_kernels():
    with recompute():
        transform, _ = shared(norm_residual, 17, grad=False, dtype="bfloat16")
    (stream,) = [call for call in transform.calls() if max(call.arities())[:1] > (8,) and "sum" in call.template.name]
    executables = stream.executables(max(stream.arities()))
    assert len(executables) > 2
    for fold, later in itertools.pairwise(executables):
        assert all(fold.graph.ops[-1].outputs[0].dtype == "float32" for _ in fold.graph.outputs)
        assert any(type_.dtype == "float32" for type_ in later.graph.inputs)


def test_a_tensor_like_another_one_is_a_full_one():
    """Our executor has such a one in its regions, for its strides, which nvFuser chooses itself."""
    type_ = TensorType("float32", (5, 8), "cuda")
    ops = (
        Op("torch.full_like", (Ref(0), Const("float", (2.0).hex())), (type_,)),
        Op("prims.add", (Ref(0), Ref(1)), (type_,)),
    )
    graph = Graph((type_,), ops, (2,))
    with fake_cuda.pretend_gpu():
        text = repr(define(graph, describe_contiguous(graph)))
    assert text.count("ops.full") == text.count("ops.add") == 1


def test_a_definition_says_what_the_region_does():
    transform, _ = shared(add_residuals, 2, grad=False)
    (call,) = [call for call in transform.calls() if call.template.name.startswith("residual")]
    (executable,) = call.executables((1,))
    with fake_cuda.pretend_gpu():
        text = repr(define(executable.sources[0], describe_contiguous(executable.sources[0])))
    assert text.count("define_tensor") == 2
    assert text.count("ops.add") == 1
    assert text.count("add_output") == 1
    assert "tanh" not in text


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
