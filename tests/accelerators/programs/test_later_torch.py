"""Parts of torch that later versions lack: tensors are described without them."""

import importlib.util

import torch

from fusioncache.accelerators.programs import containers


def test_a_torch_without_named_dimensions_is_tolerated(monkeypatch):
    """As from torch 2.13 on."""
    gone = {"names", "has_names", "align_as", "__dict__", "__weakref__", "__new__", "__init__"}
    kept = {name: value for name, value in vars(torch._C.TensorBase).items() if name not in gone}
    monkeypatch.setattr(torch._C, "TensorBase", type("TensorBase", (), kept))
    spec = importlib.util.spec_from_file_location("tensors_of_later_torch", containers.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.write_layout(torch.ones(2, 3)) == "(2, 3) (3, 1)"
    assert not module.has_names(torch.ones(2, 3, names=("a", "b")))
    assert containers.has_names(torch.ones(2, 3, names=("a", "b")))
