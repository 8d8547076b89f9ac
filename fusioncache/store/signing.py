"""Signatures of content from other machines: Ed25519 (RFC 8032), and the keys that a user trusts.

The first line of signed content has the signer's public key and the signature::

    fusioncache signed 1 <public key> <signature>

The signature covers every byte below that line, and is verified before any of them is read. The content below names
itself (an entry of this name, a pack, an index), so that a signature cannot be used for other content. In a local store
this line stays above an entry from another machine; an entry that was allowed without a signature has the line
``fusioncache unsigned 1``. Such an entry is used only while its key is trusted.

Keys are in the folder ``keys`` of ``FUSIONCACHE_DIR``: the file ``own`` has this user's private key, and ``trusted``
has a line for each trusted or revoked key of others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fusioncache.process import forks
from fusioncache.process.files import make_folders
from fusioncache.process.settings import SIGNING_KEY, TRUST, UNSIGNED, find_directory
from fusioncache.store.files import Refusal, StoreError, publish, read_private
from fusioncache.store.locks import LOCK_SECONDS, hold

PUBLIC_KEY = re.compile("[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""The name of a key, for people."""

NOT_TRUSTED = "signed by a key that is not trusted"
REVOKED = "signed by a key that was revoked"
NOT_SIGNED = "not signed"
WRONG_SIGNATURE = "a wrong signature"

_SIGNED = re.compile(rb"fusioncache signed 1 ([0-9a-f]{64}) ([0-9a-f]{128})\n")
_UNSIGNED = b"fusioncache unsigned 1\n"
_PRIVATE = re.compile(rf"fusioncache private key 1 ([0-9a-f]{{64}}) ({PUBLIC_KEY.pattern}) ({NAME.pattern})\n?")
_LINE = re.compile(rf"(trusted|revoked) ({PUBLIC_KEY.pattern}) ({NAME.pattern})")
_OWN, _TRUSTED = "own", "trusted"
_LARGEST = 1 << 20
"""Bytes of the longest file with keys."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The signer of content that another machine made.

    Attributes:
        key: the public key, in 64 hexadecimal digits; empty if unsigned content was allowed.
        signature: 128 hexadecimal digits; empty if unsigned.
    """

    key: str = ""
    signature: str = ""

    @property
    def line(self) -> bytes:
        """The line above the content."""
        return f"fusioncache signed 1 {self.key} {self.signature}\n".encode() if self.key else _UNSIGNED


def split_origin(content: bytes) -> tuple[Origin | None, bytes]:
    """Returns the origin in a content's first line (None if there is none) and the rest. Verifies nothing."""
    if content.startswith(_UNSIGNED):
        return Origin(), content[len(_UNSIGNED) :]
    found = _SIGNED.match(content)
    if found is None:
        return None, content
    return Origin(found[1].decode(), found[2].decode()), content[found.end() :]


@dataclass(frozen=True, slots=True)
class Trust:
    """The keys whose entries this user runs.

    Attributes:
        trusted: names of trusted keys, by key.
        revoked: names of revoked keys, by key. They are not trusted even if another source lists them.
        unsigned: whether unsigned entries run, too.
    """

    trusted: Mapping[str, str]
    revoked: Mapping[str, str]
    unsigned: bool

    def check(self, origin: Origin) -> None:
        """Checks that content of this origin may be used. Does not verify the signature.

        Raises:
            Refusal: if it may not. The detail names the signer and the trusted keys, and advises what to do.
        """
        key = origin.key
        if not key:
            if not self.unsigned:
                raise Refusal(NOT_SIGNED, self._advise_signing())
        elif key in self.revoked:
            raise Refusal(REVOKED, f"{self.name(key)}. Its entries have to be made again and signed with another key")
        elif key not in self.trusted:
            names = ", ".join(sorted(self.trusted.values())) or "no key"
            advice = f"If it may run code here: fusioncache keys trust {key} NAME"
            raise Refusal(NOT_TRUSTED, f"{key}; trusted: {names}. {advice}")

    def accepts(self, origin: Origin) -> bool:
        """True if content of this origin may be used."""
        try:
            self.check(origin)
        except Refusal:
            return False
        return True

    def open(self, content: bytes) -> tuple[Origin, bytes]:
        """Returns the verified origin of a content, and the content below its line.

        Raises:
            Refusal: if it is unsigned and that is not allowed, its key is not trusted, or its signature is wrong.
            StoreError: if signatures cannot be verified here. The message says what to install.
        """
        origin, below = split_origin(content)
        origin = origin or Origin()
        self.check(origin)
        if origin.key:
            _verify(origin, below)
        return origin, below

    def name(self, key: str) -> str:
        """Returns the name of a key with its first digits; the key itself if it has no name."""
        name = self.trusted.get(key) or self.revoked.get(key)
        return f"{name} ({key[:16]})" if name else key

    def _advise_signing(self) -> str:
        return (
            "its writer can sign it, with 'fusioncache keys new' and 'fusioncache push'; or set "
            f"{TRUST.name}={UNSIGNED} if all that can write there may run code here"
        )


def read_trust() -> Trust:
    """Returns the keys that are trusted now: those of the list, this user's own, and those of ``FUSIONCACHE_TRUST``.

    Raises:
        Refusal: if the list of keys cannot be read.
        ValueError: if the variable has an invalid value.
    """
    words = [word.strip() for word in TRUST.get_text().split(",")] if TRUST.get_text() else []
    trusted, revoked = dict[str, str](), dict[str, str]()
    for state, key, name in list_keys():
        (revoked if state == "revoked" else trusted)[key] = name
    for word in words:
        if word != UNSIGNED:
            trusted.setdefault(word, TRUST.name)
    with suppress(StoreError, OSError):  # an error of this key is reported when it signs
        own = read_own_key()
        if own is not None:
            trusted.setdefault(own.public, own.name)
    left = {key: name for key, name in trusted.items() if key not in revoked}
    return Trust(MappingProxyType(left), MappingProxyType(revoked), UNSIGNED in words)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key.

    Attributes:
        seed: 64 hexadecimal digits. A process that has them can sign with this key.
        public: the public key, in 64 hexadecimal digits.
        name: for people.
    """

    seed: str
    public: str
    name: str

    def sign(self, content: bytes) -> bytes:
        """Returns the content below a line with its signature.

        Raises:
            StoreError: if the package for signatures is not installed, the key was revoked, or its public key does not
                match its seed.
        """
        self.require_trusted()
        private = _load_ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.seed))
        if private.public_key().public_bytes_raw().hex() != self.public:
            raise StoreError(f"the private key {self.name} does not belong to the public key beside it")
        return Origin(self.public, private.sign(content).hex()).line + content

    def require_trusted(self) -> None:
        """Checks that the key was not revoked.

        Raises:
            StoreError: if it was. The message advises what to do.
        """
        if self.public in require_trust().revoked:
            raise StoreError(
                f"the key {self.name} was revoked, and signs no more: move {find_keys() / _OWN} away, make another one "
                f"with 'fusioncache keys new', and unset {SIGNING_KEY.name}"
            )

    @property
    def text(self) -> str:
        """The content of the key's file, and a valid value of ``FUSIONCACHE_SIGNING_KEY``."""
        return f"fusioncache private key 1 {self.seed} {self.public} {self.name}\n"


def find_keys() -> Path:
    """Returns the folder of the keys, which may not exist."""
    return find_directory() / "keys"


def require_trust() -> Trust:
    """Returns the same as ``read_trust``, but raises one type of error.

    Raises:
        StoreError: if the list of keys cannot be read, or the variable has an invalid value.
    """
    try:
        return read_trust()
    except (Refusal, ValueError) as error:
        raise StoreError(str(error)) from None


def read_own_key() -> SigningKey | None:
    """Returns the signing key: that of ``FUSIONCACHE_SIGNING_KEY``, else this user's, or None.

    Raises:
        StoreError: if it is not a key, or others could have written its file.
    """
    text, place = SIGNING_KEY.get_text(), SIGNING_KEY.name
    if not text:
        path = find_keys() / _OWN
        try:
            content = read_private(path, _LARGEST)
        except Refusal as refusal:
            raise StoreError(str(refusal)) from None
        if content is None:
            return None
        text, place = content.decode(errors="replace"), str(path)
    found = _PRIVATE.fullmatch(text)
    if found is None:
        raise StoreError(f"{place} has no private key: put there what is in the file that 'fusioncache keys new' makes")
    return SigningKey(found[1], found[2], found[3])


def make_own_key(name: str) -> SigningKey:
    """Makes this user's private key, stores it in a file that only this user can read, and returns it.

    Raises:
        StoreError: if there is one already, or the package for signatures is not installed.
        OSError: if it cannot be written.
    """
    path = find_keys() / _OWN
    with _changing_keys():
        if os.path.lexists(path):
            raise StoreError(f"there is a private key in {path}: move it away first if it is to sign no more")
        private = _load_ed25519().Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw().hex()
        key = SigningKey(private.private_bytes_raw().hex(), public, name)
        publish(path, key.text.encode())
    return key


@contextmanager
def _changing_keys() -> Iterator[None]:
    """Makes the folder of keys, and waits until no other command changes it.

    Raises:
        StoreError: if one takes too long.
    """
    make_folders(find_keys())
    with hold(find_keys() / "lock", LOCK_SECONDS) as held:
        if not held:
            raise StoreError(f"another command changes the keys in {find_keys()}: try again when it has ended")
        yield


def list_keys() -> tuple[tuple[str, str, str], ...]:
    """Returns state (``trusted`` or ``revoked``), key and name of each key in the list of this user.

    Raises:
        Refusal: if the list cannot be read, others could have written it, or it has an invalid line.
    """
    path = find_keys() / _TRUSTED
    try:
        content = read_private(path, _LARGEST)
    except OSError as error:
        raise Refusal("the list of trusted keys cannot be read", str(error)) from error
    found = [_LINE.fullmatch(line) for line in (content or b"").decode(errors="replace").splitlines()]
    if not all(found):
        raise Refusal("the list of trusted keys cannot be read", f"{path} has a line that is none of a key: remove it")
    return tuple((line[1], line[2], line[3]) for line in found if line)


def put_key(key: str, name: str, state: str) -> None:
    """Adds a key to the list of this user, or replaces its line there.

    Args:
        key: public, in 64 hexadecimal digits.
        name: for people.
        state: ``trusted`` or ``revoked``.

    Raises:
        Refusal: if the list cannot be read.
        StoreError: if a trusted key would get the name of another key, or another command is changing the list.
        OSError: if it cannot be written.
    """
    with _changing_keys():
        others = [line for line in list_keys() if line[1] != key]
        if any(line[2] == name for line in others):
            if state == "trusted":
                raise StoreError(f"another key has the name {name}: give this one another name")
            name = f"{name[:55]}-{key[:8]}"  # a name must not prevent that a key is revoked
        lines = "".join(f"{' '.join(line)}\n" for line in (*others, (state, key, name)))
        publish(find_keys() / _TRUSTED, lines.encode())


def _verify(origin: Origin, content: bytes) -> None:
    public = _load_ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(origin.key))
    try:
        public.verify(bytes.fromhex(origin.signature), content)
    except Exception as error:  # InvalidSignature, or any error for a key that is not a point of the curve
        raise Refusal(WRONG_SIGNATURE, f"by {origin.key[:16]}") from error


def _load_ed25519() -> Any:
    try:
        with forks.imports:
            from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        said = 'signatures need the package cryptography: pip install "fusioncache[sign]"'
        raise StoreError(said) from None
    return ed25519
