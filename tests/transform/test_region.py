"""What is read out of a fused call, and what is refused with a reason."""

from types import SimpleNamespace

import pytest
import thunder
import torch
from models import find_fused
from thunder.common import CompileData, CompileStats
from thunder.core import devices, dtypes, prims
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.options import CACHE_OPTIONS
from thunder.core.proxies import CONSTRAINT, FloatProxy, IntegerProxy, TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, tracectx

import fusioncache
from fusioncache.backends import bound_symbols
from fusioncache.backends.bound_symbols import bind, find_fixed_gpu
from fusioncache.ir import Const, Declined, NumberType, Op, Ref, TensorType
from fusioncache.transform.executors import origin_of
from fusioncache.transform.region import region_of

F32 = TensorType("float32", (2, 3), "cpu")


def fusion_of(build, *shapes, device="cpu", dtype=dtypes.float32):
    """The call of the fused symbols that ``build`` binds; it returns the outputs."""
    trace = TraceCtx(None)
    with tracectx(trace):
        inputs = [
            shape
            if not isinstance(shape, tuple)
            else TensorProxy(shape=shape, device=devices.Device(device), dtype=dtype)
            for shape in (shape() if callable(shape) else shape for shape in shapes)
        ]
        outputs = build(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    symbol = Symbol("region0", meta=None, is_fusion=True)
    return symbol.bind(*inputs, output=outputs, subsymbols=tuple(trace.bound_symbols))


def reason(build, *shapes, **options):
    with pytest.raises(Declined) as caught:
        region_of(fusion_of(build, *shapes, **options))
    return caught.value.reason


def test_types_ops_and_outputs():
    def build(x, y):
        product = prims.mul(x, 2.0)
        return prims.sum(prims.add(product, y), (1,)), product

    region = region_of(fusion_of(build, (2, 3), (2, 3)))
    assert region.inputs == (F32, F32)
    assert region.ops[0] == Op("prims.mul", (Ref(0), Const("float", "0x1.0000000000000p+1")), (F32,))
    assert region.ops[1] == Op("prims.add", (Ref(2), Ref(1)), (F32,))
    total = region.ops[2]
    assert (total.name, total.args) == ("prims.sum", (Ref(3), (Const("int", "1"),)))
    assert total.outputs == (TensorType("float32", (2,), "cpu"),)
    assert region.outputs == (4, 2)


def test_numbers_and_ops_with_several_results():
    def build(x, exponent):
        variance, mean = prims.var_mean(prims.pow(x, exponent), (0,), correction=0)
        return variance, mean

    region = region_of(fusion_of(build, (2, 3), lambda: FloatProxy(value=2.0)))
    assert region.inputs[1] == NumberType("float")
    assert [len(op.outputs) for op in region.ops] == [1, 2]
    assert region.outputs == (3, 4)
    assert dict(region.ops[1].kwargs)["correction"] == Const("int", "0")


def test_a_result_that_nobody_uses_keeps_its_place():
    fusion = fusion_of(lambda x: prims.var_mean(x, (0,), correction=1)[1], (2, 3))
    pruned = fusion.subsymbols[0].from_bsym(output=(None, fusion.subsymbols[0].output[1]))
    region = region_of(fusion.from_bsym(subsymbols=(pruned,)))
    assert region.ops[0].outputs == (None, TensorType("float32", (3,), "cpu"))
    assert region.outputs == (2,)


def test_symbolic_sizes_are_values():
    trace = TraceCtx(None)
    option = CACHE_OPTIONS.SYMBOLIC_VALUES
    symbolic = CompileData(fn=print, executors_list=(), cache_option=option, disable_preprocessing=True)
    with tracectx(trace), compile_data_and_stats(symbolic, CompileStats()):
        size = IntegerProxy("i0", 5, constraint=CONSTRAINT.DYNAMIC)
        x = TensorProxy("x", shape=(size, 3), device=devices.Device("cpu"), dtype=dtypes.float32)
        y = TensorProxy("y", shape=(size,), device=devices.Device("cpu"), dtype=dtypes.float32)
        z = TensorProxy("z", shape=(size, 4), device=devices.Device("cpu"), dtype=dtypes.float32)
        total = prims.sum.bind(x, (1,), output=y)
        subsymbols = (total, prims.broadcast_in_dim.bind(y, (size, 4), (0,), output=z))
    region = region_of(Symbol("r", meta=None, is_fusion=True).bind(x, output=[z], subsymbols=subsymbols))
    assert region.sizes == 1
    assert region.inputs == (TensorType("float32", (Ref(1), 3), "cpu"),)
    assert region.ops[1].args[1] == (Ref(1), Const("int", "4"))


def test_the_device_type_counts_and_the_index_does_not():
    one, other = (fusion_of(prims.sin, (2, 3), device=f"cuda:{i}") for i in (0, 1))
    assert region_of(one) == region_of(other)
    assert region_of(one) != region_of(fusion_of(prims.sin, (2, 3)))


def filled(device):
    return lambda x: prims.add(x, prims.full((2, 3), 1.0, device=devices.Device(device), dtype=dtypes.float32))


def test_a_tensor_made_where_the_inputs_are_is_made_there_on_each_gpu():
    one, other = (region_of(fusion_of(filled(gpu), (2, 3), device=gpu)) for gpu in ("cuda:0", "cuda:1"))
    assert one == other
    assert dict(one.ops[0].kwargs)["device"] == Const("device", "cuda")
    assert find_fixed_gpu(one) is None
    made = bind(one, gpu=3).bound_symbols[0]
    assert made.kwargs["device"] is devices.Device("cuda:3")


def test_a_function_is_made_for_each_gpu_only_where_it_makes_tensors(monkeypatch):
    monkeypatch.setattr(bound_symbols, "find_gpu", lambda args: args[0])
    makes, other = (region_of(fusion_of(build, (2, 3), device="cuda:0")) for build in (filled("cuda:0"), prims.sin))
    for region, expected in ((makes, [1, 0]), (other, [1])):
        made = []
        run = bound_symbols.on_each_gpu(region, lambda gpu, made=made: made.append(gpu) or (lambda arg: arg))
        assert [run([gpu]) for gpu in (1, 0, 1)] == [1, 0, 1]
        assert made == expected


def test_a_tensor_made_elsewhere_keeps_its_device():
    def build(x):
        return prims.sin(x), prims.full((2, 3), 1.0, device=devices.Device("cuda:1"), dtype=dtypes.float32)

    region = region_of(fusion_of(build, (2, 3), device="cuda:0"))
    assert dict(region.ops[1].kwargs)["device"] == Const("device", "cuda:1")
    assert find_fixed_gpu(region) == 1
    assert bind(region, gpu=3).bound_symbols[1].kwargs["device"] is devices.Device("cuda:1")


def write(source, target):
    return prims.copy_(source, target, grad_enabled=False)


def test_a_write_into_an_input_is_taken():
    region = region_of(fusion_of(lambda x, y: prims.sin(write(prims.add(x, y), x)), (2, 3), (2, 3)))
    assert region.ops[1].name == "prims.copy_"
    assert region.ops[1].args == (Ref(2), Ref(0))


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda x, y: write(prims.sin(x), prims.cos(y)), "a value of the region written in place"),
        (lambda x, y: (write(prims.sin(x), y), prims.neg(y)), "a value used after it was written in place"),
        (lambda x, y: (write(prims.sin(x), y), write(prims.cos(x), y)), "a value written in place twice"),
        (lambda x, y: (write(y, x), write(prims.sin(x), y)), "a value written in place copied in place"),
    ],
)
def test_other_writes_are_refused(build, why):
    assert reason(build, (2, 3), (2, 3)) == why


def test_the_state_of_a_random_generator_is_refused():
    def draw(x):
        return prims.add(x, prims.uniform((2, 3), 0.0, 1.0, device=x.device, dtype=x.dtype))

    assert reason(draw, (2, 3)) == "random state used by prims.uniform"


def test_random_numbers_from_a_seed_are_taken():
    def draw(x, seed, offset):
        return prims.uniform_philox((2, 3), 0.0, 1.0, device=x.device, dtype=x.dtype, seed=seed, offset=offset)

    number = lambda: IntegerProxy(value=3)  # noqa: E731
    assert region_of(fusion_of(draw, (2, 3), number, number)).ops[0].name == "prims.uniform_philox"


def test_operations_of_others_are_refused():
    executor = thunder.extend.OperatorExecutor("others")
    mine = executor.register_operator("mine", like=lambda x: x, fn=torch.sin)
    assert reason(lambda x: prims.sin(mine(x)), (2, 3)) == "unknown operation mine"


def with_parts(fusion, **fields):
    """Returns a fused call whose first operation has other parts."""
    return fusion.from_bsym(subsymbols=(fusion.subsymbols[0].from_bsym(**fields), *fusion.subsymbols[1:]))


class Sharded(TensorProxy):
    """Another tensor than a tensor."""


def make_sharded():
    with tracectx(TraceCtx(None)):
        return Sharded("s", shape=(2, 3), device=devices.Device("cpu"), dtype=dtypes.float32)


IMPOSTOR = Symbol("sin", meta=lambda x: x, id=prims.PrimIDs.SIN, is_prim=True)
"""A symbol with a known id and another meaning."""


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda fusion: with_parts(fusion, sym=IMPOSTOR), "unknown operation sin"),
        (lambda fusion: fusion.from_bsym(subsymbols=fusion.subsymbols[1:]), "a value that no operation defines"),
        (lambda fusion: fusion.from_bsym(subsymbols=(fusion.subsymbols[0],) * 2), "a value defined twice"),
        (lambda fusion: fusion.from_bsym(args=fusion.args * 2), "a value defined twice"),
        (
            lambda fusion: with_parts(fusion, output=(fusion.subsymbols[0].output, 3)),
            "a result of the region is not a tensor or a number",
        ),
        (lambda fusion: with_parts(fusion, args=(fusion.args[0], slice(1))), "literal of type slice"),
        (lambda fusion: fusion.from_bsym(args=(make_sharded(),)), "a value of type Sharded"),
    ],
    ids=["impostor", "from nowhere", "computed twice", "given twice", "no value", "literal", "no tensor"],
)
def test_what_no_region_has_is_refused(spoil, why):
    fusion = fusion_of(lambda x: prims.cos(prims.sin(x)), (2, 3))
    assert len(region_of(fusion).ops) == 2
    with pytest.raises(Declined, match=why):
        region_of(spoil(fusion))


def test_a_string_that_is_no_plain_word_stays_out_of_templates():
    fusion = fusion_of(lambda x: prims.neg(x), (2, 3))
    word, text = (
        fusion.from_bsym(subsymbols=(fusion.subsymbols[0].from_bsym(args=(fusion.args[0], given)),))
        for given in ("mean", "Zq a text")
    )
    assert region_of(word).ops[0].args[1] == Const("str", "mean")
    with pytest.raises(Declined, match="a string among its arguments"):
        region_of(text)


def test_regions_of_unknown_executors_are_refused():
    fusion = fusion_of(prims.sin, (2, 3)).from_bsym(_call_ctx={"region0": print})
    with pytest.raises(Declined, match="regions of executor SimpleNamespace"):
        origin_of(fusion.from_bsym(sym=Symbol("region0", is_fusion=True, executor=SimpleNamespace())))
    with pytest.raises(Declined, match="a fused call without a function"):
        origin_of(fusion.from_bsym(_call_ctx={}))


def test_thunders_own_torch_compile_regions_keep_their_compiler():
    executor = thunder.extend.get_executor("torchcompile")
    compiled = thunder.jit(lambda x: torch.tanh(x) * 2, executors=[executor])
    compiled_trace_only(compiled, torch.randn(4))
    (fusion,) = find_fused(thunder.last_traces(compiled)[-1])
    assert origin_of(fusion).backend == "inductor"
    assert [op.name for op in region_of(fusion).ops] == ["torch.tanh", "torch.mul"]


def compiled_trace_only(compiled, *inputs):
    """Runs a function with torch.compile doing nothing, for its trace."""
    with torch.compiler.set_stance("force_eager"):
        compiled(*inputs)


def test_bypasses_are_counted_by_reason_and_leave_the_trace_alone():
    executor = thunder.extend.get_executor("torchcompile")
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager")
    compiled = thunder.jit(lambda x: torch.nn.functional.dropout(x, 0.5), executors=[executor], transforms=[transform])
    compiled_trace_only(compiled, torch.randn(4))
    (fusion,) = find_fused(thunder.last_traces(compiled)[-1])
    assert fusion.sym.name.startswith("TorchCompile")
    assert transform.stats().bypasses == {"random state used by torch.dropout": 1}
    assert (transform.stats().regions, transform.stats().templates) == (1, 0)
