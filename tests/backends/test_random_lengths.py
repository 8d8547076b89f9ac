"""Models that the project was not designed for train at any length, in one process, for any number of steps.

A model's error in loss and gradients is the largest of its steps. Twice the error of eager PyTorch in the model's dtype
is allowed. Under ``compute-sanitizer`` the tests show that kernels access only their own memory.
"""

import copy
import random

import pytest
import torch
from models import compile_with, take_token_step

from benchmarks.common.errors import find_worst
from benchmarks.zoo.token_models import MODELS, VOCABULARY

FACTOR, LEAST = 2.0, 1e-5


def train(name, *, steps, lengths, longest, graphs=False):
    """Returns the stats of fusioncache, its error, and that of eager PyTorch."""
    torch.manual_seed(2)
    chance = random.Random(2)
    model = MODELS[name]().to("cuda", torch.bfloat16)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).float()
    compiled, transform = compile_with(model, "auto", graphs=graphs)
    choices, errors = [chance.randint(2, longest) for _ in range(lengths)], [0.0, 0.0]
    for _ in range(steps):
        tokens = torch.randint(0, VOCABULARY, (2, chance.choice(choices)), device="cuda")
        found, expected = take_token_step(compiled, model, tokens), take_token_step(exact, exact, tokens)
        for place, gradients in enumerate((found, take_token_step(eager, eager, tokens))):
            errors[place] = max(errors[place], find_worst(gradients, expected))
    return transform.stats(), *errors


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "graphs"),
    [("encoder-decoder", False), ("encoder-decoder", True), ("convolutional", False), ("experts", False)],
)
def test_models_train_at_random_lengths_on_a_gpu(name, graphs):
    stats, error, eager_error = train(name, steps=40, lengths=5, longest=300, graphs=graphs)
    assert error <= max(FACTOR * eager_error, LEAST), stats
    assert stats.generalizations > 0 and (not graphs or stats.graph_replays > 0)
