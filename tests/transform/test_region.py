"""Regions that are read from fused calls, reasons for refusals, and differences that make two regions unequal."""

import dataclasses
from types import SimpleNamespace

import pytest
import thunder
import torch
from drawn_regions import Sketch
from hypothesis import given
from hypothesis import strategies as st
from models import find_fused
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import FloatProxy, IntegerProxy, TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, tracectx

import fusioncache
from fusioncache.backends.bound_symbols import bind, encode_literal, find_fixed_gpu
from fusioncache.ir import Const, Declined, Graph, NumberType, Op, Ref, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.text import graph_text
from fusioncache.transform.executors import origin_of
from fusioncache.transform.region import region_of

SHAPE = (2, 3)


def fusion_of(build, *inputs, device="cpu"):
    """Returns the fused call of what ``build`` binds; it returns the outputs. An input is a shape or a factory."""
    trace = TraceCtx(None)
    with tracectx(trace):
        where = devices.Device(device)
        given = [
            each() if callable(each) else TensorProxy(shape=each, device=where, dtype=dtypes.float32) for each in inputs
        ]
        outputs = build(*given)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    symbol = Symbol("region0", meta=None, is_fusion=True)
    return symbol.bind(*given, output=outputs, subsymbols=tuple(trace.bound_symbols))


def read(build, *inputs, device="cpu"):
    return region_of(fusion_of(build, *inputs, device=device))


@pytest.mark.parametrize(("kind", "name"), [(IntegerProxy, "int"), (FloatProxy, "float")])
def test_a_number_is_an_input_of_its_type(kind, name):
    region = read(lambda x, number: prims.sin(x), SHAPE, lambda: kind(value=2))
    assert region.inputs[1] == NumberType(name)


def test_a_result_that_is_not_used_keeps_its_place():
    fusion = fusion_of(lambda x: prims.var_mean(x, (0,), correction=1)[1], SHAPE)
    pruned = fusion.subsymbols[0].from_bsym(output=(None, fusion.subsymbols[0].output[1]))
    region = region_of(fusion.from_bsym(subsymbols=(pruned,)))
    assert region.ops[0].outputs == (None, TensorType("float32", (3,), "cpu"))
    assert region.outputs == (2,)


def full_on(device):
    return prims.full((2, 3), 1.0, device=devices.Device(device), dtype=dtypes.float32)


def filled(device):
    return lambda x: prims.add(x, full_on(device))


def test_the_device_type_counts_and_the_index_does_not_but_of_what_is_made_elsewhere():
    one, other = (read(filled(gpu), SHAPE, device=gpu) for gpu in ("cuda:0", "cuda:1"))
    assert one == other != read(filled("cpu"), SHAPE)
    # A tensor made on the inputs' GPU is made on that GPU, whichever it is.
    assert dict(one.ops[0].kwargs)["device"] == Const("device", "cuda")
    assert find_fixed_gpu(one) is None
    assert bind(one, gpu=3).bound_symbols[0].kwargs["device"] is devices.Device("cuda:3")
    # A tensor made on another GPU stays there.
    region = read(lambda x: (prims.sin(x), full_on("cuda:1")), SHAPE, device="cuda:0")
    assert dict(region.ops[1].kwargs)["device"] == Const("device", "cuda:1")
    assert find_fixed_gpu(region) == 1
    assert bind(region, gpu=3).bound_symbols[1].kwargs["device"] is devices.Device("cuda:1")


def write(source, target):
    return prims.copy_(source, target, grad_enabled=False)


def test_a_write_into_an_input_and_random_numbers_from_a_seed_are_taken():
    def draw(x, seed, offset):
        return prims.uniform_philox((2, 3), 0.0, 1.0, device=x.device, dtype=x.dtype, seed=seed, offset=offset)

    region = read(lambda x, y: prims.sin(write(prims.add(x, y), x)), SHAPE, SHAPE)
    assert (region.ops[1].name, region.ops[1].args) == ("prims.copy_", (Ref(2), Ref(0)))
    number = lambda: IntegerProxy(value=3)  # noqa: E731
    assert read(draw, SHAPE, number, number).ops[0].name == "prims.uniform_philox"


def with_parts(fusion, **fields):
    return fusion.from_bsym(subsymbols=(fusion.subsymbols[0].from_bsym(**fields), *fusion.subsymbols[1:]))


class Sharded(TensorProxy): ...


def make_sharded():
    with tracectx(TraceCtx(None)):
        return Sharded("s", shape=(2, 3), device=devices.Device("cpu"), dtype=dtypes.float32)


MINE = thunder.extend.OperatorExecutor("others").register_operator("mine", like=lambda x: x, fn=torch.sin)
IMPOSTOR = Symbol("sin", meta=lambda x: x, id=prims.PrimIDs.SIN, is_prim=True)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda x, y: write(prims.sin(x), prims.cos(y)), "a value of the region written in place"),
        (lambda x, y: (write(prims.sin(x), y), prims.neg(y)), "a value used after it was written in place"),
        (lambda x, y: (write(prims.sin(x), y), write(prims.cos(x), y)), "a value written in place twice"),
        (lambda x, y: (write(y, x), write(prims.sin(x), y)), "a value written in place copied in place"),
        (
            lambda x, y: prims.add(x, prims.uniform((2, 3), 0.0, 1.0, device=x.device, dtype=x.dtype)),
            "random state used by prims.uniform",
        ),
        (lambda x, y: prims.sin(MINE(x)), "unknown operation mine"),
    ],
)
def test_other_writes_the_state_of_a_generator_and_operations_of_others_are_refused(build, why):
    with pytest.raises(Declined) as caught:
        read(build, SHAPE, SHAPE)
    assert caught.value.reason == why


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda fusion: with_parts(fusion, sym=IMPOSTOR), "unknown operation sin"),
        (lambda fusion: fusion.from_bsym(subsymbols=fusion.subsymbols[1:]), "a value that no operation defines"),
        (lambda fusion: fusion.from_bsym(args=fusion.args * 2), "a value defined twice"),
        (
            lambda fusion: with_parts(fusion, output=(fusion.subsymbols[0].output, 3)),
            "a result of the region is not a tensor or a number",
        ),
        (lambda fusion: with_parts(fusion, args=(fusion.args[0], slice(1))), "literal of type slice"),
        (lambda fusion: with_parts(fusion, args=(fusion.args[0], "Zq a text")), "a string among its arguments"),
        (lambda fusion: fusion.from_bsym(args=(make_sharded(),)), "a value of type Sharded"),
    ],
    ids=["impostor", "nowhere", "given twice", "no value", "literal", "no plain word", "no tensor"],
)
def test_what_no_region_has_is_refused(spoil, why):
    fusion = fusion_of(lambda x: prims.cos(prims.sin(x)), SHAPE)
    assert len(region_of(fusion).ops) == 2
    assert region_of(with_parts(fusion, args=(fusion.args[0], "mean"))).ops[0].args[1] == Const("str", "mean")
    with pytest.raises(Declined, match=why):
        region_of(spoil(fusion))


def test_regions_of_unknown_executors_are_refused():
    fusion = fusion_of(prims.sin, SHAPE).from_bsym(_call_ctx={"region0": print})
    with pytest.raises(Declined, match="regions of executor SimpleNamespace"):
        origin_of(fusion.from_bsym(sym=Symbol("region0", is_fusion=True, executor=SimpleNamespace())))
    with pytest.raises(Declined, match="a fused call without a function"):
        origin_of(fusion.from_bsym(_call_ctx={}))


@pytest.mark.parametrize("draws", [False, True])
def test_regions_of_thunders_own_torch_compile_keep_their_compiler_and_a_bypassed_one_its_place(draws):
    executor = thunder.extend.get_executor("torchcompile")
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager")
    function = (lambda x: torch.nn.functional.dropout(x, 0.5)) if draws else (lambda x: torch.tanh(x) * 2)
    compiled = thunder.jit(function, executors=[executor], transforms=[transform] if draws else [])
    with torch.compiler.set_stance("force_eager"):
        compiled(torch.randn(4))
    (fusion,) = find_fused(thunder.last_traces(compiled)[-1])
    assert fusion.sym.name.startswith("TorchCompile")
    assert origin_of(fusion).backend == "inductor"
    if draws:
        assert transform.stats().bypasses == {"random state used by torch.dropout": 1}
        assert (transform.stats().regions, transform.stats().templates) == (1, 0)
    else:
        assert [op.name for op in region_of(fusion).ops] == ["torch.tanh", "torch.mul"]


PARTS = (Graph, Op, Const, Ref, TensorType, NumberType)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_field_of_a_part_is_compared(part):
    assert part.__dataclass_params__.eq and part.__dataclass_params__.frozen
    names = [field.name for field in dataclasses.fields(part) if field.compare and field.hash is None]
    assert vars(part)["__slots__"] == tuple(names)  # there are no other slots


LITERALS = (1, 1.0, True, "1", 0.0, -0.0, 0, False, None, 1j, float("nan"), float("inf"), 1e-5, 1.1e-5)


@given(st.sampled_from(LITERALS), st.sampled_from(LITERALS))
def test_regions_with_literals_that_differ_differ(one, other):
    same = type(one) is type(other) and repr(one) == repr(other)
    drawn = [draw(each) for each in (one, other)]
    assert (drawn[0] == drawn[1]) is same
    assert (graph_text(canonicalize(drawn[0]).graph) == graph_text(canonicalize(drawn[1]).graph)) is same


def draw(literal: object) -> Graph:
    sketch = Sketch()
    return sketch.graph(sketch.op("fmod", sketch.input(), encode_literal(literal)))
