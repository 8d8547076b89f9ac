"""Random programs through Thunder with and without fusioncache return the same.

``FUSIONCACHE_SEEDS=5000`` in the environment tries that many; ``FUSIONCACHE_SEEDS=317:318`` these.
"""

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import thunder
import torch
from models import compile_with
from program_outcomes import Facts, find_difference, find_unexplained, observe
from random_programs import Argument, RandomProgram, make_random_program

import fusioncache

SEEDS = os.environ.get("FUSIONCACHE_SEEDS", "10")
FIRST, _, LAST = SEEDS.rpartition(":")


@pytest.fixture(autouse=True)
def _eager(eager_regions: None) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def compare(program: RandomProgram, relaid: RandomProgram, cache: fusioncache.Cache) -> tuple[int, str | None]:
    """Returns how many calls Thunder could make, and any difference from Thunder alone, or from all other ways."""
    function, executors = program.function(), fusioncache.executors()
    plain, bare = thunder.jit(function, executors=executors), thunder.jit(function, executors=[])
    ours, _ = compile_with(function, cache=cache)
    for calls, arguments in enumerate((program, relaid)):
        expected = try_to_observe(plain, arguments)
        if expected is None:
            return calls, None
        found = observe(ours, arguments.inputs())
        others = [facts for each in (bare, function) if (facts := try_to_observe(each, arguments)) is not None]
        difference = find_difference(found, expected) or (find_unexplained(found, *others) if others else None)
        if difference:
            return calls, f"{program.source}\nfor {arguments.arguments}:\n{difference}"
    return 2, None


def try_to_observe(function: Callable[..., Any], program: RandomProgram) -> Facts | None:
    try:
        return observe(function, program.inputs())
    except Exception:  # Thunder or torch fails: there is nothing to compare with
        return None


@pytest.mark.filterwarnings("ignore")
def test_random_programs_return_what_they_return_without_fusioncache():
    """They share one cache. Each also runs with operands commuted, twice in one trace, and in another layout."""
    cache, calls, differences = fusioncache.Cache(record=False, store=False), 0, []
    for seed in range(int(FIRST or 0), int(LAST)):
        chance, program = random.Random(seed), make_random_program(seed)
        relaid = program.laid_out_anew(chance)
        for form in (program, program.commuted(chance), program.repeated(chance)):
            made, difference = compare(form, relaid, cache)
            calls += made
            differences += [f"seed {seed}: {difference}"] if difference else []
    assert not differences, "\n\n".join(differences)
    stats = cache.stats()
    assert calls > 4 * (int(LAST) - int(FIRST or 0)) or FIRST
    assert stats.hits >= stats.regions / 3 or FIRST
    assert not [reason for reason in stats.bypasses if "failed" in reason]


def written(source: str, results: str, *arguments: Argument) -> RandomProgram:
    steps = tuple(line.strip() for line in source.strip().splitlines())
    return RandomProgram(arguments, steps, tuple(results.split()))


NUMBER = Argument((), torch.float32, "contiguous", True)
ROW = Argument((32,), torch.float32, "contiguous", False)
TABLE = Argument((3, 4), torch.float32, "transposed", True)
COMPLEX = Argument((4, 3), torch.complex64, "contiguous", False)

ONE_TENSOR_OR_TWO = {
    "two identities of an input": written(
        """torch.var_mean(x1, dim=0, correction=0)[1]
        x0.type_as(v0)
        torch.flip(x0, (-1,))
        torch.fmod(v1, x1)""",
        "v2 v3 v1",
        NUMBER,
        ROW,
    ),
    "one result, three names": written("torch.sin(x0)\nv0.permute(0, 1)\nv0.to(torch.float32)", "v0 v1 v2", TABLE),
    "a result listed twice": written("torch.sin(x0)", "v0 v0", TABLE),
    "an input listed twice": written("torch.sin(x0)", "x0 v0 x0", TABLE),
    "two that are computed alike": written("x0 * 2.0\nx0.detach() * 2.0", "v0 v1", TABLE),
    "two views of one": written("torch.sin(x0)\nv0.transpose(0, 1)\nv0.reshape(12)\nv0[1:]", "v0 v1 v2 v3", TABLE),
    "a view of an input, converted to what it is": written(
        "x0[::2]\nv0.to(torch.complex64)\nv1 * 2.0\nx0.detach()", "v0 v1 v2 v3", COMPLEX
    ),
    "an expanded input": written("x0.expand((2, 3, 4))\ntorch.cos(v0)\nv0 + 0", "v0 v1 v2", TABLE),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ONE_TENSOR_OR_TWO)
def test_what_is_one_tensor_stays_one_and_what_are_two_stay_two(what):
    program, cache = ONE_TENSOR_OR_TWO[what], fusioncache.Cache(record=False, store=False)
    assert compare(program, program, cache) == (2, None)
    assert compare(program.repeated(random.Random(0)), program, cache) == (2, None)
