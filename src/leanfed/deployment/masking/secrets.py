"""The cryptography of masked sums: keys, shares and envelopes are Flower's, masks are AES in counter mode.

Flower's own generator of masks (`pseudo_rand_gen`) folds its seed to 32 bits for a Mersenne Twister, which whoever has
one masked vector can search through; masks are therefore a key stream of 256-bit AES from `cryptography`, which Flower
needs as well. Its rounding (`quantize`) draws from a global generator; ours is `compression.ring`.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

import numpy as np
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from leanfed.compression.ring import Ring

CURVE: Final = ec.SECP384R1()  # that of `generate_key_pairs`
KEY_BYTES: Final = 48
SEED_BYTES: Final = 32
PIECE: Final = 1 << 17  # values of a mask that are made at a time
TRIES: Final = 200  # choices of shares that are tried where some of them are wrong


@dataclass(frozen=True)
class Secrets:
    """What a client draws for one round and nobody else sees."""

    cipher: ec.EllipticCurvePrivateKey  # opens what neighbours send
    mask: ec.EllipticCurvePrivateKey  # agrees with neighbours on masks
    seed: bytes  # of the client's own mask

    @classmethod
    def drawn(cls) -> Secrets:
        """New ones, from the system's generator."""
        return cls(generate_key_pairs()[0], generate_key_pairs()[0], os.urandom(SEED_BYTES))

    @classmethod
    def read(cls, texts: Sequence[str]) -> Secrets:
        """The inverse of `texts`."""
        cipher, mask, seed = map(bytes.fromhex, texts)
        return cls(private_key(cipher), private_key(mask), seed)

    def texts(self) -> list[str]:
        """For the store, hexadecimal."""
        return [private_bytes(self.cipher).hex(), private_bytes(self.mask).hex(), self.seed.hex()]


def private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The number that is the key."""
    return key.private_numbers().private_value.to_bytes(KEY_BYTES, "big")


def private_key(content: bytes) -> ec.EllipticCurvePrivateKey:
    """The inverse of `private_bytes`."""
    return ec.derive_private_key(int.from_bytes(content, "big"), CURVE)


def public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public half as a compressed point, 49 bytes."""
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def public_key(point: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a point; ValueError where it is not on the curve."""
    return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, point)


def digest(seed: bytes) -> bytes:
    """What a client announces of its seed, so that a wrong share is noticed when the seed is rebuilt."""
    return hashlib.sha256(b"leanfed seed" + seed).digest()


# Envelopes


def seal(own: ec.EllipticCurvePrivateKey, other: bytes, source: int, target: int, shares: tuple[bytes, bytes]) -> bytes:
    """Shares of (seed, mask key) for a neighbour with the public key `other`."""
    text = share_keys_plaintext_concat(source, target, *shares)
    return base64.urlsafe_b64decode(encrypt(generate_shared_key(own, public_key(other)), text))


def unseal(
    own: ec.EllipticCurvePrivateKey, other: bytes, source: int, target: int, sealed: bytes
) -> tuple[bytes, bytes]:
    """The inverse of `seal`; ValueError where somebody else sealed it, or for somebody else."""
    try:
        key = generate_shared_key(own, public_key(other))
        found = share_keys_plaintext_separate(decrypt(key, base64.urlsafe_b64encode(sealed)))
    except InvalidToken:
        raise ValueError("it was not sealed with the announced key") from None
    if found[:2] != (source, target):
        raise ValueError(f"it is from client {found[0]} to client {found[1]}, not from {source} to {target}")
    return found[2], found[3]


# Shares


def split(secret: bytes, least: int, count: int) -> list[bytes]:
    """`count` shares of a secret, of which any `least` rebuild it and fewer say nothing (Shamir 1979)."""
    return create_shares(secret, least, count)


def rebuilt(shares: Sequence[bytes], least: int, fits: Callable[[bytes], bool]) -> bytes | None:
    """The secret that `fits`, from as many shares as it takes; other choices are tried where some are wrong."""
    for some in islice(combinations(shares, least), TRIES):
        try:
            found = combine_shares(list(some))
        except ValueError:
            continue
        if fits(found):
            return found
    return None


# Masks


def own_key(seed: bytes, transcript: bytes) -> bytes:
    """The key of a client's own mask."""
    return HKDFExpand(hashes.SHA256(), SEED_BYTES, b"leanfed own mask" + transcript).derive(seed)


def pair_key(own: ec.EllipticCurvePrivateKey, other: bytes, transcript: bytes) -> bytes:
    """The key of the mask that two clients share; both compute the same, from either private key."""
    agreed = base64.urlsafe_b64decode(generate_shared_key(own, public_key(other)))
    return HKDFExpand(hashes.SHA256(), SEED_BYTES, b"leanfed pair mask" + transcript).derive(agreed)


def sign_of(client: int, neighbour: int) -> int:
    """Whether a client adds the mask that it shares with a neighbour, or subtracts it."""
    return 1 if client < neighbour else -1


def add_mask(numbers: Ring, key: bytes, sign: int = 1) -> None:
    """Add a mask (or subtract it) in place, modulo 2^64; a key is used once."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    for start in range(0, len(numbers), PIECE):
        part = numbers[start : start + PIECE]
        mask = np.frombuffer(stream.update(bytes(8 * len(part))), "<u8")
        np.add(part, mask, out=part) if sign > 0 else np.subtract(part, mask, out=part)
