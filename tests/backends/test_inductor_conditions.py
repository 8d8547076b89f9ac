"""The language in which it is written for which sizes code is right."""

import pytest

from fusioncache.backends.inductor.artifacts import check_condition, evaluate
from fusioncache.ir.errors import Declined

VALUES = {"v0": 6, "v1": 4, "size_0_1": 24}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size_0_1 == v0*v1", True),
        ("2 <= v0 and v0 <= 5", False),
        ("v0 % v1 == 2 or False", True),
        ("not v0 // 4 != 1", True),
        ("-v0 + v1 - 1 < -2", True),
    ],
)
def test_integers_are_compared(text, expected):
    check_condition(text, VALUES)
    assert evaluate(text, VALUES) is expected


@pytest.mark.parametrize(
    "text",
    [
        *("print(v0)", "v0.real", "v0 ** v1", "[v0]", "v0 if v1 else 0", "'a' == 'a'", "1.5 < v0", "lambda: 0"),
        *("(v0 := 3)", "v0 << v1", "v0 is v1", "v0 in (1, 2)", "", "v0 ==", "import os"),
        *("(" * 500, "v0 + " * 9000 + "1", "size_1_0 == v0"),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(Declined, match="condition"):
        check_condition(text, VALUES)
