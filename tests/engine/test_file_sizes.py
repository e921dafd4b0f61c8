"""How long the files of a sequence should be, seen from lengths and names that may be wrong."""

import pytest

from broker_store.engine.disk.file_sizes import NamedFile, likely_size


def files(*pairs):
    return [NamedFile(*pair) for pair in pairs]


@pytest.mark.parametrize(
    ("sequences", "noted", "unit", "size"),
    [
        ([], None, 1, None),
        ([files((0, 100), (100, 100), (200, 100))], None, 1, 100),
        ([files((0, 140), (100, 100), (200, 100))], None, 1, 100),
        ([files((0, 30), (100, 100))], None, 1, 100),  # the distance of the names is with the second
        ([files((0, 100), (100, 140))], None, 1, 100),
        ([files((0, 100), (200, 100), (300, 100))], None, 1, 100),  # one is missing between
        ([files((0, 0), (100, 0), (200, 100))], None, 1, 100),
        ([files((0, 140))], None, 1, 140),
        ([files((0, 140))], 100, 1, 100),
        # What was noted is of another store: the names do not agree
        ([files((0, 100), (100, 100))], 70, 1, 100),
        ([files((0, 60)), files((0, 60)), files((0, 80))], None, 20, 60),
        ([files((0, 67)), files((0, 60))], None, 20, 60),
        ([files((0, 0))], None, 1, None),
        ([files((0, 2000)), files((0, 2000)), files((400, 2000))], None, 20, 2000),  # one was renamed to 400
        ([files((0, 2000), (400, 2000), (4000, 2000))], None, 20, 2000),
        ([files((0, 2000), (400, 2000), (4000, 2000))], 2000, 20, 2000),
        ([files((0, 0), (100, 130))], None, 1, 100),
        ([files((0, 30), (100, 70))], None, 1, 100),
        ([files((0, 100), (250, 130))], 100, 1, 100),  # the second has a wrong name and a wrong length
        ([], 100, 1, None),
    ],
)
def test_the_length_is_what_was_noted_or_what_most_files_and_names_agree_with(sequences, noted, unit, size):
    assert likely_size(sequences, noted, unit) == size


def test_a_length_that_no_setting_may_have_is_not_used():
    renamed = [files((0, 16384), (400, 16404))]
    assert likely_size(renamed, 16384, least=4096) == 16384
    assert likely_size(renamed, 400, least=4096) == 16404
    assert likely_size([files((0, 400))], least=4096) is None
