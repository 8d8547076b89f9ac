"""Functions and modules that do, while they are traced, what no other process could repeat or compare."""

import builtins
import functools
import os
import random
import sys
import threading
import time
import types
import warnings

import torch
import torch.nn.functional as F
from torch import nn

CALLS = []
COUNTS = {"calls": 0}
SEEN: set[int] = set()
TOTAL = 0
LOCK = threading.Lock()
ITERATOR = iter([1.0, 2.0, 3.0])
NAMES = {"b": 1.0}
TENSOR = torch.tensor(2.0)


def generate():
    """Yields numbers."""
    yield from (1.0, 2.0)


GENERATOR = generate()
LAYER = nn.Identity()
HANDLE = LAYER.register_forward_hook(generate)


SET = {8, 0}
FLOATS = {0.1, 0.2, 0.7}
NAN = float("nan")
NANS, TUPLE_OF_NAN = {NAN}, (NAN,)
TEXTS = {"a", "b"}


class Thing:
    """Has comparisons, truth and attributes of its own, which look at a global."""

    factor = 1.0

    def __eq__(self, other):
        """Depends on a global."""
        return bool(NAMES)

    __hash__ = object.__hash__

    def __index__(self):
        """Depends on a global."""
        return int(NAMES["b"])

    def __format__(self, spec):
        """Depends on a global."""
        return str(NAMES["b"])

    @property
    def hidden(self):
        """Raises if a global says so."""
        if NAMES["b"] != 1.0:
            raise AttributeError
        return 1.0


class Asking(type):
    """Decides by a global what its classes' objects are, and whether its classes differ."""

    def __instancecheck__(cls, instance):
        """Depends on a global."""
        return bool(NAMES["b"] == 1.0)

    def __ne__(cls, other):
        return bool(NAMES["b"] == 1.0)


class Asked(metaclass=Asking):
    """Has a metaclass."""


class Hashing(type):
    """Decides by a global whether two of its classes are the same key."""

    def __hash__(cls):
        return 1

    def __eq__(cls, other):
        return cls is other or bool(NAMES["b"] == 1.0)


class Key(metaclass=Hashing):
    """Has a metaclass."""


class OtherKey(metaclass=Hashing):
    """Has a metaclass as well."""


class Pretender(metaclass=Hashing):
    """Is equal to the class of lists."""

    def __iter__(self):
        """Depends on a global."""
        yield NAMES["b"]


class Absent:
    """Finds what it does not have by a global."""

    def __getattr__(self, name):
        """Depends on a global."""
        if name == "there" and NAMES["b"] == 1.0:
            return 1.0
        raise AttributeError(name)


class Cached:
    """Computes a number once."""

    @functools.cached_property
    def number(self):
        """Depends on a global."""
        return NAMES["b"] * 2


THING, OTHER, ABSENT, CACHED, PRETENDER = Thing(), Thing(), Absent(), Cached(), Pretender()
ONE = ANOTHER = types.SimpleNamespace(a=1)


@functools.lru_cache
def remembered(number):
    """Depends on a global, once."""
    return number * NAMES["b"]


def make_counter():
    """Makes a function that counts its calls."""
    count = 0

    def counter(x):
        nonlocal count
        count += 1
        return x * count

    return counter


def helper(number):
    """Depends on a global."""
    return number * NAMES["b"]


def append_to_global(x):
    CALLS.append(1)
    return x


def set_item_of_global(x):
    COUNTS["calls"] = 1
    return x


def update_global(x):
    COUNTS.update(calls=2)
    return x


def delete_item_of_global(x):
    CALLS[:] = []
    return x


def change_global_and_back(x):
    SEEN.symmetric_difference_update({1})
    SEEN.symmetric_difference_update({1})
    return x


def assign_global(x):
    global TOTAL
    TOTAL = 3
    return x


def grow_default(x, seen=[]):  # noqa: B006
    seen.append(1)
    return x * len(seen)


def set_class_attribute(x):
    Thing.factor = 2.0
    return x


def take_from_global_iterator(x):
    return x * next(ITERATOR)


def take_from_global_generator(x):
    return x * next(GENERATOR)


def read_clock(x):
    return x * time.time()


def draw_number(x):
    return x * random.random()


def draw_identifier(x):
    return x if os.urandom(1) else x + 1


def read_file(x):
    return x if os.path.exists(os.devnull) else x + 1


def say_something(x):
    print("traced")
    return x


def warn_of_something(x):
    warnings.warn("traced", stacklevel=1)
    return x


def ask_identity(x):
    return x if id(x) else x + 1


def ask_hash(x):
    return x if hash("text") % 2 else x + 1


def compare_objects(x):
    return x if THING == OTHER else x + 1


def compare_identities(x):
    return x if ONE is ANOTHER else x + 1


def compare_inside(x):
    return x if THING in [OTHER] else x + 1


def use_object_as_number(x):
    return x[::THING]


def use_object_as_key(x):
    return x * {THING: 2}[THING]


def use_classes_as_keys(x):
    return x * len({Key: 1, OtherKey: 2})


def compare_classes(x):
    return x if Asked != Thing else x + 1


def add_up_pretender(x):
    return x * sum(PRETENDER)


def unpack_pretender(x):
    return x * sum({*PRETENDER})


def unite_with_pretender(x):
    return x * sum({1.0}.union(PRETENDER))


def format_object(x):
    return x if f"{THING}" else x + 1


def ask_for_property(x):
    return x if hasattr(THING, "hidden") else x + 1


def ask_for_what_is_not_there(x):
    return x if hasattr(ABSENT, "there") else x + 1


def ask_metaclass(x):
    return x if isinstance(x.shape, Asked) else x + 1


def sort_by_function(x):
    return x * sorted([2.0, 1.0], key=lambda number: number * NAMES["b"])[0]


def choose_by_function(x):
    return x * max(1.0, 2.0, key=lambda number: number * NAMES["b"])


def map_function(x):
    for number in map(helper, [1.0]):
        x = x * number
    return x


def filter_by_function(x):
    return x * next(filter(helper, [1.0]))


def call_remembered(x):
    return x * remembered(2.0)


def read_cached(x):
    return x * CACHED.number


def look_at_globals(x):
    return x * globals()["NAMES"]["b"]


def look_at_function_globals(x):
    return x * append_to_global.__globals__["NAMES"]["b"]


def look_at_module(x):
    return x * sys.modules[__name__].NAMES["b"]


def look_at_module_contents(x):
    return x * len(F.__dict__)


def look_at_variables(x):
    return x * len(vars(Thing))


def look_at_all_of_handle(x):
    return x * len(vars(HANDLE))


def look_at_numbers_of_hooks(x):
    return x * next(iter(LAYER._forward_hooks))


def look_at_all_of_layer(x):
    return x * len(vars(LAYER))


def look_at_number_of_handle(x):
    return x * HANDLE.id


def look_at_variables_of_environment(x):
    return x * len(vars(os.environ)["_data"])


def look_at_whole_environment(x):
    return x * len(os.environ)


def look_at_frame(x):
    return x * sys._getframe().f_lineno


def execute_text(x):
    return eval("x * 2")


def define_class(x):
    class Local:
        factor = NAMES["b"]

    return x * Local.factor


def use_lock(x):
    with LOCK:
        return x


def make_thread(x):
    # Started by what Thunder interprets, it may be waited for in vain: flags are copies there.
    threading.Thread(target=len, args=((),))
    return x


def import_something(x):
    import this

    return x * len(this.s)


def replace_builtin(x):
    builtins.unkept = 1
    return x


def iterate_over_set(x):
    for number in SET:
        x = x * number + 1
    return x


def list_set(x):
    return x * list(SET)[-1]


def unpack_set(x):
    first, _ = SET
    return x * first


def sum_set(x):
    return x * sum(FLOATS)


def spread_set_into_set(x):
    for number in {*SET, 16}:
        x = x * number + 1
    return x


def take_from_spread_set(x):
    return x * {*SET}.pop()


def update_set_from_set(x):
    numbers = set()
    numbers.update(SET)
    for number in numbers:
        x = x * number + 1
    return x


def merge_set_into_set(x):
    numbers = {24}
    numbers ^= SET
    return x * next(iter({*numbers}))


def leave_gap_in_set(x):
    numbers = {"a", 8}
    numbers.discard("a")
    numbers.add(0)
    return x * next(iter(numbers))


def sum_generated_from_set(x):
    return x * sum(number + 1 for number in SET)


def join_set(x):
    return x * len(",".join(TEXTS))


def look_for_object_in_set(x):
    return x * 2 if THING in SET else x


def look_at_annotations(x):
    return x * len(helper.__annotations__)


def look_at_documentation(x):
    return x * len(helper.__doc__)


def look_at_code(x):
    return x * helper.__code__.co_firstlineno


def look_for_nan_in_set(x):
    return x * 2 if NAN in NANS else x


def compare_tuples_with_nan(x):
    return x * 2 if (NAN,) == TUPLE_OF_NAN else x


class Counting(nn.Module):
    """Counts its calls in a list."""

    def __init__(self):
        """Makes a list."""
        super().__init__()
        self.calls = []

    def forward(self, x):
        """Grows the list."""
        self.calls.append(1)
        return x


UNKEPT = [
    each
    for each in list(globals().values())
    if isinstance(each, types.FunctionType) and each.__module__ == __name__ and each.__code__.co_varnames[:1] == ("x",)
]
