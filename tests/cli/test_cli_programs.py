"""Programs of models in lists: in short, and no wider than there is room."""

import pytest
from commands import get_output
from kept_programs import TENSOR, SavedProgram

from fusioncache.cli.things import format_inputs
from fusioncache.store import Store


def test_a_list_of_programs_has_at_most_100_columns():
    SavedProgram(name="Net" * 40).save(Store.open())
    assert max(map(len, get_output("ls", "--programs").splitlines())) <= 100
    assert "Net" * 40 in get_output("ls", "--programs", "--wide")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (TENSOR, "float32[2, 16] cpu"),
        (
            "torch.Tensor torch.bfloat16 (4,) (1,) cuda:0 requires_grad of MulBackward0",
            "bfloat16[4] cuda:0 of MulBackward0",
        ),
        ("torch.Tensor torch.int64 () () cpu", "int64[] cpu"),
        (f"[{TENSOR}, 3, ]", "[float32[2, 16] cpu, 3, ]"),
        ("'a text'", "'a text'"),
        ("x" * 100, "x" * 47 + "…"),
    ],
)
def test_kinds_of_inputs_in_short(text, short):
    assert format_inputs(f"args 1\nargs.0 {text}\nargs.0.deep 3") == short
    assert format_inputs(f"args 0 a\nkwargs.a {text}") == f"a={short}"
    assert format_inputs("") == ""
