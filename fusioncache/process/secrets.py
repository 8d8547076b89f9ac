"""Decides which texts are written to stores, records, reports and messages, and replaces other texts by digests.

A user's text may be a key or a password in any place. So a string is written only if it is a plain word, such as
``gelu``, and its name does not look secret. A key of a dictionary is also written if it is an identifier. Any other
string, and all bytes, are replaced by a digest. Two digests are equal if and only if the values are. They contain no
digits, which would be mistaken for numbers of a program::

    hidden str mfkbplcgodhanjeimfkbplcgodhanjei

A reader of a digest can compare it with the digest of a guess. If the text's name looks secret, each guess takes 40 ms
and 16 MB. The salt is the same everywhere, because processes, ranks and stores share by equal texts.

A program compares texts with those that it was derived for. A stored program contains their digests. The process that
loads it replaces these by its own equal texts, which it had to describe to find the program.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache


class TextKind(Enum):
    """The kind of a text."""

    VALUE = "value"
    NAME = "name"
    """A key of a dictionary, or an attribute of a class that contains names."""
    SECRET = "secret"
    """A value whose name looks secret."""
    HIDDEN = "hidden"
    """A value that is never written, with a fast digest."""


LONGEST_KNOWN = 10_000
"""Maximum characters of a text that a stored program may compare."""
_MOST_KNOWN = 1 << 19
"""Maximum number of texts that a process stores with their digests."""
COST = 1 << 14
"""The cost parameter of scrypt for secrets."""
MOST_SECRETS = 64
"""Maximum number of slow digests in a process, seconds in total. Further secrets get fast ones."""

_SECRET = re.compile(
    r"(?i)secret|passw|passphrase|passcode|credential|auth(?!ors?($|_))|bearer|webhook|(^|_)(pwd|dsn|jwt|cookie)($|_)"
    r"|(api|access|private|signing|encryption)_?keys?|(access|refresh|session)_?token|(^|_)token($|_)|(^|_)(key|pin)$"
)
_OF_NAMES = frozenset({"_fields", "_member_names_", "_name_"})
"""Attributes of classes that contain names."""
_WORD = re.compile(
    r"(?!(sk|pk|rk|hf|gh[oprsu]|xox[a-z]|glpat|npm|pypi)[-_])(?!(\D*\d){5})[a-z]+\d{0,3}([_-]([a-z]+\d{0,3}|\d{1,2}))*"
    r"|([A-Z]{1,4}[a-z]+){1,3}|[A-Z]{1,5}|[a-z]{2,12}:\d{1,2}|\d{1,3}|\d{1,4}(\.\d{1,4}){1,3}|\W{0,3}"
)
"""A plain word. Excludes prefixes of the tokens of well-known services."""
_LONGEST_WORD = 20
_NAME = re.compile(r"([^\W\d]\w*|\d{1,4})(\.([^\W\d]\w*|\d{1,4}))*")
_LONGEST_NAME = 128
_RANDOM = re.compile(r"(?=[a-zA-Z]*\d)[a-zA-Z\d]{16,}|[a-zA-Z]{33,}")
"""A part of a name that is probably random."""

_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
_HIDDEN = re.compile(r"'hidden (?:str|bytes) [a-p]{32}'")
"""The digest of a text in the source of a trace."""
_SHOWN = re.compile(r"('?)hidden (?:str|bytes) [a-p]{1,32}\1")
"""A digest in any text, which may be cut off within it."""
HIDDEN = "(hidden)"
"""Replaces a digest in output for people."""

_texts: dict[tuple[TextKind, type], dict[str | bytes, str]] = {
    (kind, type_): {} for kind in TextKind for type_ in (str, bytes)
}
_known: dict[str, str | bytes] = {}


@lru_cache(1 << 14)
def find_kind(name: str) -> TextKind:
    """Returns the probable kind of texts that have this name."""
    if _SECRET.search(name):
        return TextKind.SECRET
    return TextKind.NAME if name in _OF_NAMES or (name.startswith("__") and name.endswith("__")) else TextKind.VALUE


def write_text(value: str | bytes, kind: TextKind = TextKind.VALUE) -> str:
    """Returns a string or bytes in their written form: in quotes if they are public, else as a digest."""
    texts = _texts[kind, type(value)]
    text = texts.get(value)
    if text is None:
        if kind is TextKind.SECRET and len(texts) >= MOST_SECRETS:
            return write_text(value, TextKind.HIDDEN)
        text = repr(value) if _is_open(value, kind) else _hide(value, kind)
        if len(texts) >= _MOST_KNOWN:
            forget()
        texts[value] = text
    return text


def forget() -> None:
    """Removes all stored texts. A program that compares one is not loaded until that text is described again."""
    _known.clear()
    for texts in _texts.values():
        texts.clear()


def _is_open(value: str | bytes, kind: TextKind) -> bool:
    if isinstance(value, bytes) or kind in (TextKind.SECRET, TextKind.HIDDEN):
        return not value
    return is_word(value) or (kind is TextKind.NAME and _is_name(value))


def is_word(text: str) -> bool:
    """True if a string is a plain word, which may be written unless its name looks secret."""
    return len(text) <= _LONGEST_WORD and _WORD.fullmatch(text) is not None


def _is_name(text: str) -> bool:
    is_short = len(text) <= _LONGEST_NAME
    return is_short and _NAME.fullmatch(text) is not None and _RANDOM.search(text) is None


def _hide(value: str | bytes, kind: TextKind) -> str:
    text = f"hidden {type(value).__name__} {_digest(value, kind)}"
    if len(value) <= LONGEST_KNOWN:
        _known[text] = value
    return text


def _digest(value: str | bytes, kind: TextKind) -> str:
    content = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    if kind is TextKind.SECRET:
        found = hashlib.scrypt(content, salt=b"fusioncache secret", n=COST, r=8, p=1, dklen=16)
    else:
        found = hashlib.blake2b(content, digest_size=16, person=b"fusioncache text").digest()
    return found.hex().translate(_LETTERS)


def blur(text: str) -> str:
    """Returns a text for people, with ``(hidden)`` in place of each digest."""
    return _SHOWN.sub(HIDDEN, text)


_STRING = r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\""
_LEXEME = re.compile(
    r"^[ ]*\w+: \"[^\"\n]*\""  # the type of a value
    r"|^(?P<place>[ ]*# [^\n]*?:\d+: \t)(?P<line>[^\n]*)"
    r"|#[^\n]*"
    r"|\bfloat\('(?:inf|NaN)'\)"  # numbers that Python has no literal for
    r"|\bcheck_string_value\(cache_info_\w+, '[^'\n]*'\)"  # Thunder's guards on the call
    rf"|\b(?:get_parameter|get_buffer|get_submodule|set_buffer)\((?:{_STRING})"  # names of tensors and modules
    rf"|(?P<access>(?<=[\w\])])\[)?(?P<prefix>\b[A-Za-z]+)?(?P<string>{_STRING})",
    re.MULTILINE,
)
"""The parts of Thunder's printed Python that may contain texts."""


def hide_texts(source: str) -> str:
    """Returns the source of a trace for the store, with digests in place of texts.

    Raises:
        ValueError: if a text was never described: a process that loads the program could not find it by its digest.
    """
    return _LEXEME.sub(_hide_lexeme, source)


def _hide_lexeme(found: re.Match[str]) -> str:
    if found["place"]:
        return found["place"] + hide_line(found["line"])
    if found["string"] is None:
        return found[0]
    try:
        value = ast.literal_eval(f"{found['prefix'] or ''}{found['string']}")
    except (ValueError, SyntaxError) as error:
        raise ValueError("has a string that is made while it runs") from error
    kind = TextKind.NAME if found["access"] else TextKind.VALUE
    secret = _texts[TextKind.SECRET, type(value)].get(value) or _texts[TextKind.HIDDEN, type(value)].get(value)
    if secret is None and _is_open(value, kind):
        return found[0]
    text = secret or f"hidden {type(value).__name__} {_digest(value, kind)}"
    if text not in _known:
        raise ValueError("has a string that is not stored: it is long, or was made while the program was traced")
    return f"{found['access'] or ''}{text!r}"


def reveal_texts(source: str) -> str:
    """Returns the executable source of a trace, with this process's texts in place of their digests.

    Raises:
        ValueError: if this process has described no text for one of the digests.
    """
    return _HIDDEN.sub(_reveal, source) if "hidden " in source else source


def _reveal(found: re.Match[str]) -> str:
    value = _known.get(found[0].strip("'"))
    if value is None:
        raise ValueError("has a string that this process did not describe")
    return repr(value)


def hide_line(line: str) -> str:
    """Returns a line of a user's source without its comment and without its texts, except for plain words.

    If the end of a text cannot be found in the line, the rest of the line is omitted.
    """
    if "'''" in line or '"""' in line:
        return "..."
    names = re.findall(r"\w+", "".join(_hide_parts(line)))
    return "".join(_hide_parts(line, any(find_kind(name) is TextKind.SECRET for name in names))).rstrip()


def _hide_parts(line: str, is_secret: bool = True) -> Iterator[str]:
    position = 0
    for found in re.finditer(rf"(?P<prefix>\b[A-Za-z]+)?(?P<string>{_STRING})|['\"#]", line):
        yield line[position : found.start()]
        if found["string"] is None or "f" in (found["prefix"] or "").lower():
            yield "" if found[0] == "#" else "..."
            return
        text = found["string"][1:-1]
        yield found[0] if is_word(text) and not is_secret else "'...'"
        position = found.end()
    yield line[position:]


_OPTION = re.compile(r"--[A-Za-z][\w.-]{0,63}(?==|$)|-[A-Za-z]")


def list_options(arguments: Sequence[str]) -> tuple[str, ...]:
    """Returns the recordable part of a command line: the script, and the names of options without their values."""
    script, given = arguments[:1], arguments[1:]
    found = (_OPTION.match(each) for each in given[: given.index("--") if "--" in given else None])
    return (*script, *(option[0] for option in found if option))
