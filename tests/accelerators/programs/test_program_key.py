"""The key of a program: what is in it, and what refuses one."""

import pytest
import thunder
import torch

import fusioncache
from fusioncache.accelerators.programs.function_map import Epoch
from fusioncache.accelerators.programs.key import make_key
from fusioncache.ir.errors import Declined


class Model(torch.nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.second(torch.nn.functional.silu(self.first(x)))


def key_of(jitted, *args, **kwargs):
    return make_key(jitted._lc_cd, args, kwargs, Epoch())[0]


def jit(model, **options):
    transforms = [fusioncache.FusionCache(backend="eager", jobs=0)]
    return thunder.jit(model, **{"transforms": transforms, "executors": fusioncache.executors(), **options})


def test_a_key_names_what_a_program_depends_on():
    key = key_of(jit(Model()), torch.zeros(3, 4))
    texts = key.texts
    assert "model.first.in_features 4" in texts["model"].splitlines()
    assert "args.0 torch.Tensor torch.float32 (3, 4) (4, 1) cpu" in texts["arguments"].splitlines()
    assert key == key_of(jit(Model()), torch.ones(3, 4))


def test_a_transform_has_to_say_how_it_is_keyed():
    class Silent(thunder.Transform):
        """Says nothing."""

    with pytest.raises(Declined, match=r"the transform .*Silent has no method cache_key\(\)"):
        key_of(jit(Model(), transforms=[Silent()]), torch.zeros(3, 4))
