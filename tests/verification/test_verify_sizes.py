"""Verify mode where a function for any sizes serves a region."""

import pytest
import torch
from models import compile_with

import fusioncache
from fusioncache.backends.eager import Eager

pytestmark = pytest.mark.usefixtures("eager_regions")


@pytest.fixture(autouse=True)
def _off_by_a_bit(monkeypatch):
    """What is compiled for any sizes gives numbers that are a bit larger, as sums in another order may be."""
    compile_general = Eager.compile_general

    def compile_larger(self, general, args, values):
        fit = compile_general(self, general, args, values)

        def fit_larger(args, values):
            run = fit(args, values)
            return lambda args: [torch.nextafter(result, torch.tensor(torch.inf)) for result in run(args)]

        return fit_larger

    monkeypatch.setattr(Eager, "compile_general", compile_larger)


def test_sums_may_be_added_up_in_another_order():
    compiled, transform = compile_with(lambda x: (x * 2).sum(0), verify=True)
    for length in (5, 7, 9):
        compiled(torch.randn(length, 3))
    assert transform.stats().general_hits == 1 and transform.stats().verified == 3


def test_every_bit_of_what_is_computed_element_by_element_must_be_the_same():
    compiled, _ = compile_with(lambda x: x.tanh() * 2, verify=True)
    compiled(torch.randn(5, 3))
    with pytest.raises(fusioncache.VerificationError, match="every bit must be the same"):
        compiled(torch.randn(7, 3))
