"""Later processes on a GPU: which kernel there is for an attention is asked again at each length."""

import pytest
import torch
from both_ways import BothWays, are_equal, train
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


def make_input(length):
    return torch.randn(2, length, 64, generator=torch.Generator().manual_seed(length)).to("cuda", torch.bfloat16)


def read_decisions(directory):
    """Returns what was decided for the family in a store."""
    store = Store.open(directory, remote="")
    (kept,) = [each for each in store.entries() if each.backend in FAMILY_SLOTS]
    form = program_key_of(read_key(store.entry(kept.digest, kept.backend).text))
    (family,) = find_families(store, form)
    return {each.function for each in family.passes.decisions}


@pytest.fixture(name="both")
def _both(tmp_path):
    """The model in both ways, in a process over a store that another one has left which had two lengths."""
    model = Attention().to("cuda", torch.bfloat16)
    compiled, _ = compile_anew(model, tmp_path / "store")
    for length in (64, 96):
        train(compiled, make_input(length))
    return BothWays(model, tmp_path)


def test_attention_is_filled_in_by_a_later_process(both, tmp_path):
    assert read_decisions(tmp_path / "store") == {"_fused_sdp_choice"}
    for number, length in enumerate((200, 65), 1):
        with without_interpreter():
            found = train(both.compiled, make_input(length))
        assert are_equal(found, train(both.own, make_input(length)))
        assert both.transform.stats().programs_filled == number


def test_where_it_is_decided_otherwise_nothing_is_filled_in(both):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        both.check(make_input(200))
    assert both.transform.stats().programs_filled == 0
