"""One reader of times for pages, REST, commands and the pipeline."""

import pytest

from broker_store.formats import moment

AT = 1_763_719_200_000  # 2025-11-21T10:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), (str(AT), AT), (f" {AT} ", AT), ("2025-11-21T10:00:00Z", AT), ("2025-11-21T10:00:00", AT), ("2025-11-21T10:00", AT), ("2025-11-21 10:00:00.250", AT + 250),
        ("2025-11-21T11:00:00+01:00", AT), ("2025-11-21T04:30:00-05:30", AT), ("2025-11-21", AT - 36_000_000), ("9999-12-31T23:59:59.999Z", moment.MAX_MS), ("2025-11-21T10:00:00.000999Z", AT),
    ],
)  # fmt: skip
def test_milliseconds_and_iso_times_are_the_same_moment(text, expected):
    assert moment.read(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "-5",
        "1.5",
        "2025-13-01",
        "2025-11-21T25:00",
        "²",
        "9" * 30,
        str(moment.MAX_MS + 1),
        "1969-12-31T23:59:59Z",
        "2025-11-21T10:00:00+99:00",
    ],
)
def test_what_is_no_time_is_refused_by_a_sentence(text):
    with pytest.raises(ValueError, match=r"milliseconds since 1970|before 1970") as refused:
        moment.read(text)
    assert "ValueError" not in str(refused.value) and "isoformat" not in str(refused.value)
