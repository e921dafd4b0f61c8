"""What the broker holds back."""

from __future__ import annotations

SHOWN_HALVES = 50  # of those that wait, unless another number is asked for
