import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.formats.java_hash import java_hash, java_text


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


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("41ff42", 2094054),
        ("c3", 65533),
        ("c341", 2031588),
        ("e282", 65533),
        ("e28241", 2031588),
        ("eda080", 65533),
        ("eda08041", 2031588),
        ("eda0", 65533),
        ("eda041", 2031588),
        ("e08080", 65074269),
        ("f09f98", 65533),
        ("f09f9880", 1772899),
        ("f4908080", 2017367872),
        ("f5808080", 2017367872),
        ("c080", 2097056),
        ("80bf", 2097056),
    ],
)
def test_bytes_that_are_no_utf8_become_what_java_makes_of_them(raw, value):
    """The values are those of Java 17: new String(raw, UTF_8).hashCode()."""
    assert java_hash(java_text(bytes.fromhex(raw))) == value
