"""Results of regions have the strides and the memory that plain Thunder gives them, by torch's own operations."""

import logging
import random
from functools import partial

import pytest
import thunder
import torch
import torch.nn.functional as F
from drawn_regions import Sketch, draw
from layouts import CASES, LAYOUTS, SHAPES, make_arguments, strides_of
from models import compile_plain, compile_with

import fusioncache
from fusioncache.cache.results import with_torch_layouts
from fusioncache.ir import TensorType
from fusioncache.ir.ops import TABLE
from fusioncache.template.generalization import identity_instance

without = partial(thunder.jit, executors=[])


def draw_layouts(seed, count, mixed):
    chance = random.Random(seed)
    kinds = list(LAYOUTS.values())
    return [[kind] * count for kind in kinds] + [[chance.choice(kinds) for _ in range(count)] for _ in range(mixed)]


@pytest.fixture(autouse=True)
def nothing_unknown(caplog):
    """Asserts that no layout was unknown, which would be logged and left as it is."""
    caplog.set_level(logging.INFO, logger="fusioncache")
    yield
    assert not [record for record in caplog.records if "is not known" in record.getMessage()]


def test_each_claimed_operation_gives_the_strides_of_torch():
    cache, compared, claimed = fusioncache.Cache(record=False, store=False), 0, {"prims.shallow_copy"}
    for name, function in CASES.items():
        plain, (ours, transform) = (
            without(function),
            compile_with(function, cache=cache, programs=False),
        )
        for shape in SHAPES:
            ambiguous = shape is SHAPES[1]
            if ambiguous and name == "batch_norm":
                continue  # with one column the channels' dimension is ambiguous, and torch has two answers
            for lays in draw_layouts(name, 3, mixed=1)[:: 1 + 2 * ambiguous]:
                arguments = make_arguments(lays, shape)
                expected, found = plain(*arguments), ours(*arguments)
                said = f"{name} of {[argument.stride() for argument in arguments]}"
                assert strides_of(found, apparent=ambiguous) == strides_of(expected, apparent=ambiguous), said
                torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True, msg=said)
                compared += 1
        assert transform.calls() and not transform.stats().bypasses, name
        claimed |= {op.name for call in transform.calls() for op in call.template.graph.ops}
    assert compared >= 1700
    assert claimed >= {name for name, traits in TABLE.items() if traits.fusible}


def many(x, y, m):
    total = torch.softmax(x * y, -1)
    views = total.view(6, -1), x.sin().unsqueeze(0), x[:, 1:]
    normed = F.log_softmax(x, 1), F.layer_norm(x, (5,))
    chosen = x.masked_fill(m, 0.5), torch.pow(2.0, x), torch.clamp(x, y, y + 1), torch.zeros_like(x)
    return total, *views, *normed, *chosen, total[:, 1:] * 1.0, x * 2


@pytest.mark.parametrize("compiler", ["eager", "inductor"])
def test_so_it_is_with_each_compiler_with_what_it_stored_and_without_the_transform(tmp_path, monkeypatch, compiler):
    monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: compiler)
    arguments = make_arguments([LAYOUTS["channels last"], LAYOUTS["expanded"], LAYOUTS["transposed"]])
    expected = without(many)(*arguments)
    for loads, alone in ((False, False), (compiler == "inductor", False), (False, True)):
        cache = fusioncache.Cache(record=False, store=tmp_path)
        ours, transform = compile_with(many, compiler, cache, programs=False)
        ours = compile_plain(many) if alone else ours
        for _ in range(2):
            found = ours(*arguments)
            assert strides_of(found) == strides_of(expected)
            torch.testing.assert_close(found, expected)
            assert found[0].data_ptr() == found[1].data_ptr()
            assert found[3].data_ptr() == arguments[0][:, 1:].data_ptr()
        assert bool(transform.stats().loads) is loads


def test_so_it_is_with_regions_of_any_sizes():
    def function(x):
        return torch.softmax(x * 2, -1) + 1

    plain, (ours, transform) = (
        without(function),
        compile_with(function, sizes="dynamic", programs=False),
    )
    for rows in (4, 6, 9, 11):
        x = torch.rand(5, rows).t()
        assert strides_of(ours(x)) == strides_of(plain(x)) == [((rows, 5), (5, 1))]
    assert transform.stats().general_hits


def test_two_names_for_one_result_are_two_tensors_with_one_memory():
    def function(w):
        v = torch.sin(w)
        return v, v.reshape(6, 6), v.view(6, 6)

    ours, _ = compile_with(function, programs=False)
    for _ in range(2):
        one, *others = ours(torch.zeros(6, 6))
        one.unsqueeze_(0)
        assert [tuple(other.shape) for other in others] == [(6, 6), (6, 6)]
        one.add_(1)
        assert all(torch.equal(other, torch.ones(6, 6)) for other in others)


def test_a_result_is_the_argument_where_it_is_for_torch_and_else_a_tensor_of_its_own():
    """``to`` returns its argument where there is nothing to do."""
    same, _ = compile_with(lambda w: (torch.zeros(2), w.to(torch.float32)), programs=False)
    shaped, _ = compile_with(lambda w: (torch.zeros(2), w.reshape(6, 6).to(torch.float32)), programs=False)
    for _ in range(2):
        w = torch.zeros(6, 6)
        assert same(w)[1] is w
        result = shaped(w)[1]
        result.unsqueeze_(0).add_(1)
        assert w.shape == (6, 6) and torch.equal(w, torch.ones(6, 6))


def test_a_view_of_what_is_an_argument_all_the_same_is_not_left_out():
    """It follows an alias of an argument, so that the result is a view of the argument, and not the argument."""

    def function(p):
        view = p.to(torch.float32).expand(4, 4)[0:4]
        return view.reshape(16), view

    for p in (torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)):
        ours, _ = compile_with(function, programs=False)
        for _ in range(2):
            result = ours(p)[1]
            assert result is not p and result.data_ptr() == p.data_ptr()


@pytest.mark.parametrize("of_argument", [True, False])
def test_a_view_that_a_compiler_does_not_tell_autograd_of_is_made_one(of_argument):
    """Otherwise a write into it would change, unnoticed, what autograd saved of the other tensor."""
    graph = draw("transpose(x, (1, 0))") if of_argument else draw("neg(x)", "transpose(neg(x), (1, 0))")

    def run(args):
        base = args[0] if of_argument else -args[0]
        view = torch.empty(0).set_(base.untyped_storage(), 0, (3, 2), (1, 3))
        return [view] if of_argument else [base, view]

    args = [torch.randn(2, 3)]
    fixed, first = with_torch_layouts(run, identity_instance(graph), args, run(args))
    for results in (first, fixed(args)):
        base, view = args[0] if of_argument else results[0], results[-1]
        assert view._is_view() and torch.equal(view, base.t())
        before = base._version
        view.zero_()
        assert base._version > before


def test_one_object_for_two_views_is_made_two():
    sketch = Sketch()
    x = sketch.input()
    views = [sketch.op("transpose", x, (1, 0), type_=TensorType("float32", (3, 2), "cpu")) for _ in range(2)]
    args = [torch.randn(2, 3)]

    def run(args):
        return [args[0].t()] * 2

    fixed, first = with_torch_layouts(run, identity_instance(sketch.graph(*views)), args, run(args))
    for one, other in (first, fixed(args)):
        assert one is not other and one.data_ptr() == other.data_ptr() == args[0].data_ptr()
