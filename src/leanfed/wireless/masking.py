"""What a sum costs of which the server sees nothing but the total: uploads hidden by pairwise masks.

SecAgg (Bonawitz et al., CCS 2017) and SecAgg+ (Bell et al., CCS 2020), semi-honest, nobody drops out. A client of n
has g neighbours, with whom it agrees on masks: all n - 1 others in SecAgg, of the order of log n in SecAgg+. It

    sends      2 a_K               its two public keys
               2 g a_S             two secret shares for every neighbour
               m ceil(log2 R)      its m masked values, R = n (2^F - 1) + 1, so that n values of F bits cannot overflow
               (g + 1) a_S         the shares that take the masks off
    receives   2 g a_K + 2 g a_S   its neighbours' keys and shares

with keys and shares of a_K = a_S = 256 bits, as in SecAgg's evaluation. With g = n - 1 both directions add up to that
paper's 2 n a_K + (5 n - 4) a_S + m ceil(log2 R).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from leanfed.wireless.units import Array

KEY_BITS: Final = 256  # a_K
SHARE_BITS: Final = 256  # a_S
AGREEMENT_CYCLES: Final = 2e5  # of one key agreement, X25519 (assumed)
CYCLES_PER_BYTE: Final = 2.0  # of a mask, AES in counter mode with the processor's own instructions (assumed)


@dataclass(frozen=True)
class MaskedSum:
    """A masked sum over `clients` of values with `value_bits` each.

    >>> MaskedSum(clients=4, neighbours=3, value_bits=16).ring_bits
    18
    """

    clients: int  # n
    neighbours: int  # g
    value_bits: int  # F

    @classmethod
    def of(cls, clients: int, neighbours: int | None, value_bits: int) -> MaskedSum:
        """With at most as many neighbours as there are others; None: all of them."""
        others = max(0, clients - 1)
        return cls(clients, others if neighbours is None else min(neighbours, others), value_bits)

    @property
    def ring_bits(self) -> int:
        """ceil(log2 R) of R = n (2^F - 1) + 1: the bits of a masked value."""
        return (self.clients * ((1 << self.value_bits) - 1)).bit_length()

    def sent_bits(self, values: ArrayLike) -> Array:
        """Bits that a client sends for so many values; nothing for none."""
        m = np.asarray(values, dtype=float)
        beside = 2 * KEY_BITS + (3 * self.neighbours + 1) * SHARE_BITS
        return np.asarray(np.where(m > 0, beside + m * self.ring_bits, 0.0))

    @property
    def received_bits(self) -> int:
        """Bits that a client is sent by its neighbours, through the server."""
        return 2 * self.neighbours * (KEY_BITS + SHARE_BITS)

    def cycles(self, values: ArrayLike) -> Array:
        """CPU cycles of a client: two key agreements a neighbour, and g + 1 masks as long as its masked values."""
        m = np.asarray(values, dtype=float)
        masks = (self.neighbours + 1) * m * self.ring_bits / 8 * CYCLES_PER_BYTE
        return np.asarray(np.where(m > 0, 2 * self.neighbours * AGREEMENT_CYCLES + masks, 0.0))
