"""Later processes on a GPU: which kernel there is for an attention is asked again at each length."""

import pytest
import torch
from stored_programs import compile_anew, without_interpreter

from fusioncache.accelerators.sizes.families import find_families
from fusioncache.ir.keys import read_key
from fusioncache.store import Store
from fusioncache.store.entry import FAMILY_SLOTS
from fusioncache.template.key import program_key_of

pytestmark = pytest.mark.gpu


class Attention(torch.nn.Module):
    """Causal attention of two heads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(64, 192)

    def forward(self, x):
        query, key, value = (
            each.view(*x.shape[:2], 2, 32).transpose(1, 2) for each in self.project(x).split(64, dim=-1)
        )
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return torch.tanh(found.transpose(1, 2).reshape(x.shape)) + x


def train(compiled, model, length):
    model.zero_grad()
    x = torch.randn(2, length, 64, generator=torch.Generator().manual_seed(length)).to("cuda", torch.bfloat16)
    result = compiled(x)
    result.float().sum().backward()
    return [result, *(each.grad for each in model.parameters())]


def read_decisions(directory):
    """Returns what was decided for the family in a store."""
    store = Store.open(directory, remote="")
    (kept,) = [each for each in store.entries() if each.backend in FAMILY_SLOTS]
    form = program_key_of(read_key(store.entry(kept.digest, kept.backend).text))
    (family,) = find_families(store, form)
    return {each.function for each in family.passes.decisions}


@pytest.fixture(name="store")
def _store(tmp_path):
    """A store that a process has left which had two lengths."""
    model = Attention().to("cuda", torch.bfloat16)
    compiled, _ = compile_anew(model, tmp_path / "store")
    for length in (64, 96):
        train(compiled, model, length)
    return tmp_path / "store"


def test_attention_is_filled_in_by_a_later_process(store, tmp_path):
    assert read_decisions(store) == {"_fused_sdp_choice"}
    model = Attention().to("cuda", torch.bfloat16)
    compiled, transform = compile_anew(model, store)
    own, _ = compile_anew(model, tmp_path / "own", programs=False, sizes="static")
    for number, length in enumerate((200, 65), 1):
        with without_interpreter():
            found = train(compiled, model, length)
        assert all(map(torch.equal, found, train(own, model, length)))
        assert transform.stats().programs_filled == number


def test_where_it_is_decided_otherwise_nothing_is_filled_in(store, tmp_path):
    model = Attention().to("cuda", torch.bfloat16)
    compiled, transform = compile_anew(model, store)
    own, _ = compile_anew(model, tmp_path / "own", programs=False, sizes="static")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert all(map(torch.equal, train(compiled, model, 200), train(own, model, 200)))
    assert transform.stats().programs_filled == 0
