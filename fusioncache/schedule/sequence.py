"""The sequence of collectives, which has to be the same on every rank: else they wait for each other for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def digest_messages(messages: Sequence[str]) -> str:
    """Returns the digest of a sequence of collectives: a line of text for each, with what all ranks must agree on."""
    return hashlib.sha256("\n".join(messages).encode()).hexdigest()


def explain_first_difference(ours: Sequence[str], theirs: Sequence[str], we: str, they: str) -> str:
    """Returns in what two sequences first differ, in words; nothing if one of them begins as the other one does.

    Args:
        ours: one of them.
        theirs: the other one.
        we: whose the one is.
        they: whose the other one is.
    """
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False), start=1):
        if our != their:
            return f"collective {number} is {our} on {we}, and {their} on {they}"
    return ""
