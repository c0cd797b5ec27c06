"""Both ends of a connection prove that they know the secret, before either parses a byte of the other.
The greeting has the version of the protocol.

The near end (the stand-in, which listens) sends a greeting and a nonce.  The far end answers with a nonce of its own
and an HMAC of both, and the near end with another HMAC.  All three messages have a fixed length.  The words "near" and
"far" are part of what is hashed, so neither end's proof can be sent back to it.

door.py asks for the far end's proof, and refuses whoever has none.  What comes after the proof is checked in frames.py.
"""

from __future__ import annotations

import hmac
import os

GREETING = b"shmfar\x00\x06"  # with the version of the protocol
NONCE = 32
PROOF = 32


def nonce() -> bytes:
    """Bytes that were never sent before."""
    return os.urandom(NONCE)


def far_proof(secret: bytes, number: int, near: bytes, far: bytes) -> bytes:
    """What the far end shows.

    Args:
        secret: The ticket's.
        number: The worker's, so that a far worker cannot take another one's place.
        near, far: The nonces.
    """
    return _proof(secret, b"far", number, near, far)


def near_proof(secret: bytes, number: int, near: bytes, far: bytes) -> bytes:
    """What the near end shows.  Args: see far_proof()."""
    return _proof(secret, b"near", number, near, far)


def is_proof(shown: bytes, expected: bytes) -> bool:
    """Compare in a time that does not depend on how many bytes are right."""
    return hmac.compare_digest(shown, expected)


def _proof(secret: bytes, end: bytes, number: int, near: bytes, far: bytes) -> bytes:
    return hmac.digest(secret, b"|".join([GREETING, end, str(number).encode(), near, far]), "sha256")
