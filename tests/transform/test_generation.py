"""Text that is generated a token at a time, with a key-value cache: each mode has its program, each token none."""

import pytest
import thunder
import torch
from generating_models import find_caches, generate, make_model, make_prompt
from stored_programs import compile_anew, without_interpreter

import fusioncache

PROMPTS = (7, 12, 9, 20, 5)


@pytest.fixture(autouse=True)
def _eager_regions(eager_regions):
    """What Thunder alone runs is to have the same bits."""


def compile_plain(model):
    return thunder.jit(model, executors=fusioncache.executors())


def compile_both(tmp_path, **options):
    """A model with Thunder alone, the same one with ours, both with their modules, and the transform."""
    plain, model = make_model(), make_model()
    compiled, transform = compile_anew(model, tmp_path, **options)
    return (compile_plain(plain), plain), (compiled, model), transform


def assert_equal(found, expected):
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@torch.no_grad()
def test_fifty_tokens_behind_five_prompts_take_three_traces_and_none_in_a_later_process(tmp_path):
    (plain, module), (compiled, model), transform = compile_both(tmp_path)
    for number, length in enumerate(PROMPTS):
        found = generate(compiled, make_prompt(length), 10)
        if number == 1:
            compiles = transform.stats().compiles
    assert_equal(found, generate(plain, make_prompt(PROMPTS[-1]), 10))
    written = PROMPTS[-1] + 9
    for one, other in zip(find_caches(model), find_caches(module), strict=True):
        assert torch.equal(one[:, :, :written], other[:, :, :written])
    stats = transform.stats()
    # One for a first length, one for any other, one for a token behind a prompt.
    assert thunder.cache_misses(compiled) == 3
    assert stats.programs_filled == len(PROMPTS) - 2
    assert stats.compiles == compiles
    assert not stats.passes_repeated
    assert not stats.programs_refused
    assert not stats.bypasses
    second, transform = compile_anew(make_model(), tmp_path)
    with without_interpreter():  # a later process traces nothing
        assert_equal(generate(second, make_prompt(PROMPTS[-1]), 10), found)
        generate(second, make_prompt(30), 3)
    # The program of a token is stored, prompts are filled in.
    assert transform.stats().programs_loaded == 1
    assert transform.stats().programs_filled == 2


def train(call, model, tokens):
    model.zero_grad(set_to_none=True)
    output = call(tokens)
    assert output.requires_grad
    output.square().mean().backward()
    return [output.detach(), *(each.grad for each in model.parameters())]


def replace_caches(model):
    for block in model.transformer.h:
        block.attn.kv_cache.k = block.attn.kv_cache.k * 1.5


def write_into_caches(model):
    for cache in find_caches(model):
        cache.mul_(0.5)


def empty_caches(model):
    for cache in find_caches(model):
        cache.zero_()


def replace_mask(model):
    model.mask_cache = torch.ones_like(model.mask_cache)


def replace_table(model):
    model.cos = model.cos * 1.5


CHANGES = (
    (replace_caches, 0),
    (write_into_caches, 0),
    (replace_mask, 0),
    (replace_table, 0),
    (empty_caches, 0),
    (torch.nn.Module.train, 1),
    (lambda model: model.set_kv_cache(batch_size=2), 1),
    (lambda model: model.set_kv_cache(batch_size=1, dtype=torch.float64), 1),
)
"""What may change between two tokens, each with the programs that it takes."""


@torch.no_grad()
def test_what_changes_between_two_tokens_is_noticed(tmp_path):
    """Thunder has the buffers that the model had when it was compiled: whoever replaces one tells it."""
    (plain, module), (compiled, model), _ = compile_both(tmp_path)

    def call(place):
        found, expected = (each(make_prompt(1), torch.tensor([place])) for each in (compiled, plain))
        assert torch.equal(found, expected)
        assert_equal(list(find_caches(model)), list(find_caches(module)))
        return found

    for each in (compiled, plain):
        each(make_prompt(20), torch.arange(20))
    for place in range(20, 32):  # so often that prologues are those of later calls
        call(place)
    for alter, programs in CHANGES:
        before, misses = call(32), thunder.cache_misses(compiled)
        for each, own in ((compiled, model), (plain, module)):
            alter(own)
            for name, buffer in own.named_buffers():
                each.set_buffer(name, buffer)
        is_seen = alter in (write_into_caches, replace_caches, replace_mask, replace_table, empty_caches)
        assert not torch.equal(call(32), before) or not is_seen
        assert thunder.cache_misses(compiled) == misses + programs


@torch.no_grad()
def test_a_number_that_grows_with_each_token_is_filled_in(tmp_path):
    """``input_pos_maxp1`` cuts the cache: another program for each token, of which none is traced from a third on."""
    model = make_model()
    compiled, transform = compile_anew(model, tmp_path)
    compiled(make_prompt(20), torch.arange(20), 20)
    for place in range(20, 28):
        call = (make_prompt(1), torch.tensor([place]), place + 1)
        torch.testing.assert_close(compiled(*call), model(*call))
    assert transform.stats().programs_filled >= 5
    assert thunder.cache_misses(compiled) <= 4
    assert torch.equal(compiled(*call), compile_plain(model)(*call))
