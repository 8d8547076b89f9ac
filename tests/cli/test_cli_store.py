"""Sizes and ages, as commands that look after the store take them."""

import pytest

from fusioncache.cli.console import AGE, BYTES


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        *((BYTES, "1", 1), (BYTES, "2kB", 2000), (BYTES, "1.5 MiB", 1.5 * 2**20), (BYTES, "3GB", 3e9)),
        *((AGE, "90", 90), (AGE, "2h", 7200), (AGE, "1w", 7 * 86400), (AGE, "0.5d", 43200)),
    ],
)
def test_sizes_and_ages(kind, text, expected):
    assert kind.convert(text, None, None) == expected
