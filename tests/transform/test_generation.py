"""Text generation a token at a time, with a key-value cache: each mode has a program, further tokens need none."""

import pytest
import thunder
import torch
from generating_models import find_caches, generate, make_model, make_prompt
from models import are_same, compile_plain
from stored_programs import compile_anew, without_interpreter

from fusioncache.accelerators.steps.masks import MASKS
from fusioncache.accelerators.steps.tokens import COPIES

PROMPTS = (7, 12, 9, 20, 5)


@pytest.mark.usefixtures("eager_regions")  # Thunder alone must compute the same bits
@torch.no_grad()
def test_fifty_tokens_behind_five_prompts_take_three_traces_and_none_in_a_later_process(tmp_path):
    plain, (compiled, transform) = compile_plain(make_model()), compile_anew(make_model(), tmp_path)
    for number, length in enumerate(PROMPTS):
        found = generate(compiled, make_prompt(length), 10)
        if number == 1:
            compiles = transform.stats().compiles
    assert are_same(found, generate(plain, make_prompt(PROMPTS[-1]), 10))
    written = PROMPTS[-1] + 9
    for one, other in zip(find_caches(compiled._model), find_caches(plain._model), strict=True):
        assert torch.equal(one[:, :, :written], other[:, :, :written])
    stats = transform.stats()
    # One for a first length, one for any other, one for a token after a prompt.
    assert thunder.cache_misses(compiled) == 3
    assert stats.programs_filled == len(PROMPTS) - 2
    assert stats.compiles == compiles
    assert not stats.passes_repeated and not stats.programs_refused and not stats.bypasses
    second, transform = compile_anew(make_model(), tmp_path)
    with without_interpreter():  # a later process traces nothing
        assert are_same(generate(second, make_prompt(PROMPTS[-1]), 10), found)
        generate(second, make_prompt(30), 3)
    # The program of a token is stored, prompts are filled in.
    assert (transform.stats().programs_loaded, transform.stats().programs_filled) == (1, 2)


def replace_caches(model):
    for block in model.transformer.h:
        block.attn.kv_cache.k = block.attn.kv_cache.k * 1.5


def replace(name, compute):
    return lambda model: setattr(model, name, compute(getattr(model, name)))


CHANGES = (
    (replace_caches, 0),
    (lambda model: [cache.mul_(0.5) for cache in find_caches(model)], 0),
    (replace("mask_cache", torch.ones_like), 0),
    (replace("cos", lambda table: table * 1.5), 0),
    (torch.nn.Module.train, 1),
    (lambda model: model.set_kv_cache(batch_size=2), 1),
    (lambda model: model.set_kv_cache(batch_size=1, dtype=torch.float64), 1),
)
"""Changes between two tokens, each with its number of new programs. Without new ones, results change."""


@pytest.mark.usefixtures("eager_regions")
@torch.no_grad()
def test_what_changes_between_two_tokens_is_noticed(tmp_path):
    """Thunder holds the buffers from compilation: a program that replaces one has to set it."""
    plain, (compiled, _) = compile_plain(make_model()), compile_anew(make_model(), tmp_path)
    both = (compiled, plain)

    def call(place):
        found, expected = (each(make_prompt(1), torch.tensor([place])) for each in both)
        assert torch.equal(found, expected)
        assert are_same(*(list(find_caches(each._model)) for each in both))
        return found

    for each in both:
        each(make_prompt(20), torch.arange(20))
    for place in range(20, 32):  # so often that prologues are those of later calls
        call(place)
    for alter, programs in CHANGES:
        before, misses = call(32), thunder.cache_misses(compiled)
        for each in both:
            alter(each._model)
            for name, buffer in each._model.named_buffers():
                each.set_buffer(name, buffer)
        assert not torch.equal(call(32), before) or programs
        assert thunder.cache_misses(compiled) == misses + programs


def generate_behind(lean, directory):
    """Returns logits and caches of tokens after two prompts, and the operations removed from their programs."""
    model = make_model(layers=3).to("cuda", torch.bfloat16)
    model.mask_cache = None  # it is no buffer, and would not move to the GPU
    model.set_kv_cache(batch_size=1, device="cuda", dtype=torch.bfloat16)
    compiled, transform = compile_anew(model, directory, "nvfuser", lean=lean)
    found = [each for length in (7, 12) for each in generate(compiled, make_prompt(length).cuda(), 20)]
    return [*found, *find_caches(model)], transform.stats().taken_out


@pytest.mark.gpu
@torch.inference_mode()
def test_tokens_and_caches_have_the_bits_of_thunders_programs(tmp_path):
    (expected, nothing), (found, taken) = (generate_behind(lean, tmp_path / lean) for lean in ("thunder", "auto"))
    assert not nothing
    assert taken[COPIES] == 3 * 3 * 2 * 2  # programs, layers, keys and values, copies
    assert taken[MASKS] == 3 * 2  # programs, layers but one
    assert all(map(torch.equal, found, expected))
