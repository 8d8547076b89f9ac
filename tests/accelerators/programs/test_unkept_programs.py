"""What no other process could repeat or compare is not kept, and the reason says what it was."""

import sys

import pytest
import torch
from recorded_reads import record
from thunder_versions import HAS_MINIMUM
from unkept_programs import UNKEPT, Counting, make_counter

from fusioncache import tracing
from fusioncache.accelerators.programs.recorder import Recorder
from fusioncache.ir.errors import Declined

NUMBERS = [1.0, 2.0]
X = torch.linspace(-1, 1, 8).reshape(2, 4)
REASONS = {
    "append_to_global": "append_to_global calls list.append of an object that existed before tracing",
    "set_item_of_global": "set_item_of_global calls dict.__setitem__ of an object that existed before tracing",
    "update_global": "update_global calls dict.update of an object that existed before tracing",
    "delete_item_of_global": "delete_item_of_global calls list.__setitem__ of an object that existed before tracing",
    "change_global_and_back": "change_global_and_back calls set.symmetric_difference_update of an object that",
    "assign_global": "assign_global assigns to the global TOTAL",
    "grow_default": "grow_default calls list.append of an object that existed before tracing",
    "set_class_attribute": "set_class_attribute calls type.__setattr__",
    "take_from_global_iterator": "the global unkept_programs.ITERATOR has no value to compare",
    "take_from_global_generator": "the global unkept_programs.GENERATOR has no value to compare",
    "read_clock": "read_clock calls time.time",
    "draw_number": "random.random has no value to compare",
    "draw_identifier": "draw_identifier calls posix.urandom",
    "read_file": "exists calls posix.stat",
    "say_something": "say_something calls print",
    "warn_of_something": "warn_of_something calls _warnings.warn",
    "ask_identity": "ask_identity calls id",
    "ask_hash": "ask_hash calls hash",
    "compare_objects": "compare_objects compares a unkept_programs.Thing",
    "compare_identities": "compare_identities compares a types.SimpleNamespace and a types.SimpleNamespace by identity",
    "compare_inside": "compare_inside compares a unkept_programs.Thing",
    "use_object_as_number": "use_object_as_number calls thunder.core.proxies.TensorProxy.__getitem__ with a slice",
    "use_object_as_key": "use_object_as_key uses a unkept_programs.Thing as a key",
    "use_classes_as_keys": "use_classes_as_keys uses a unkept_programs.Hashing as a key",
    "compare_classes": "compare_classes compares a unkept_programs.Asking",
    "add_up_pretender": "add_up_pretender calls sum with a unkept_programs.Pretender",
    "unpack_pretender": "unpack_pretender uses a object as a key",
    "unite_with_pretender": "unite_with_pretender calls set.union with a unkept_programs.Pretender",
    "format_object": "format_object calls format with a unkept_programs.Thing",
    "ask_for_property": "ask_for_property asks for what unkept_programs.Thing has as hidden",
    "ask_for_what_is_not_there": "ask_for_what_is_not_there asks for unkept_programs.Absent.__getattr__",
    "ask_metaclass": "ask_metaclass asks unkept_programs.Asking.__instancecheck__",
    "sort_by_function": "sort_by_function calls sorted with a function",
    "choose_by_function": "choose_by_function calls max with a function",
    "map_function": "map_function calls map.__new__, which Thunder runs unwatched: a comprehension is interpreted",
    "filter_by_function": "filter_by_function calls filter.__new__, which Thunder runs unwatched",
    "call_remembered": "call_remembered calls _lru_cache_wrapper.__call__, which remembers results",
    "read_cached": "cached_property.__get__ calls dict.__setitem__ of an object that existed before tracing",
    "look_at_globals": "look_at_globals calls globals",
    "look_at_function_globals": "look_at_function_globals asks for __globals__",
    "look_at_module": "look_at_module reads sys.modules",
    "look_at_module_contents": "look_at_module_contents asks for all names of the module torch.nn.functional",
    "look_at_variables": "look_at_variables calls vars",
    "look_at_all_of_handle": "look_at_all_of_handle asks for all attributes of a torch.utils.hooks.Removable",
    "look_at_numbers_of_hooks": "look_at_numbers_of_hooks asks for _forward_hooks, in which hooks have numbers",
    "look_at_all_of_layer": "look_at_all_of_layer asks for __dict__, in which hooks have numbers that count those of",
    "look_at_number_of_handle": "id of torch.utils.hooks.RemovableHandle has no value to compare: it counts the hooks",
    "look_at_variables_of_environment": "look_at_variables_of_environment reads the whole environment",
    "look_at_whole_environment": "_Environ.__len__ reads the whole environment",
    "look_at_frame": "look_at_frame calls sys._getframe",
    "execute_text": "execute_text calls eval",
    "define_class": "define_class calls __build_class__",
    "use_lock": "the global unkept_programs.LOCK has no value to compare",
    "make_thread": "the global threading._counter has no value to compare",
    "import_something": "import_something imports this",
    "iterate_over_set": "iterate_over_set calls set.__iter__, and sets have no order of their own",
    "list_set": "list_set calls set.__iter__, and sets have no order of their own",
    "unpack_set": "unpack_set calls set.__iter__, and sets have no order of their own",
    "sum_set": "sum_set calls sum with a set",
    "spread_set_into_set": "spread_set_into_set calls set.__iter__, and sets have no order of their own",
    "take_from_spread_set": "take_from_spread_set calls set.pop, and sets have no order of their own",
    "update_set_from_set": "update_set_from_set calls set.__iter__, and sets have no order of their own",
    "merge_set_into_set": "merge_set_into_set calls set.__iter__, and sets have no order of their own",
    "leave_gap_in_set": "leave_gap_in_set calls set.__iter__, and sets have no order of their own",
    "sum_generated_from_set": "sum_generated_from_set calls set.__iter__, and sets have no order of their own",
    "join_set": "join_set calls str.join with a set",
    "look_for_object_in_set": "look_for_object_in_set calls set.__contains__ with a unkept_programs.Thing",
    "look_at_annotations": "look_at_annotations asks for __annotations__",
    "look_at_documentation": "look_at_documentation asks for __doc__",
    "look_at_code": "look_at_code asks for __code__",
    "look_for_nan_in_set": "look_for_nan_in_set calls set.__contains__ with a NaN",
    "compare_tuples_with_nan": "compare_tuples_with_nan compares containers with a NaN in them",
    "replace_builtin": "replace_builtin calls module.__setattr__",
}


def sum_numbers(x):
    return x * sum(NUMBERS)


@pytest.fixture(autouse=True, scope="module")
def _hooks():
    tracing.install()
    yield
    tracing.uninstall()


@pytest.fixture(autouse=True)
def _as_before():
    """Takes back what these programs change."""
    import builtins
    import sys

    import unkept_programs as programs

    yield
    sys.modules.pop("this", None)
    vars(builtins).pop("unkept", None)
    programs.Thing.factor = 1.0
    programs.CALLS.clear()


def reason(function):
    with pytest.raises(Declined) as refused:
        record(function, X).reads()
    return str(refused.value)


def test_all_of_them_are_known():
    assert {each.__name__ for each in UNKEPT} == set(REASONS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", UNKEPT, ids=lambda each: each.__name__)
def test_it_is_not_kept(function):
    if HAS_MINIMUM and function.__name__ == "choose_by_function":
        pytest.skip("this Thunder takes no key")
    if function.__name__ in ("format_object", "replace_builtin") and sys.version_info >= (3, 13):
        pytest.skip("Thunder interprets the one there, and refuses the other")
    assert reason(function).startswith(REASONS[function.__name__])


def test_a_cell_that_counts_is_not_kept():
    assert reason(make_counter()).endswith("counter assigns to count, a variable of a function around it")


def test_a_module_that_counts_is_not_kept():
    assert reason(Counting()).startswith("Counting.forward calls list.append")


@pytest.mark.parametrize("change", [lambda each: each.append(3.0), lambda each: each.clear()])
def test_what_changed_after_it_was_read_is_not_kept(change):
    recorder = record(sum_numbers, X)
    change(NUMBERS)
    try:
        with pytest.raises(Declined, match="NUMBERS changed while it was used"):
            recorder.reads()
    finally:
        NUMBERS[:] = [1.0, 2.0]


def test_nothing_is_kept_without_hooks():
    tracing.uninstall()
    try:
        assert reason(torch.nn.ReLU()) == "Thunder's interpreter could not be observed"
    finally:
        tracing.install()


def test_nothing_is_kept_of_what_nobody_interpreted():
    from recorded_reads import describe_key

    with Recorder(describe_key(None)) as recorder:
        pass
    with pytest.raises(Declined, match="its tracing could not be observed"):
        recorder.reads()


def test_nothing_is_kept_after_an_exception():
    from recorded_reads import describe_key

    recorder = Recorder(describe_key(None))
    with pytest.raises(ZeroDivisionError), recorder:
        _ = 1 / 0
    with pytest.raises(Declined, match="an exception was raised"):
        recorder.reads()
