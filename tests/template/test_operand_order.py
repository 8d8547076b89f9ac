"""Effects of the order of a region's operands: the layout of its results, and the consequences."""

import random
from functools import reduce

import pytest
import torch
from drawn_regions import draw
from models import compile_plain, compile_with
from store_processes import Process, X, Y

import fusioncache
from fusioncache.ir import Const, Op, Ref
from fusioncache.ir.template import layouts_of
from fusioncache.template.canonical import canonicalize
from fusioncache.template.strides import Strided, depends_on_operand_order, lay_out_alike, strides_of
from fusioncache.template.writer import instance_of

pytestmark = pytest.mark.usefixtures("eager_regions")
ROWS, COLUMNS = ((4, 6), (6, 1)), ((4, 6), (1, 4))
PLAIN = draw("mul(sin(a), cos(b))", a=(4, 6), b=(4, 6))
TURNED = draw("mul(sin(transpose(a, (1, 0))), cos(b))", a=(6, 4), b=(4, 6))


@pytest.mark.parametrize(
    ("graph", "layouts", "depends"),
    [
        (PLAIN, (ROWS, ROWS), False),
        (PLAIN, (COLUMNS, COLUMNS), False),
        (PLAIN, (ROWS, COLUMNS), True),
        (PLAIN, (((4, 6), (12, 2)), ROWS), False),  # with gaps, in the same order
        (PLAIN, (((4, 6), (0, 1)), ROWS), False),  # expanded
        (TURNED, (((6, 4), (4, 1)), ROWS), True),  # turned in the region
        (TURNED, (((6, 4), (1, 6)), ROWS), True),  # and back again: for torch alone it would not
        (draw("sub(sin(a), cos(b))", a=(4, 6), b=(4, 6)), (ROWS, COLUMNS), True),
        (draw("sub(sin(transpose(a, (1, 0))), cos(b))", a=(6, 4), b=(4, 6)), (((6, 4), (4, 1)), ROWS), False),
        (PLAIN, (((4, 7), (7, 1)), ROWS), True),  # another shape than in the trace
        (draw("mul(flip(a, (0,)), b)", a=(4, 6), b=(4, 6)), (ROWS, ROWS), True),  # of unknown layout
    ],
)
def test_results_depend_on_the_order_of_operands_with_different_layouts(graph, layouts, depends):
    assert depends_on_operand_order(graph, layouts) is depends


def strided(chance: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor with its dimensions in any order, with gaps, or expanded."""
    order = chance.sample(range(len(shape)), len(shape))
    kind, which = chance.choice(("plain", "plain", "gaps", "expanded")), chance.randrange(max(len(shape), 1))
    sizes = list(shape)
    if sizes and kind != "plain":
        sizes[which] = 1 if kind == "expanded" else 2 * sizes[which]
    whole = torch.ones([sizes[dim] for dim in order]).permute([order.index(d) for d in range(len(shape))])
    if kind == "gaps" and sizes:
        return whole[tuple(slice(None, None, 2 if dim == which else None) for dim in range(len(shape)))]
    return whole.expand(shape)


NUMBER = Const("float", "0x1.8p+0")
KERNELS = (
    ("prims.add", torch.add, (Ref(0), Ref(1))),
    ("prims.mul", lambda one: torch.mul(1.5, one), (NUMBER, Ref(0))),
    ("prims.eq", lambda one: torch.eq(one, 1.5), (Ref(0), NUMBER)),
    ("prims.sin", torch.sin, (Ref(0),)),
    ("prims.pow", lambda one: torch.pow(one, 1.5), (Ref(0), NUMBER)),
    ("prims.pow", lambda one: torch.pow(1.5, one), (NUMBER, Ref(0))),
    ("prims.where", torch.where, (Ref(0), Ref(1), Ref(2))),
    ("prims.convert_element_type", lambda one: one.to(torch.float64), (Ref(0),)),
    ("torch.full_like", lambda one: torch.full_like(one, 2.0), (Ref(0),)),
    ("layout.elementwise", lambda *three: torch.addcmul(*three), (Ref(0), Ref(1), Ref(2))),
    ("layout.elementwise", lambda one: torch.clamp(one, 0.5, 1.5), (Ref(0),)),
)


def test_strides_are_those_of_torch():
    """All strides, also those without a meaning: of dimensions of one element."""
    chance = random.Random(0)
    for _ in range(600):
        shape = tuple(chance.choice((1, 2, 3, 3)) for _ in range(chance.randint(0, 4)))
        tensors = [strided(chance, shape) if chance.random() < 0.9 else torch.ones(()) for _ in range(3)]
        for name, function, args in KERNELS:
            operands = tensors[: sum(isinstance(arg, Ref) for arg in args)]
            if function is torch.where:
                condition = torch.empty_strided(operands[0].shape, operands[0].stride(), dtype=torch.bool)
                operands = [condition, *operands[1:]]
            expected = function(*operands)
            known = [Strided(tuple(tensor.shape), tensor.stride()) for tensor in operands]
            found = strides_of(Op(name, args, ()), known, tuple(expected.shape))
            assert found == Strided(tuple(expected.shape), expected.stride()), (name, known)


def compare(function, args, cache=None):
    """Compares results and their strides with Thunder's without fusioncache. Returns the transform."""
    compiled, transform = compile_with(function, cache=cache or fusioncache.Cache(record=False, store=False))
    for found, expected in zip(compiled(*args), compile_plain(function)(*args), strict=True):
        assert torch.equal(found, expected) and found.stride() == expected.stride()
    return transform


def operands(*, alike: bool):
    torch.manual_seed(0)
    a, b, w = torch.randn(257, 129), torch.randn(129, 257).t(), torch.randn(129, 7)
    return a, b.contiguous() if alike else b, w


@pytest.mark.parametrize(("alike", "compiles"), [(True, 1), (False, 2)])
def test_regions_that_differ_in_the_order_of_operands_share_where_these_lie_alike(alike, compiles):
    cache = fusioncache.Cache(record=False, store=False)
    compare(lambda a, b, w: ((torch.sin(a) * torch.cos(b)) @ w,), operands(alike=alike), cache)
    transform = compare(lambda a, b, w: ((torch.cos(b) * torch.sin(a)) @ w,), operands(alike=alike), cache)
    assert cache.stats().compiles == compiles
    assert transform.stats().hits == 1


def test_a_chain_of_terms_that_lie_differently_is_not_folded():
    def chain(*values):
        return (torch.tanh(reduce(lambda total, term: term + total, values)),)

    values = [torch.randn(4, 6), torch.randn(6, 4).t()] * 4
    assert compare(chain, values).stats().compiles == 1


PRODUCTS = {False: draw("mul(sin(x), y)"), True: draw("mul(y, sin(x))", x=(2, 3))}
"""The same product, if commuted with its operands exchanged."""


@pytest.mark.parametrize(("x", "loads"), [(X, [True]), (X.mT.contiguous().mT, [False])])
def test_a_stored_executable_is_loaded_for_the_other_order_only_where_operands_lie_alike(tmp_path, x, loads):
    first, second, third = (Process(tmp_path) for _ in range(3))
    first.run(PRODUCTS[False], x, Y)
    (found,) = second.run(PRODUCTS[True], x, Y)
    assert second.loaded == loads
    assert found.stride() == (Y * torch.sin(x)).stride()
    third.run(PRODUCTS[True], x, Y)
    assert third.loaded == [True]


def test_a_fold_that_is_a_region_of_its_own_does_not_pass_for_another_order(tmp_path):
    """Folds call an executable without a region as well: the function made then is the first region's only."""
    process = Process(tmp_path)
    executable = process.executable(PRODUCTS[False])
    args = [(X.mT.contiguous().mT, Y)[index] for index in canonicalize(PRODUCTS[False]).binding.arguments]
    canonical = canonicalize(PRODUCTS[True])
    for instance, strides in ((None, (1, 2)), (instance_of(PRODUCTS[True], canonical.binding), (3, 1))):
        (result,) = executable.run_for(args, layouts_of(args), process.record_build, instance)(args)
        assert result.stride() == strides
    assert process.loaded == [False, False]


@pytest.mark.parametrize(
    ("shape", "order"),
    [((2, 64, 8), (0, 1, 2)), ((2, 64, 8), (1, 0, 2)), ((2, 64, 8), (2, 1, 0)), ((1, 64, 1), (0, 1, 2)), ((), ())],
)
def test_arguments_of_other_sizes_lie_alike_unless_they_have_gaps_or_overlaps(shape, order):
    other = tuple(96 if size == 64 else size for size in shape)
    given, expected = (
        torch.empty([sizes[axis] for axis in order]).permute([order.index(axis) for axis in range(len(order))])
        for sizes in (shape, other)
    )
    for view in (torch.Tensor.clone, lambda x: x.unsqueeze(0), lambda x: x.sum(-1, keepdim=True) if x.dim() else x):
        before, after = view(given), view(expected)
        assert lay_out_alike(layouts_of([before]), draw("tanh(x)", x=tuple(after.shape))) == layouts_of([after])
    for unknown in (torch.empty(2, 128)[:, ::2], torch.empty(1, 64).expand(2, 64), torch.empty(64)):
        assert lay_out_alike(layouts_of([unknown]), draw("tanh(x)", x=(2, 96))) is None
