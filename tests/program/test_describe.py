import torch

from fusioncache.program.describe import Describer


def lines(model):
    return list(Describer().walk("model", model))


def test_a_walk_names_each_part_of_a_model_by_its_path():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    model[0].factors = [1, 2.0]
    assert dict(lines(model)) == {
        "model": "module torch.nn.modules.container.Sequential",
        "model.0": "module torch.nn.modules.linear.Linear",
        "model.0.weight": "parameter torch.nn.parameter.Parameter torch.float32 (3, 2) (2, 1) cpu requires_grad",
        "model.0.bias": "parameter torch.nn.parameter.Parameter torch.float32 (3,) (1,) cpu requires_grad",
        "model.0.in_features": "2",
        "model.0.out_features": "3",
        "model.0.factors": "[1, 2.0, ]",
    }
