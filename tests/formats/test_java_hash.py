import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.formats.java_hash import java_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("Aa", 2112),
        ("BB", 2112),
        ("AaAa", 2031744),
        ("BBBB", 2031744),
        ("polygenelubricants", -2147483648),
        ("é", 233),
        ("😀", 1772899),
    ],
)
def test_the_hash_is_javas(text, value):
    assert java_hash(text) == value


@given(st.text())
def test_the_hash_is_the_polynomial_over_utf16_units(text):
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units))
    assert java_hash(text) == (total + 2**31) % 2**32 - 2**31
