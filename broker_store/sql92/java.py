"""Numbers as Java reads, compares and writes them (docs/spec/sql92.md section 4)."""

from __future__ import annotations

import math
import re
import unicodedata
from functools import cache

from broker_store.sql92.errors import EvaluationError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MAX_DOUBLE = 1.7976931348623157e308
MIN_DOUBLE = 4.9e-324

# Double.valueOf removes characters up to the blank at both ends; digits are ASCII.
_TRIMMED = "".join(map(chr, range(0x21)))
# Of a whole number within 64 bits, after its leading zeros. A text may have any number of those.
_MAX_DIGITS = 19
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)


def parse_whole(text: str, limit: int) -> int:
    """Return the number that Integer.valueOf or Long.valueOf reads; `limit` is the largest one. Raises
    EvaluationError."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if len(digits) > _MAX_DIGITS:
        digits = digits.lstrip(_zeros()) or "0"
    # isdecimal is true for the decimal digits of all scripts, which Java takes within the basic plane.
    if len(digits) > _MAX_DIGITS or not digits.isdecimal() or max(digits) > "\uffff":
        raise EvaluationError(f'For input string: "{text}"')
    value = -int(digits) if text[0] == "-" else int(digits)
    if not -limit - 1 <= value <= limit:
        raise EvaluationError(f'For input string: "{text}"')
    return value


@cache
def _zeros() -> str:
    """Return the zeros of all scripts within the basic plane."""
    return "".join([sign for sign in map(chr, range(0x10000)) if unicodedata.decimal(sign, None) == 0])


def parse_double(text: str) -> float:
    """Return the number that Double.valueOf reads. Raises EvaluationError."""
    trimmed = text.strip(_TRIMMED)
    if not _DOUBLE.fullmatch(trimmed):
        raise EvaluationError(f'For input string: "{trimmed}"' if trimmed else "empty String")
    if "x" in trimmed or "X" in trimmed:
        try:
            return float.fromhex(trimmed.rstrip("fFdD") if "p" in trimmed.lower() else trimmed)
        except OverflowError:
            return -math.inf if trimmed[0] == "-" else math.inf
    return float(trimmed if trimmed[-1] in "Ny" else trimmed.rstrip("fFdD"))


def compare_doubles(left: float, right: float) -> int:
    """Return -1, 0 or 1 as Double.compare: NaN equals itself and is the largest, -0.0 is less than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left != 0.0:
        return 0
    mine, other = _order(left), _order(right)
    return (mine > other) - (mine < other)


def _order(value: float) -> int:
    """Return the place of a zero or a NaN among numbers that are neither less nor greater."""
    if value != value:
        return 2
    return 1 if value == 0.0 and math.copysign(1.0, value) > 0 else 0


def double_text(value: float) -> str:
    """Return the text that Double.toString gives for a number that is not negative: `1.5`, `5.0E10`."""
    if value == MIN_DOUBLE:
        return "4.9E-324"  # two digits, where Python has one
    digits, _, exponent = f"{value!r}".partition("e")
    whole, _, fraction = digits.partition(".")
    point = len(whole) + int(exponent or 0)
    kept = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(kept)
    kept = kept.rstrip("0") or "0"
    if value == 0.0:
        return "0.0"
    if 1e-3 <= value < 1e7:
        if point <= 0:
            return "0." + "0" * -point + kept
        return kept[:point].ljust(point, "0") + "." + (kept[point:] or "0")
    return f"{kept[0]}.{kept[1:] or '0'}E{point - 1}"
