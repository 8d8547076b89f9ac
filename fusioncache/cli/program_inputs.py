"""The kinds of a program's inputs in short, out of the ingredient of its key that describes all of each."""

from __future__ import annotations

import re

from fusioncache.ir.key_text import read_values

_PLACE = re.compile(r"(args|kwargs)\.([^.]+)")
_TENSOR = re.compile(r"[\w.#]+ torch\.(\w+) \(([\d, ]*)\) \([\d, ]*\) ([a-z]+(?::\d+)?)(?: requires_grad)?")
_LOOKED_AT = 1000
_LONGEST = 48


def format_inputs(arguments: str) -> str:
    """Returns the kind of each input, such as ``float32[2, 16] cuda:0, mask=None``.

    Args:
        arguments: the text of the ingredient.
    """
    found = []
    for place, text in read_values(arguments).items():
        named = _PLACE.fullmatch(place)
        if named:
            found.append(f"{named[2]}={_shorten(text)}" if named[1] == "kwargs" else _shorten(text))
    return ", ".join(found)


def _shorten(text: str) -> str:
    short = _TENSOR.sub(lambda tensor: f"{tensor[1]}[{tensor[2].rstrip(',')}] {tensor[3]}", text[:_LOOKED_AT])
    return short if len(short) <= _LONGEST else f"{short[: _LONGEST - 1]}…"
