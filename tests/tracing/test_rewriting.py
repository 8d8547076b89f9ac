"""A prologue that is rewritten returns and raises what it did, and calls what it called where that can be seen."""

import collections
import enum
import itertools
import linecache
import math
import sys

import pytest
import thunder
import torch
from models import Blocks, compile_with
from thunder.core.compile_data import compile_data_and_stats
from thunder.executors import pythonex

from fusioncache.tracing.prologue.rewriting import NotRewritten, rewrite

NUMBERS = itertools.count()


def make(*lines, **known):
    """Compiles a prologue of these lines as Thunder does."""
    source = "\n  ".join(["def prologue(*args, **kwargs):", *lines]) + "\n"
    name = f"thunder.prologue_of_a_test_{next(NUMBERS)}"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    checks = {name[1:-5]: check for name, check in vars(pythonex).items() if name.startswith("_check_")}
    checks["check_tensor_metadata"] = pythonex._check_tensor_shape_and_metadata_impl
    names = {**checks, "torch": torch, "thunder": thunder, "collections": collections, **known}
    exec(compile(source, name, "exec"), names)
    return names.pop("prologue")


def text_of(function):
    return "".join(linecache.getlines(function.__code__.co_filename))


def test_a_small_prologue():
    function = make(
        "# args: 'Any'",
        "check_len(args, 1)",
        "  # prims.check_len(args, 1)",
        'x: "cpu f32[2, 3]" = args[0]',
        "module: 'Any' = x.owner",
        "t_w: 'cpu f32[3]' = module.get_parameter('a.w')",
        "m1: 'Any' = module.get_submodule('a')",
        "i0: 'bool True' = m1.training",
        "check_number_type_and_value(i0, True)",
        "f1: 'float 0.5' = m1.rate",
        "check_number_type_and_value(f1, 0.5)",
        "check_tensor_metadata(t_w, (3,), 'cpu', torch.float32, True)",
        "check_slice_value(f1, slice(1))",
        "return ((x, t_w), ())",
    )
    rewritten = rewrite(function)
    assert (
        text_of(rewritten)
        == """\
def make(known_0, known_1, known_2, known_3, known_4, known_5, known_6, known_7, known_8, known_9, known_10):
 def prologue(*args, **kwargs):
  if not ((known_0(args) is known_1 or known_0(args) is known_2 or known_0(args) is known_3) and known_4(args) == 1):
    check_len(args, 1)
  x: "cpu f32[2, 3]" = args[0]
  module: 'Any' = x.owner
  known_module_get_parameter, known_module_get_buffer, known_module_get_submodule, known_module_none = known_5(module)
  t_w = known_module_get_parameter('a.w', known_module_none)
  if t_w is known_module_none:
    t_w: 'cpu f32[3]' = module.get_parameter('a.w')
  m1 = known_module_get_submodule('a', known_module_none)
  if m1 is known_module_none:
    m1: 'Any' = module.get_submodule('a')
  i0: 'bool True' = m1.training
  if not (i0 is True):
    check_number_type_and_value(i0, True)
  f1: 'float 0.5' = m1.rate
  if not (known_0(f1) is known_6 and f1 == 0.5):
    check_number_type_and_value(f1, 0.5)
  if not ((known_0(t_w) is known_7 or known_0(t_w) is known_8) and t_w.shape == (3,) and t_w.dtype is known_9 and \
t_w.device == known_10 and t_w.requires_grad is True):
    check_tensor_metadata(t_w, (3,), 'cpu', torch.float32, True)
  check_slice_value(f1, slice(1))
  return ((x, t_w), ())
 return prologue
"""
    )
    cells = dict(zip(rewritten.__code__.co_freevars, rewritten.__closure__, strict=True))
    values = [cells[f"known_{number}"].cell_contents for number in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)]
    assert values == [
        *(type, tuple, list, dict, len, float, torch.nn.Parameter, torch.Tensor, torch.float32, torch.device("cpu"))
    ]
    assert rewritten.__globals__ is function.__globals__


class Agreeing:
    """Is equal to everything, and as long as one likes."""

    def __eq__(self, other):
        return True

    def __len__(self):
        return 1

    __hash__ = None


class Whole(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Text(str):
    __slots__ = ()


class Listed(list):
    def __len__(self):
        return 1


class Own(torch.Tensor):
    pass


Color = enum.IntEnum("Color", {"RED": 1})
T = torch.ones(2, 3)
TENSORS = [
    *(T, T[None], T[:1], torch.ones(3, 2).t(), T.double(), T.to("meta"), T.clone().requires_grad_(), torch.ones(())),
    *(torch.nn.Parameter(T), torch.nn.Parameter(T, requires_grad=False), T.as_subclass(Own), T.to_sparse(), T * 2),
]
VALUES = [
    *(0, 1, -1, 256, 257, 2**70, True, False, 0.0, -0.0, 1.0, 0.5, math.nan, math.inf, 1j, None, "", "a", "1", b"a"),
    *((), (1,), [], [1], {}, {1: 1}, {1}, range(1), collections.OrderedDict(a=1), slice(1), int, bool, type(None)),
    *(
        Agreeing(),
        Whole(1),
        Whole(7),
        Text("a"),
        Text(""),
        Listed(),
        Color.RED,
        torch.float32,
        torch.float64,
        "float32",
    ),
    *(torch.device("cpu"), torch.Size([1]), *TENSORS),
]
CHECKS = [
    *(
        f"check_number_type_and_value(x, {value})"
        for value in ("1", "-1", "256", "True", "False", "0.0", "1.0", "-0.5")
    ),
    *(
        f"check_number_type_and_value(x, {value})"
        for value in ("float('nan')", "float('inf')", "1e999", str(2**70), "1j")
    ),
    *(f"check_string_value(x, {value!r})" for value in ("a", "", "1")),
    "check_none(x)",
    *(f"check_type(x, {value})" for value in ("int", "bool", "torch.Tensor", "collections.OrderedDict", "str")),
    *(f"check_len(x, {length})" for length in (0, 1)),
    "check_empty(x)",
    *(f"check_literal_like(x, {value})" for value in ("torch.float32", "torch.device('cpu')", "1", "'a'")),
    "check_instance(x, (int, str))",
    *(f"check_tensor_metadata(x, (2, 3), 'cpu', torch.float32, {wants})" for wants in (True, False)),
    "check_tensor_metadata(x, (), 'cpu', torch.float32, False)",
    "check_tensor_metadata(x, (2, 3), 'meta', torch.float32, False)",
    "check_tensor_metadata(x, (1, 2, 3), 'cpu', torch.float32, False)",
    "check_tensor_metadata(x, (2, 3), 'cpu', torch.float64, False)",
    "check_tensor_metadata(x, (2, 3), 'cpu:0', torch.float32, False)",
]


def outcome(function, *args):
    try:
        return [*map(id, function(*args))]
    except Exception as error:
        return [type(error), str(error)]


@pytest.mark.parametrize("check", CHECKS)
def test_every_value_passes_or_fails_as_before(check):
    function = make("x = args[0]", check, "return x, ()", int=int, bool=bool, str=str)
    rewritten = rewrite(function)
    assert (text_of(rewritten).count("if not") == 1) is (
        not any(part in check for part in ("float(", "1e999", "1j", "device(", "instance", "like(x, 1", "like(x, 'a"))
    )
    outcomes = []
    for value in VALUES:
        own = outcome(function, value)
        assert outcome(rewritten, value) == own
        outcomes.append(isinstance(own[0], type))
    assert any(outcomes)


def test_a_check_of_somebody_elses_is_called():
    called = []
    function = make("x = args[0]", "check_none(x)", "check_len(x)", "return x, ()", check_none=called.append)
    assert outcome(rewrite(function), None) == outcome(function, None)
    assert called == [None, None]


def test_attributes_are_read_as_often_and_in_the_same_order():
    read = []

    class Watching:
        def __getattr__(self, name):
            read.append(name)
            return len(read)

    lines = ["x = args[0]", "a = x.one", "check_number_type_and_value(a, 1)", "b = x.two", "c = x.one"]
    function = make(*lines, "check_number_type_and_value(b, 2)", "check_none(c)", "return x, ()")
    for each in (function, rewrite(function)):
        read.clear()
        with pytest.raises(RuntimeError, match="Expected 3 to be None"):
            each(Watching())
        assert read == ["one", "two", "one"]


def test_what_is_not_all_known_stays_as_it_is():
    function = make("x = args[0]", "return x, ()")
    linecache.cache[function.__code__.co_filename] = (
        0,
        None,
        ["def prologue(*args, **kwargs):\n", "  return args\n"],
        "",
    )
    with pytest.raises(NotRewritten, match="another function"):
        rewrite(function)
    linecache.cache[function.__code__.co_filename] = (0, None, ["def prologue("], "")
    with pytest.raises(NotRewritten, match="its source is none"):
        rewrite(function)
    apart = make("x = args[0]", "check_string_value(x, 'a\x0cb')", "return x, ()")
    for other in (len, lambda: read, make("x = args[0]; y = x", "return x, ()"), apart):
        with pytest.raises(NotRewritten):
            rewrite(other)


read = None


@pytest.mark.parametrize(
    "lines",
    [
        ["module = args[0]", "module = args[0]", "w = module.get_parameter('w')", "return w, ()"],
        ["module = args[0]", "w = module.get_parameter(name='w')", "return w, ()"],
        ["module = args[0]", "w, = module.get_parameter('w')", "return w, ()"],
        ["module = args[0]", "w = module.get_parameter('w', 1)", "return w, ()"],
    ],
)
def test_lookups_that_thunder_does_not_write_are_left(lines):
    assert "known_" not in text_of(rewrite(make(*lines)))


def test_names_of_ours_are_nobody_elses():
    function = make(
        "known_0 = args[0]", "check_none(known_0)", "known_1 = 3", "check_len(args, 1)", "return known_1, ()"
    )
    assert rewrite(function)(None) == (3, ())


def test_a_name_that_is_assigned_is_not_the_global_one():
    function = make("x = args[0]", "kind = args[1]", "check_type(x, kind)", "return x, ()", kind=int)
    rewritten = rewrite(function)
    for args in ((1, int), (1, str), ("a", str)):
        assert outcome(rewritten, *args) == outcome(function, *args)


def test_its_text_goes_with_it():
    rewritten = rewrite(make("x = args[0]", "return x, ()"))
    name = rewritten.__code__.co_filename
    assert name in linecache.cache
    del rewritten
    assert name not in linecache.cache


def count_calls(function, *args):
    """How many calls of Python functions, and of others, a call makes."""
    found = collections.Counter()
    sys.setprofile(lambda frame, event, _: found.update([event]))
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return found["call"] - 1


def test_a_step_makes_few_calls_for_its_prologue():
    found = {}
    for layers in (1, 5):
        compiled, _ = compile_with(Blocks(layers), programs=False, sizes="static")
        x = torch.randn(3, 16)
        compiled(x)
        (entry,) = thunder.compile_stats(compiled).interpreter_cache
        (run,) = [each for cell in entry.prologue_fn.__closure__ if hasattr(each := cell.cell_contents, "__wrapped__")]
        data, stats = thunder.compile_data(compiled), thunder.compile_stats(compiled)
        with compile_data_and_stats(data, stats):
            token = thunder._cache_info_ctx.set({})
            data.populate_cache_info(thunder._get_cache_info(), x)
            own = run.__wrapped__
            rewritten = rewrite(own)
            rewritten(x)  # what is known of Thunder's methods is found out once
            found[layers] = [count_calls(each, x) for each in (own, rewritten)]
            thunder._cache_info_ctx.reset(token)
    assert found[5][0] - found[1][0] > 4 * 30
    assert found[5][1] == found[1][1] < 30
