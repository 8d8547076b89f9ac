"""Programs of a token write rows in place, where Thunder makes two copies of all rows."""

from collections import Counter

import pytest
import thunder
import torch
from dispatched import Operations
from models import are_same, compile_plain, compile_with
from stored_programs import compile_anew, without_interpreter
from thunder.extend import OperatorExecutor
from thunder_versions import IS_FIRST
from torch.utils._pytree import tree_leaves

import fusioncache
from fusioncache.accelerators.steps.tokens import COPIES, NAMES, WRITE_ROWS, write_rows_
from fusioncache.accelerators.steps.views import NOTHING

pytestmark = pytest.mark.usefixtures("eager_regions")
"""Thunder alone must compute the same bits."""
ROWS, PLACES = torch.arange(1.0, 7.0).reshape(2, 3), torch.tensor([3, 1])


class Cache(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.register_buffer("rows", torch.arange(15, dtype=torch.float32).reshape(5, 3))
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


def write_each(cache, rows, places):
    for number in range(2):
        cache.rows[number].index_copy_(-1, (places - 1)[number : number + 1], rows[number, :1])
    return cache.rows * 1


def shift(cache, rows, places):
    cache.rows.index_copy_(0, torch.arange(1, 5), cache.rows[:4])
    cache.rows[:, 1:].index_copy_(0, torch.arange(1, 5), cache.rows[:4, :2])
    return cache.rows * 1


ACTS = {
    write: 1,
    read_around: 1,
    write_all: 1,
    write_each: 2,
    shift: 2,
    write_twice: 4,
    lambda cache, rows, places: (cache.rows.index_copy_(0, places, rows * cache.weight), rows + 1)[1]: 1,
    lambda cache, rows, places: (cache.rows.index_copy_(0, places, rows), cache.rows): 1,
    lambda cache, rows, places: cache.rows.index_copy_(0, places.int(), rows): 1,
    lambda cache, rows, places: cache.rows[1:5, :2].index_copy_(0, places, rows[:, :2] * cache.weight[:2])[1] * 2: 1,
    lambda cache, rows, places: (made := cache.rows * cache.weight) + made.index_copy_(0, places, rows): 1,
}


def look(compiled, model, *args):
    """Returns which results share the buffer's memory, or the error's type; then the results and the buffer."""
    try:
        results = tree_leaves(compiled(*args))
    except Exception as error:
        return type(error), [model.rows.clone()]
    memory = model.rows.untyped_storage().data_ptr()
    shared = [(each is model.rows, each.untyped_storage().data_ptr() == memory) for each in results]
    return shared, [*(each.clone() for each in results), model.rows.clone()]


def compile_ours(model, **options):
    return compile_with(model, programs=False, **options)[0]


def assert_alike(one, other):
    assert one[0] == other[0] and are_same(one[1], other[1])


def compare(act, *args):
    """Asserts that Thunder and we do the same to a buffer, twice; returns how many copies our program omits."""
    plain, model = Cache(act), Cache(act)
    alone = compile_plain(plain)
    compiled, transform = compile_with(model, programs=False)
    for _ in range(2):
        assert_alike(look(compiled, model, *args), look(alone, plain, *args))
    return transform.stats().taken_out.get(COPIES, 0)


@pytest.mark.parametrize(("act", "writes"), ACTS.items())
@torch.no_grad()
def test_values_memory_and_the_buffer_are_thunders(act, writes):
    assert compare(act, ROWS, PLACES) == 2 * writes


@torch.no_grad()
def test_arguments_that_torch_refuses_in_place_or_at_all():
    assert compare(write, ROWS, torch.tensor([2, 2])) == 2  # the last write counts
    compare(write, ROWS[:1], PLACES[:1].reshape(()))
    shared = torch.arange(12.0).reshape(4, 3)
    compare(lambda cache, one, other: one.index_copy_(0, torch.arange(2), other) * 2, shared, shared[:2])
    if IS_FIRST:  # later versions of Thunder alone write overlapping rows twice
        integers = torch.arange(8).reshape(4, 2)
        compare(lambda cache, one, other: one.index_copy_(0, torch.arange(3), other) * 2, shared, shared[1:])
        compare(lambda cache, one, places: one.index_copy_(0, places, one[2:] + 1) * 2, integers, integers[:2, 1])
    for places in (torch.tensor([0, 5]), torch.tensor([0, -1])):  # there is no such row: as without Thunder
        model, eager = Cache(write), Cache(write)
        assert_alike(look(compile_ours(model), model, ROWS, places), look(eager, eager, ROWS, places))


def test_what_is_wider_than_its_memory_raises_as_in_torch():
    with pytest.raises(RuntimeError, match="single memory location"):
        write_rows_(torch.zeros(1, 3).expand(5, 3), 0, PLACES, ROWS)


def test_rows_that_lie_in_the_buffer_are_read_before_any_is_written():
    found = [torch.arange(30.0).reshape(6, 5) for _ in range(2)]
    for each, change in zip(found, (write_rows_, lambda a, *args: a.copy_(torch.index_copy(a, *args))), strict=True):
        change(each[:, ::2], 0, torch.tensor([1, 2, 3]), each[:3, ::2])  # torch does not notice that they overlap
    assert torch.equal(*found)


@torch.no_grad()
def test_rows_of_another_type_and_gradients_that_are_turned_on_leave_copies_where_they_are():
    def turn_on(cache, rows, places):
        cache.rows.index_copy_(0, places, rows)
        with torch.enable_grad():
            return cache.rows * cache.weight

    assert compare(write, ROWS.double(), PLACES) == compare(turn_on, ROWS, PLACES) == 0


def test_what_may_compute_gradients_is_left_alone():

    def train(cache, rows, places):
        with torch.no_grad():
            cache.rows.index_copy_(0, places, rows * 2)
        return cache.weight * cache.rows[:2] * 3 + rows

    def write_parameter(cache, rows, places):
        return cache.leaf.index_copy_(0, places, rows) * 2

    found = []
    for compile_model in (compile_plain, compile_ours):
        model, rows = Cache(train), ROWS.clone().requires_grad_()
        compiled = compile_model(model)
        compiled(rows, PLACES).backward(torch.ones(2, 3))
        assert WRITE_ROWS not in str(thunder.last_traces(compiled)[-1])
        found.append([rows.grad, model.weight.grad, model.rows])
        model = Cache(write_parameter)
        model.leaf = torch.nn.Parameter(torch.zeros(5, 3))
        with pytest.raises(RuntimeError, match="leaf Variable"):
            compile_model(model)(ROWS, PLACES)
    assert are_same(*found)


def test_inference_tensors_and_version_counters():
    model = Cache(write)
    compiled = compile_ours(model)
    with torch.no_grad():
        before = model.rows._version
        compiled(ROWS, PLACES)
        assert model.rows._version == before + 1
    saved = (model.weight * model.rows).sum()
    with torch.inference_mode():
        compiled(ROWS, PLACES)
        kept = torch.zeros(5, 3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
    with torch.no_grad():  # regions of Thunder write into it as well
        assert write_rows_(kept, 0, PLACES, ROWS) is kept
    assert torch.equal(kept[PLACES], ROWS)


def copies_of_its_own():
    """Returns executors of which one has another implementation of the copy with new rows."""
    import thunder.torch as ltorch

    def copy(a, dim, index, source):
        return torch.index_copy(a, dim, index, source + 1)

    executor = OperatorExecutor("others")
    operator = executor.register_operator("own_index_copy", like=ltorch.index_copy, fn=copy)
    executor.register_implementation(ltorch.index_copy, operator)
    return [executor, *fusioncache.executors()]


@pytest.mark.parametrize(
    "options",
    [{"fusion_type": "dataflow"}, {"skip_inplace_alias_updates": True}, {"executors": copies_of_its_own()}, None],
    ids=["thunder's order", "no names", "another executor", "not asked"],
)
@torch.no_grad()
def test_where_rows_are_not_written_in_place(options):
    lean = "thunder" if options is None else "auto"
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager", programs=False, lean=lean)
    options = {"executors": fusioncache.executors(), **(options or {})}
    model = Cache(write)
    compiled = thunder.jit(model, transforms=[transform], **options)
    compiled(ROWS, PLACES)
    assert WRITE_ROWS not in str(thunder.last_traces(compiled)[-1])
    assert torch.equal(model.rows[PLACES], ROWS * 0.5 + (len(options["executors"]) > len(fusioncache.executors())))


class WrittenBytes(Operations):
    """Counts the bytes that copies write, too."""

    def __init__(self):
        super().__init__()
        self.written = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(function, types, args, kwargs)
        name = function.overloadpacket.__name__
        if name in ("index_copy", "copy_", "index_copy_"):
            self.written[name] += (args[3] if name == "index_copy_" else result).nbytes
        return result


@torch.no_grad()
def test_what_is_written_and_the_text(tmp_path):
    found = []
    for lean in ("thunder", "auto"):
        model = Cache(write_all)
        compiled, transform = compile_anew(model, tmp_path, lean=lean)
        compiled(ROWS, PLACES)
        with WrittenBytes() as counted:
            compiled(ROWS, PLACES)
        found.append(dict(counted.written))
    size = model.rows.nbytes
    assert found == [{"index_copy": size, "copy_": size}, {"index_copy_": ROWS.nbytes}]
    assert transform.stats().taken_out == {NAMES: 2 if IS_FIRST else 3, COPIES: 2, NOTHING: 1}
    assert f" = {WRITE_ROWS}(t_rows, -2, places, scaled)" in str(thunder.last_traces(compiled)[-1])
    again = Cache(write_all)
    loaded, transform = compile_anew(again, tmp_path)
    with without_interpreter():
        for _ in range(2):
            loaded(ROWS, PLACES)
    assert transform.stats().programs_loaded == 1
    assert torch.equal(again.rows, model.rows)
