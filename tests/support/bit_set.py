"""Java's BitSet, as clients write it in a batch of acknowledgements."""

from __future__ import annotations

import base64
from collections.abc import Sequence


def write_bits(numbers: Sequence[int]) -> str:
    """Return the base64 of the BitSet of these numbers."""
    bits = sum({1 << number for number in numbers})
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
