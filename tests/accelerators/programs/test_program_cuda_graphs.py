"""Programs of which Thunder's ``CUDAGraphTransform`` captures parts. Here the parts run as they are."""

import copy
import re

import pytest
import thunder
import torch
from loaded_programs import build, no_interpretation, run, write
from models import Blocks, are_same
from thunder.core.compile_data import compile_data_and_stats
from thunder.transforms.cudagraph import CUDAGraphRunner, CUDAGraphTransform

import fusioncache
from fusioncache.accelerators.programs.build import encode_code
from fusioncache.accelerators.programs.options import TRANSFORM, write_transform_key
from fusioncache.ir.errors import Declined

CALLS: list[str] = []


def run_part(runner, name, *args):
    CALLS.append(name)
    function, static_inputs = runner.python_callables[name]
    assert static_inputs is None or len(static_inputs) == len(args)
    return function(*args)


@pytest.fixture(scope="module", autouse=True)
def parts_run_as_they_are():
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(CUDAGraphRunner, "call_cuda_graph", run_part)
        yield


def compile_captured(model, store=False):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=store), backend="eager")
    transforms = [transform, CUDAGraphTransform()]
    return thunder.jit(model, executors=fusioncache.executors(), transforms=transforms), transform


def build_within(compiled, program):
    """Builds as Thunder asks for it: while it knows which function is compiled."""
    with compile_data_and_stats(thunder.compile_data(compiled), thunder.compile_stats(compiled)):
        return build(compiled, program, bytecode=encode_code(program))[0]


@pytest.fixture(scope="module")
def derived():
    torch.manual_seed(0)
    model, inputs = Blocks(1), torch.randn(3, 16)
    own = copy.deepcopy(model)
    compiled, transform = compile_captured(own)
    expected = run(compiled, own, inputs)
    return model, inputs, expected, compiled, write(compiled, transform)


def test_parts_are_captured_by_the_transform_of_the_process_that_loads(derived):
    model, inputs, expected, _, program = derived
    model = copy.deepcopy(model)
    compiled, _ = compile_captured(model)
    runner = next(each for each in thunder.compile_data(compiled).transforms if isinstance(each, CUDAGraphTransform))
    runner.cuda_graph_runner.name_counter = 5
    thunder.compile_stats(compiled).interpreter_cache.append(build_within(compiled, program))
    CALLS.clear()
    with no_interpretation():
        assert are_same(run(compiled, model, inputs), expected)
    assert sorted(runner.cuda_graph_runner.python_callables) == CALLS
    assert CALLS[0] == "CUDAGraph5"


def test_without_the_transform_the_program_does_not_fit(derived):
    model, _, _, _, program = derived
    for others, found in (((), 0), ((CUDAGraphTransform(), CUDAGraphTransform()), 2)):
        compiled = thunder.jit(copy.deepcopy(model), executors=fusioncache.executors(), transforms=list(others))
        with pytest.raises(ValueError, match=f"there are {found} transforms that capture CUDA graphs, not one"):
            build_within(compiled, program)


def test_a_runner_of_somebody_elses_is_not_known(derived):
    """What another class does with a part is not known."""

    class Runner(CUDAGraphRunner):
        pass

    transform = CUDAGraphTransform()
    transform.cuda_graph_runner = Runner()
    cache = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), backend="eager")
    model = copy.deepcopy(derived[0])
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[cache, transform])
    compiled(derived[1])
    with pytest.raises(Declined, match="it calls CUDAGraph, which another process cannot find again"):
        write(compiled, cache)


def test_a_second_process_loads_a_program_with_captured_parts(derived, tmp_path):
    model, inputs, expected, _, _ = derived
    counts = []
    for _ in range(2):
        again = copy.deepcopy(model)
        compiled, transform = compile_captured(again, tmp_path)
        assert are_same(run(compiled, again, inputs), expected)
        stats = transform.stats()
        counts.append((stats.programs_made, stats.programs_loaded, dict(stats.programs_refused)))
    assert counts == [(1, 0, {}), (0, 1, {})]


def test_the_transform_is_keyed_by_its_code_and_its_option(monkeypatch):
    key = write_transform_key(CUDAGraphTransform())
    used = CUDAGraphTransform()
    used.cuda_graph_runner.name_counter = 7
    assert write_transform_key(used) == key
    used.cuda_graph_runner.mem_pool = []  # as with ``share_mem_pool=True``, which asks a GPU
    assert write_transform_key(used) != key
    monkeypatch.setattr(CUDAGraphTransform, "can_fuse", lambda self, symbol: False)
    assert write_transform_key(CUDAGraphTransform()) != key


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("can_fuse", lambda symbol: False, "was changed"),
        ("cuda_graph_runner", None, "was changed"),
        ("outputs_from_forward", [True], "waits for a backward trace"),
    ],
)
def test_a_transform_that_was_changed_is_not_keyed(name, value, reason):
    transform = CUDAGraphTransform()
    setattr(transform, name, value)
    with pytest.raises(Declined, match=f"the transform {re.escape(TRANSFORM)} {reason}"):
        write_transform_key(transform)
