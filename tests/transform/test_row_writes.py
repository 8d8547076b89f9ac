"""Rows that are written in place, where Thunder makes two copies of all: in each case the same bits everywhere."""

from collections import Counter

import pytest
import thunder
import torch
from models import compile_plain, compile_with
from stored_programs import compile_anew, without_interpreter
from thunder.extend import OperatorExecutor
from thunder_versions import IS_FIRST
from torch.utils._python_dispatch import TorchDispatchMode

import fusioncache
from fusioncache.accelerators.steps.tokens import COPIES, NAMES, WRITE_ROWS, write_rows_
from fusioncache.accelerators.steps.views import NOTHING
from fusioncache.tracing import uninstall

ROWS = torch.arange(1.0, 7.0).reshape(2, 3)
PLACES = torch.tensor([3, 1])


@pytest.fixture(autouse=True)
def _eager_regions(eager_regions):
    """What Thunder alone runs is to have the same bits."""


class Cache(torch.nn.Module):
    """Has a buffer of five rows, and a parameter, and does with them what the test says."""

    def __init__(self, act, dtype=torch.float32):
        super().__init__()
        self.register_buffer("rows", torch.arange(15, dtype=dtype).reshape(5, 3))
        self.weight = torch.nn.Parameter(torch.full((3,), 0.5))
        self.act = act

    def forward(self, *args):
        return self.act(self, *args)


def write(cache, rows, places):
    return cache.rows.index_copy_(0, places, rows * cache.weight) + 1


def read_around(cache, rows, places):
    view = cache.rows[:4]
    before = view * 2
    cache.rows.index_copy_(0, places, rows * cache.weight)
    return before, view * 2, cache.rows.sum(0), view


def leave(cache, rows, places):
    cache.rows.index_copy_(0, places, rows * cache.weight)
    return rows + 1


def write_all(cache, rows, places):
    scaled = rows * cache.weight
    return cache.rows[:].index_copy_(-2, places, scaled) + 1


def write_twice(cache, rows, places):
    for _ in range(2):
        cache.rows.index_copy_(0, places, rows)
        rows = rows + cache.rows[:2]
    cache.rows.index_copy_(0, places, rows)
    cache.rows.index_copy_(0, places, rows)
    return rows


def write_into_a_part(cache, rows, places):
    cache.rows[1:5, :2].index_copy_(0, places, rows[:, :2] * cache.weight[:2])
    return cache.rows[1] * 2


def write_each(cache, rows, places):
    for number in range(2):
        cache.rows[number].index_copy_(-1, (places - 1)[number : number + 1], rows[number, :1])
    return cache.rows * 1


def shift(cache, rows, places):
    cache.rows.index_copy_(0, torch.arange(1, 5), cache.rows[:4])
    cache.rows[:, 1:].index_copy_(0, torch.arange(1, 5), cache.rows[:4, :2])
    return cache.rows * 1


def return_it(cache, rows, places):
    return cache.rows.index_copy_(0, places, rows), cache.rows


def write_into_what_is_computed(cache, rows, places):
    computed = cache.rows * cache.weight
    written = computed.index_copy_(0, places, rows)
    return computed + written


ACTS = (write, read_around, leave, write_twice, write_into_a_part, write_each, shift, return_it)
ACTS += (write_all, write_into_what_is_computed)


def look(compiled, model, *args):
    """What a call returns or raises, and what is in the buffer then."""
    try:
        results = compiled(*args)
        results = results if isinstance(results, tuple) else (results,)
    except Exception as error:
        return [type(error), model.rows.clone()]
    memory = model.rows.untyped_storage().data_ptr()
    shared = [(each is model.rows, each.untyped_storage().data_ptr() == memory) for each in results]
    return [shared, *(each.clone() for each in results), model.rows.clone()]


def are_same(one, other):
    assert len(one) == len(other)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other, strict=True))


def compare(act, *args, times=2, **options):
    """Has Thunder, and us, do the same to a buffer several times; returns what was taken out of our program."""
    plain, model = Cache(act), Cache(act)
    alone = compile_plain(plain)
    compiled, transform = compile_with(model, programs=False, **options)
    for _ in range(times):
        assert are_same(look(compiled, model, *args), look(alone, plain, *args))
    return transform.stats().taken_out


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@torch.no_grad()
def test_values_memory_and_the_buffer_are_thunders(act):
    assert compare(act, ROWS, PLACES)[COPIES] == 2 * {write_twice: 4, write_each: 2, shift: 2}.get(act, 1)


@torch.no_grad()
def test_arguments_that_torch_refuses_in_place_or_at_all():
    assert compare(write, ROWS, torch.tensor([2, 2]))[COPIES] == 2  # the last one stays
    compare(write, ROWS[:1], PLACES[:1].reshape(()))
    shared = torch.arange(12.0).reshape(4, 3)
    compare(lambda cache, one, other: one.index_copy_(0, torch.arange(2), other) * 2, shared, shared[:2])
    integers = torch.arange(8).reshape(4, 2)
    if IS_FIRST:  # later versions, alone, write rows twice that overlap
        compare(lambda cache, one, other: one.index_copy_(0, torch.arange(3), other) * 2, shared, shared[1:])
        compare(lambda cache, one, places: one.index_copy_(0, places, one[2:] + 1) * 2, integers, integers[:2, 1])


@torch.no_grad()
def test_where_there_is_no_such_row_it_is_as_without_thunder():
    for places in (torch.tensor([0, 5]), torch.tensor([0, -1])):
        model, eager = Cache(write), Cache(write)
        compiled, _ = compile_with(model, programs=False)
        assert are_same(look(compiled, model, ROWS, places), look(eager, eager, ROWS, places))


def test_what_is_wider_than_its_memory_raises_as_in_torch():
    with pytest.raises(RuntimeError, match="single memory location"):
        write_rows_(torch.zeros(1, 3).expand(5, 3), 0, PLACES, ROWS)


def test_rows_that_lie_in_the_buffer_are_read_before_any_is_written():
    found = [torch.arange(30.0).reshape(6, 5) for _ in range(2)]
    for each, change in zip(found, (write_rows_, lambda a, *args: a.copy_(torch.index_copy(a, *args))), strict=True):
        change(each[:, ::2], 0, torch.tensor([1, 2, 3]), each[:3, ::2])  # torch does not find that they overlap
    assert torch.equal(*found)


@torch.no_grad()
def test_a_write_of_another_type_stays_thunders():
    """Of rows; places of another type are places."""
    assert COPIES not in compare(write, ROWS.double(), PLACES)
    taken = compare(lambda cache, rows, places: cache.rows.index_copy_(0, places.int(), rows), ROWS, PLACES)
    assert taken[COPIES] == 2


def test_what_may_compute_gradients_is_left_alone():
    """Also where gradients are off for a part of it alone, or on."""

    def train(cache, rows, places):
        with torch.no_grad():
            cache.rows.index_copy_(0, places, rows * 2)
        return cache.weight * cache.rows[:2] * 3 + rows

    found = []
    for compile_model in (compile_plain, lambda model: compile_with(model, programs=False)[0]):
        model = Cache(train)
        compiled, rows = compile_model(model), ROWS.clone().requires_grad_()
        compiled(rows, PLACES).backward(torch.ones(2, 3))
        assert WRITE_ROWS not in str(thunder.last_traces(compiled)[-1])
        found.append([rows.grad, model.weight.grad, model.rows])
    assert are_same(*found)


def test_gradients_that_are_wanted_where_none_were():
    def turn_on(cache, rows, places):
        cache.rows.index_copy_(0, places, rows)
        with torch.enable_grad():
            return cache.rows * cache.weight

    with torch.no_grad():
        assert COPIES not in compare(turn_on, ROWS, PLACES)


def test_a_leaf_that_requires_a_gradient_is_not_written():
    def write_parameter(cache, rows, places):
        return cache.leaf.index_copy_(0, places, rows) * 2

    for compile_model in (compile_plain, lambda model: compile_with(model, programs=False)[0]):
        model = Cache(write_parameter)
        model.leaf = torch.nn.Parameter(torch.zeros(5, 3))
        with pytest.raises(RuntimeError, match="leaf Variable"):
            compile_model(model)(ROWS, PLACES)


def test_inference_tensors_and_version_counters():
    model = Cache(write)
    compiled, _ = compile_with(model, programs=False)
    with torch.no_grad():
        before = model.rows._version
        compiled(ROWS, PLACES)
        assert model.rows._version == before + 1
    saved = (model.weight * model.rows).sum()
    with torch.inference_mode():
        compiled(ROWS, PLACES)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
    with torch.inference_mode():
        kept = torch.zeros(5, 3)
    with torch.no_grad():  # regions of Thunder's write into it as well
        assert write_rows_(kept, 0, PLACES, ROWS) is kept
    assert torch.equal(kept[PLACES], ROWS)


def without_order(name, value):
    def compile_model(model, **options):
        transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager", programs=False)
        options = {"transforms": [transform], "executors": fusioncache.executors(), name: value, **options}
        return thunder.jit(model, **options)

    return compile_model


def copies_of_its_own(executor):
    """Has an executor make the copy with the rows in it, in a way of its own."""
    import thunder.torch as ltorch

    def copy(a, dim, index, source):
        return torch.index_copy(a, dim, index, source + 1)

    operator = executor.register_operator("own_index_copy", like=ltorch.index_copy, fn=copy)
    executor.register_implementation(ltorch.index_copy, operator)
    return [executor, *fusioncache.executors()]


@torch.no_grad()
def test_where_it_is_not_done():
    others = copies_of_its_own(OperatorExecutor("others"))
    ways = {
        "thunder's order": without_order("fusion_type", "dataflow"),
        "no names": without_order("skip_inplace_alias_updates", True),
        "another executor": without_order("executors", others),
        "not asked": lambda model: compile_with(model, programs=False, lean="thunder")[0],
    }
    for name, compile_model in ways.items():
        model = Cache(write)
        compiled = compile_model(model)
        compiled(ROWS, PLACES)
        assert WRITE_ROWS not in str(thunder.last_traces(compiled)[-1]), name
        assert torch.equal(model.rows[PLACES], ROWS * 0.5 + (name == "another executor"))
    uninstall()
    model = Cache(write)
    compiled, _ = compile_with(model, programs=False)  # puts it there again
    compiled(ROWS, PLACES)
    assert WRITE_ROWS in str(thunder.last_traces(compiled)[-1])


class Bytes(TorchDispatchMode):
    """Counts the bytes that operations write which copy."""

    def __init__(self):
        super().__init__()
        self.written = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in ("index_copy", "copy_"):
            self.written[name] += result.nbytes
        elif name == "index_copy_":
            self.written[name] += args[3].nbytes
        return result


@torch.no_grad()
def test_what_is_written_and_the_text(tmp_path):
    found = []
    for lean in ("thunder", "auto"):
        model = Cache(write_all)
        compiled, transform = compile_anew(model, tmp_path, lean=lean)
        compiled(ROWS, PLACES)
        with Bytes() as counted:
            compiled(ROWS, PLACES)
        found.append(dict(counted.written))
    size = model.rows.nbytes
    assert found == [{"index_copy": size, "copy_": size}, {"index_copy_": ROWS.nbytes}]
    assert transform.stats().taken_out == {NAMES: 2 if IS_FIRST else 3, COPIES: 2, NOTHING: 1}
    calls = [line.partition("  #")[0].strip() for line in str(thunder.last_traces(compiled)[-1]).splitlines()]
    writes = [line for line in calls if "t_rows" in line and "=" in line and not line.startswith("#")]
    assert len(writes) == 1 and writes[0].endswith(f"= {WRITE_ROWS}(t_rows, -2, places, scaled)"), calls
    again = Cache(write_all)
    loaded, transform = compile_anew(again, tmp_path)
    with without_interpreter():
        for _ in range(2):
            loaded(ROWS, PLACES)
    assert transform.stats().programs_loaded == 1
    assert torch.equal(again.rows, model.rows)
