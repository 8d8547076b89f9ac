"""Private keys that tests sign with. Equal names give equal keys."""

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fusioncache.store.signing import SigningKey


def make_signing_key(name: str) -> SigningKey:
    seed = hashlib.sha256(name.encode()).digest()
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw().hex()
    return SigningKey(seed.hex(), public, name)
