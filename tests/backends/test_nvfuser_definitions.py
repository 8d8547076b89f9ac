"""Definitions that nvFuser gets to compile, for known and any sizes: from real traces, and nothing is executed."""

import json
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import fake_cuda
import pytest
import thunder.torch as ltorch
import torch
from drawn_regions import draw
from models import find_fused, recompute
from nvfuser_definitions import add_residuals, define_executables, define_regions
from repository import run_code
from thunder_versions import VERSION

import fusioncache
from fusioncache import FusionCache
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.backends.nvfuser.definition import CompiledDefinition, define, describe_contiguous, find_repeats
from fusioncache.backends.nvfuser.general import (
    CompiledGeneral,
    check_integers,
    compiled_generals,
    define_general,
    expand_results,
    find_code,
)
from fusioncache.ir import Const, Declined, GeneralInstance, Graph, Instance, NumberType, Op, Ref, Scope, TensorType
from fusioncache.ir.template import encode_region
from fusioncache.template.generalization import make_family
from fusioncache.transform.region import region_of


def norm_residual(x, *weights):
    for weight in weights:
        x = x + weight @ ltorch.rms_norm(x, (x.shape[-1],))
    return x


def shared(function, inputs: int, *, grad: bool, dtype: str = "float32", residual: str = "auto"):
    """Returns the transform and its traces for a function of square matrices."""
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


def test_the_definitions_of_a_recomputed_residual_stream_do_not_grow_with_depth():
    counts = []
    for layers in (16, 18):
        with recompute():
            transform, traces = shared(add_residuals, 2 * layers + 1, grad=True, residual="fold")
        stats = transform.stats()
        assert stats.regions == sum(len(find_fused(trace)) for trace in traces) == 4 * layers + 1
        assert not stats.bypasses
        counts.append((stats.templates, len(define_executables(transform))))
    assert counts == [(5, 9)] * 2  # all folds of up to 32 terms are among the nine


def test_other_options_are_another_template():
    with fake_cuda.pretend_gpu():
        one, same, enabled, disabled = (
            NvFuser(**options).environment()
            for options in ({}, {}, {"enable": ["fuse_matmul"]}, {"disable": ["fuse_matmul"]})
        )
    assert one == same != enabled != disabled


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
    """nvFuser schedules a kernel by the order of its definition: equal definitions give equal bits."""
    transform, _ = shared(norm_residual, 7, grad=True, dtype=dtype)
    plain = define_regions(fake_cuda.make_traces(norm_residual, [(10, 10)] * 7, grad=True, dtype=dtype))
    ours = define_executables(transform)
    assert len(ours) == transform.stats().templates < transform.stats().regions
    # Thunder passes an unused input there, and our definition does not.
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
        # A merged result is reshaped again: one copy too many, because dimensions are not tracked one by one.
        (f"tanh(reshape({HEADS}, (24, 8)))", KEYS, {1, 2}),
        (f"tanh(reshape({HEADS}, (2, 3, 4, 8)))", KEYS, {1, 2}),
        ("tanh(reshape(broadcast_in_dim(keys, (2, 1, 3, 8), (0, 2, 3)), (6, 8)))", (2, 3, 8), set()),
        # An unchanged dimension beside a merged one stays expanded.
        ("tanh(reshape(reshape(broadcast_in_dim(keys, (5, 3, 4), (1, 2)), (5, 12)), (60,)))", (3, 1), {1, 2}),
    ],
)
def test_repeats_of_which_something_is_computed_are_found(text, keys, found):
    graph = region(text, keys)
    assert find_repeats(graph, [None] * len(graph.inputs)) == found


@pytest.mark.parametrize(("queries", "expanded", "found"), [(4, None, {0}), (4, True, set()), (1, None, set())])
def test_an_argument_may_be_expanded(queries, expanded, found):
    graph = region(f"tanh(reshape(keys, (2, {3 * queries}, 8)))", (2, 3, queries, 8))
    assert find_repeats(graph, [((True, True, expanded, True), (3, 2, 1, 0), ())]) == found


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
    results, names, operands = zip(
        *re.findall(r"(tv\d+) = fd\.ops\.(\w+)\((tv\d+)", write(region(f"tanh({heads})"))), strict=True
    )
    # nvFuser writes a copy as a cast to the same dtype.
    assert names == ("expand", "reshape", "cast", "tanh") and operands[1:] == results[:-1]


_WORKER = """
import json, sys
from fusioncache.backends.nvfuser.translators import import_torch
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
used = [torch.nested.nested_tensor, torch.optim.SGD, torch.distributions.Normal, torch._meta_registrations.meta_mm]
meta = torch.ones(2, 3, device="meta") @ torch.ones(3, 4, device="meta")
print(json.dumps({
    "used": [one.__name__ for one in used], "meta": meta.shape,
    "texts": texts, "asked": asked, "versions": write_versions(),
    "whole": [name for name in ("thunder.core.jit_ext", "torch._dynamo") if name in sys.modules],
}))
"""


def many_operations(x, y, weight):
    a = ltorch.softmax(ltorch.layer_norm(x, (x.shape[-1],), weight[0]), -1) + ltorch.gelu(y, approximate="tanh")
    b = ltorch.rms_norm(y, (y.shape[-1],)) * ltorch.sigmoid(x) - ltorch.silu(a)
    c = ltorch.cat([b[:, 5:], -b[:, :5]], -1).transpose(0, 1)
    d = ltorch.where(c > 0, c.to(torch.float32), 0.5) ** 2 / (1 + ltorch.exp(c).sum(0, keepdim=True))
    e = ltorch.var(d, -1, keepdim=True) + ltorch.amax(d, -1, keepdim=True) * ltorch.rsqrt(ltorch.abs(d.mean()) + 1e-5)
    f = ltorch.pad(ltorch.tanh(weight @ a), (1, 2), value=0.0)[:, 1:-2]
    return (e * d.reshape(-1).reshape(d.shape) + ltorch.full_like(f, 2.0) * f).to(x.dtype)


def test_definitions_are_the_same_and_no_gpu_is_opened():
    with fake_cuda.pretend_gpu():
        traces = fake_cuda.make_traces(many_operations, [(10, 10)] * 3, grad=True, dtype="bfloat16")
        regions = [region_of(fusion) for trace in traces for fusion in find_fused(trace)]
    expected = list(map(write, regions))
    places = [(tuple(range(len(region.inputs))), tuple(range(len(region.outputs)))) for region in regions]
    sent = [encode_region(Instance(region, *place)).decode() for region, place in zip(regions, places, strict=True)]
    found = json.loads(run_code(_WORKER, given=json.dumps(sent)))
    assert len(expected) >= 4 and sum(text.count("fd.ops.") for text in expected) > 100
    assert found["texts"] == expected
    assert not found["asked"] and not found["whole"]
    assert found["used"] == ["nested_tensor", "SGD", "Normal", "meta_mm"] and found["meta"] == [2, 4]
    assert f"thunder {VERSION}" in found["versions"]


def define_family(*regions: Graph) -> str:
    """Returns the definition for any sizes, with contiguous arguments."""
    with fake_cuda.pretend_gpu():
        return repr(define_general(make_family(list(regions)).general, describe_contiguous(regions[0])))


def rows(what: str, batch: int, length: int) -> Graph:
    """Returns a region: a product of rows with a weight, then the named operation; or a lookup of rows in a table."""
    shape = batch, length, 4
    product = f"mul(x, broadcast_in_dim(w, {shape}, (2,)))"
    made = {
        "merged": f"reshape({product}, ({batch * length}, 4))",
        "half": f"slice_prim({product}, (0, 0, 0), ({batch}, {length // 2}, 4), (1, 1, 1))",
        "padded": f"pad({product}, 0.0, ((0, 0, 0), (0, {256 - length}, 0), (0, 0, 0)))",
        "masked": f"add({product}, full({shape}, 0.5, device='cuda', dtype='float32'))",
        "scaled": f"mul({product}, {1 / length})",
        "multiplied by an input": f"mul({product}, n)",
        "placed": f"mul(convert_element_type({product}, 'int64'), {length})",
    }
    if what == "looked up":  # a function of torch: its id is a text, and a primitive's is a member of an enumeration
        tokens, table, found = TensorType("int64", shape[:2], "cuda"), tensor(16, 4), tensor(*shape)
        return Graph((tokens, table), (Op("torch.embedding", (Ref(0), Ref(1)), (found,)),), (2,))
    number = {"n": NumberType("float")} if "n)" in made[what] else {}
    return draw(made[what], device="cuda", x=shape, w=(4,), **number)


SYMBOLIC = {
    "merged": (r"fd\.ops\.reshape\(\w+, new_shape=\[c\d+, 4\]\)", {"Int": 1}),
    "half": (r"fd\.ops\.slice\(\w+, start_indices=\[0, 0, 0\], end_indices=\[c\d+, c\d+, 4\]", {"Int": 1}),
    "padded": (r"fd\.ops\.pad\(\w+, pad_widths=\[0, 0, 0, c\d+, 0, 0\]", {"Int": 1}),
    "masked": (r"fd\.ops\.full\(shape=\[c\d+, c\d+, 4\]", {}),
    "scaled": (r"fd\.ops\.mul\(\w+, c\d+\)", {"Double": 1}),
    "multiplied by an input": (r"fd\.ops\.mul\(\w+, c\d+\)", {"Double": 1}),
    "placed": (r"fd\.ops\.mul\(\w+, c\d+\)", {}),
    "looked up": (r"fd\.ops\.index_select\((.|\n)*new_shape=\[c\d+, c\d+, 4\]", {}),
}
"""A pattern of each definition, and counts of its numeric inputs by type: of sizes that no input has."""


@pytest.mark.parametrize("what", SYMBOLIC)
def test_what_varies_is_symbolic(what):
    text = define_family(rows(what, 2, 8), rows(what, 3, 16))
    line, numbers = SYMBOLIC[what]
    assert "shape=[-1, -1" in text and re.search(line, text) and not re.search(r"0\.125|0\.0625", text)
    assert Counter(re.findall(r"define_scalar\(None, dtype=DataType\.(\w+)\)", text)) == numbers


def test_a_dimension_that_is_left_out_where_sizes_are_known_is_no_size():
    """The sum is over all dimensions, the first of which is 1: nvFuser omits that one if it knows the sizes."""
    regions = [
        draw(f"sum(reshape(x, (1, {length}, 4)), (0, 1, 2))", device="cuda", x=(length, 4)) for length in (8, 16)
    ]
    assert "dims=[0, 1, 2]" in define_family(*regions)
    assert not any("2" in re.findall(r"dims=.*", write(each))[-1] for each in regions)


@pytest.mark.parametrize(
    "compute",
    [lambda one, other: one, lambda one, _: one // 2, lambda one, _: 256 - one, lambda one, other: one - other],
)
def test_a_translator_that_computes_with_a_size_is_refused(monkeypatch, compute):
    """A number computed from a size is not constant, even if it is equal in all regions."""

    def merged(a, shape, *, fd, lc_to_nv_map):
        batch, length, width = a.shape
        made = abs(compute(*(int(getattr(size, "value", size)) for size in (batch, length))))
        return fd.ops.reshape(lc_to_nv_map[a], new_shape=[made, -1, width])

    monkeypatch.setattr("fusioncache.backends.nvfuser.general.TRANSLATORS", {"RESHAPE": merged})
    with pytest.raises(Declined, match="takes for constant"):
        define_family(rows("merged", 2, 8), rows("merged", 3, 16))


def widened(length: int) -> Graph:
    """Returns a region that takes as many rows of a table as x has, and broadcasts them to a batch of two."""
    rows = f"slice_prim(table, (0, 0), ({length}, 4), (1, 1))"
    return draw(f"broadcast_in_dim({rows}, (2, {length}, 4), (1, 2))", "tanh(x)", x=(length, 4), table=(64, 4))


WIDENED = make_family([widened(8), widened(12)]).general


def refuse_size(nvfuser: NvFuser, length: int, reason: str, scope: Scope) -> None:
    args = [torch.ones(length, 4), torch.ones(64, 4)]
    with pytest.raises(Declined, match=reason) as refusal:
        nvfuser.persist_size(GeneralInstance(WIDENED, (length,)), widened(length), args)
    assert refusal.value.scope is scope


KEPT = "persistence.compile_kept"
FAILURES = {
    "a translator": ("define_general", RuntimeError(), "compile failed: RuntimeError", Scope.GENERAL, 1),
    "nvFuser": (KEPT, RuntimeError("NVF_ERROR"), "compile failed: RuntimeError", Scope.GENERAL, 1),
    "CUDA": (KEPT, RuntimeError("CUDA error"), "compile failed: RuntimeError", Scope.STORING_NOW, 1),
    "a disk": (KEPT, OSError(), "compile failed: OSError", Scope.STORING_NOW, 1),
    "memory": (KEPT, torch.OutOfMemoryError(), "keeping failed: OutOf", Scope.STORING_NOW, 2),
}
"""Failures: the function, its error, the reason, how long that holds, and how often two sizes try."""


@pytest.mark.parametrize(("name", "error", "reason", "scope", "tries"), FAILURES.values(), ids=FAILURES)
def test_only_what_fails_everywhere_is_refused_for_good(monkeypatch, name, error, reason, scope, tries):
    fail = mock.Mock(side_effect=error)
    for each, does in {"define_general": mock.Mock(), name: fail}.items():
        monkeypatch.setattr(f"fusioncache.backends.nvfuser.general.{each}", does)
    compiled_generals().clear()
    with fake_cuda.pretend_gpu():
        refuse_size(NvFuser(), 12, "an input that is no CUDA tensor", Scope.GENERAL)  # before anything is compiled
        monkeypatch.setattr("fusioncache.backends.nvfuser.persistence.check_persistable", lambda *given: None)
        for length in (12, 20):
            refuse_size(NvFuser(), length, reason, scope)
    assert fail.call_count == tries


def test_code_for_any_sizes_serves_only_what_it_was_compiled_for(monkeypatch):
    define, compile_ = mock.Mock(), mock.Mock()
    monkeypatch.setattr("fusioncache.backends.nvfuser.general.define_general", define)
    monkeypatch.setattr("fusioncache.backends.nvfuser.persistence.compile_kept", compile_)
    compiled_generals().clear()
    other, table = replace(WIDENED.graph, outputs=WIDENED.graph.outputs[::-1]), torch.ones(64, 4)
    given = (((), ()), ""), ((("option",), ()), ""), (((), ()), "other")
    backend, *others = (mock.Mock(switches=on, environment=lambda text=text: {"settings": text}) for on, text in given)
    same = (WIDENED, [torch.ones(8, 4), table], (8,), backend)
    changes = [(0, replace(WIDENED, graph=other)), (1, [torch.ones(4, 8).t(), table]), *((3, each) for each in others)]
    find_code(*same)
    assert find_code(WIDENED, [torch.ones(12, 4), table], (12,), backend) is find_code(*same)
    for count, (place, value) in enumerate(changes, 2):
        find_code(*same[:place], value, *same[place + 1 :])
        assert compile_.call_count == define.call_count == count


def test_a_definition_for_any_sizes_takes_the_numbers_of_a_size_behind_its_arguments():
    general, run = make_family([rows("scaled", 2, 8), rows("scaled", 3, 4)]).general, mock.Mock()
    args, run.return_value = [torch.ones(3, 4, 4), torch.ones(4)], [torch.ones(3, 4, 4)]
    fitted = CompiledGeneral(general, CompiledDefinition(run, None, 0), 1.0).fit(general.values[-1])
    assert fitted.run(args) == run.return_value
    assert fitted.numbers == (0.25,) and run.call_args.args == ([*args, 0.25],)


def test_a_number_that_two_regions_happen_to_have_is_refused_for_a_third_without_it(monkeypatch):
    def merged(a, shape, *, fd, lc_to_nv_map):
        return fd.ops.reshape(lc_to_nv_map[a], new_shape=[8, -1, 4])

    monkeypatch.setattr("fusioncache.backends.nvfuser.general.TRANSLATORS", {"RESHAPE": merged})
    general = make_family([rows("merged", 2, 8), rows("merged", 8, 3)]).general
    with fake_cuda.pretend_gpu():
        definition = define_general(general, describe_contiguous(general.regions[0]))
        fits, differs = (
            define(each, describe_contiguous(each)) for each in (rows("merged", 5, 8), rows("merged", 5, 7))
        )
        check_integers(definition, general.graph, [fits])
        with pytest.raises(Declined, match="takes for constant"):
            check_integers(definition, general.graph, [differs])


@pytest.mark.parametrize("length", [12, 20])
def test_results_that_are_not_expanded_are_expanded(length):
    args = [torch.randn(length, 4), torch.randn(64, 4)]
    unexpanded = args[1][None, :length]
    found, other = expand_results(lambda args: [unexpanded, args[0].tanh()], WIDENED, [length])(args)
    assert found.shape == (2, length, 4) and found.stride() == (0, 4, 1) and found.data_ptr() == args[1].data_ptr()
    assert torch.equal(found, unexpanded.expand(2, length, 4)) and torch.equal(other, args[0].tanh())


@pytest.mark.parametrize(
    ("shape", "length"), [((2, 12, 4), 12), ((1, 11, 4), 12), ((12, 4), 12), ((3, 12, 4), 12), ((1, 12, 4), 1)]
)
def test_results_of_other_shapes_are_refused_unless_the_arguments_are_others(shape, length):
    args, made = [torch.randn(length, 4), torch.randn(64, 4)], torch.zeros(shape)
    run = expand_results(lambda args: [made, args[0].tanh()], WIDENED, [12])
    with nullcontext() if shape[:2] == (2, 12) or length == 1 else pytest.raises(Declined, match="another shape"):
        assert run(args)[0] is made
