"""A store that was closed in order and then broken at random: each message is served, or the start is
refused.

`python -m tests.support.broken_stores` breaks 10,000 stores of every kind in every place.
"""

import random
import shutil
from dataclasses import replace

import pytest

from tests.support.broken_stores import (
    APACHE,
    MAX_ORIGINALS,
    REPAIRED,
    STATED,
    WAYS,
    Broken,
    Judgement,
    broken_store,
    judge_start,
    make_original,
    run_case,
    write_out,
)
from tests.support.hand_store import Clock, HandStore

pytestmark = pytest.mark.slow

CASES = 25


@pytest.mark.parametrize("within", ["consumequeue/", "index/", "checkpoint", "ends"])
def test_whatever_is_broken_beside_the_log_costs_no_message_and_no_offset(within, tmp_path):
    for seed in range(CASES):
        broken, judged = run_case(seed, tmp_path / str(seed), "clean", within)
        for way, end in judged.items():
            if way == "repair" and within == "consumequeue/":
                continue
            assert isinstance(end, Judgement), f"seed {seed}, {way}: {broken.breaks}: {end!r}"
            assert end.outcome == "whole" if way == "repair" else end.outcome in ("whole", "refused"), (
                f"seed {seed}, {way}"
            )


def test_what_a_log_without_begin_and_end_lost_is_named(tmp_path):
    """Its first file is a copy of the second, its last is gone: no other broker wrote it on, for it ends
    below the recorded position."""
    _, judged = run_case(5087, tmp_path, "clean", "commitlog/")
    assert judged["repair"] == Judgement("bridged"), judged["repair"]


@pytest.mark.parametrize("seed", [20104, 20109, 20159, 20164, 20020, 20180, 200171])
def test_a_repair_of_a_log_without_its_end_gives_no_offset_twice(seed, tmp_path):
    """The record of ends is gone, damaged, was never there or ends early: the plan takes the next offsets
    from the units of what is lost."""
    broken, judged = run_case(seed, tmp_path)
    assert judged["repair"] == Judgement("bridged"), f"{broken.breaks}: {judged['repair']!r}"


# Each of these once lost keys or messages without a word at a start, or ended it with an error of the
# program.
STARTS_THAT_FAILED = (
    20159,
    20279,
    200192,
    200219,
    200362,
    200404,
    200681,
    200806,
    200812,
    200814,
    200978,
    300271,
    300811,
    301529,
    301971,
    311252,
    311360,
    320728,
    3020229,
    6005860,
    7102674,
    9000740,
    12005629,
    13006845,
    15000812,
    17001863,
    17006247,
    31003939,
    31006099,
)


@pytest.mark.parametrize("seed", STARTS_THAT_FAILED)
def test_a_start_that_once_failed_does_not_again(seed, tmp_path):
    broken, judged = run_case(seed, tmp_path, ways=["start"])
    assert isinstance(judged["start"], Judgement), f"{broken.breaks}: {judged['start']!r}"


@pytest.mark.parametrize("way", ["start", "accept"])
def test_a_damaged_entry_of_a_damaged_record_hides_no_other_key(way, tmp_path):
    """A log file is zero, so its records' entries cannot be compared; two of them are random, and lookups
    ended there."""
    broken, judged = run_case(33300064, tmp_path, "clean", ways=[way])
    assert judged[way] == Judgement("bridged"), f"{broken.breaks}: {judged[way]!r}"


@pytest.mark.parametrize(
    ("seed", "way", "outcome"),
    [
        # The units of another queue in a file, the first ones below the part that a start compares: all of
        # them are made again.
        pytest.param(34021614, "accept", "whole", id="units of another queue"),
        # A record above the checkpoint is damaged, and units and ends are gone: a broker of ours leaves no
        # old records after an end.
        pytest.param(34022317, "repair", "bridged", id="records behind a bad one"),
        # Two entries of one record: the first leads to a place where no record begins, so the record before
        # it may lack entries too.
        pytest.param(34022363, "start", "cut", id="damaged entries"),
        # Log and queues are gone before the first round of checkpoint and ends: only the index is left.
        pytest.param(34040711, "start", "refused", id="an index without a log"),
    ],
)
def test_a_killed_store_that_once_failed_does_not_again(seed, way, outcome, tmp_path):
    broken, judged = run_case(seed, tmp_path, "killed", ways=[way])
    assert judged[way].outcome == outcome, f"{broken.breaks}: {judged[way]!r}"


@pytest.mark.parametrize(("seed", "way"), [(33111098, "repair"), (33111358, "start")])
def test_a_start_after_a_kill_on_a_machine_that_was_not_restarted_cuts_nothing_good(seed, way, tmp_path):
    """Also without `abort` and without a checkpoint. A repair of a store whose last log file is gone names
    what is known of it."""
    broken, judged = run_case(seed, tmp_path, "killed", ways=[way])
    assert broken.is_same_boot and judged[way].outcome == ("refused" if way == "start" else "bridged"), (
        f"{broken.breaks}: {judged[way]!r}"
    )


def test_a_start_with_sync_flush_cuts_no_record_to_which_a_unit_leads(tmp_path):
    """A record is damaged, and so is its unit; the units of other queues lead to good records after it. The
    machine was restarted."""
    broken, judged = run_case(34000394, tmp_path, "killed")
    assert broken.last_start.is_sync_flush and [judged[way].outcome for way in WAYS] == [
        "refused",
        "bridged",
        "cut",
    ], f"{broken.breaks}: {judged!r}"


def test_a_start_after_a_close_cuts_no_log_beyond_which_units_lead(tmp_path):
    """The checkpoint is zero and two log files have changed places."""
    broken, judged = run_case(34010832, tmp_path, "killed")
    assert judged["start"].outcome == "refused", f"{broken.breaks}: {judged!r}"


@pytest.mark.parametrize(
    "seed",
    [
        20604,
        400099,
        400344,
        400747,
        5081,
        5286,
        6006152,
        11006090,
        11009103,
        14004547,
        15005148,
        16001756,
        16001898,
    ],
)
def test_what_went_with_units_that_knew_it_is_named_by_a_repair(seed, tmp_path):
    """By the record of ends, by the names of log files that another was copied over, or by the bytes that no
    queue names."""
    broken, judged = run_case(seed, tmp_path, ways=["repair"])
    assert judged["repair"] == Judgement("bridged"), f"{broken.breaks}: {judged['repair']!r}"


@pytest.mark.parametrize("seed", [400504, 7000121])
def test_a_store_without_any_log_file_is_not_repaired(seed, tmp_path):
    """It took all queues away and then was refused, or began a log within the old one."""
    _, judged = run_case(seed, tmp_path, ways=["repair"])
    assert judged["repair"].outcome == "refused" and judged["repair"].sentence.startswith(
        "There is no log file"
    ), judged["repair"]


def test_numbers_in_a_misnamed_file_of_units_that_may_have_expired_are_not_given_again(tmp_path):
    """Its queue has no other file, the log begins late, and no record of ends is left."""
    broken, judged = run_case(14009950, tmp_path, ways=["repair"])
    assert judged["repair"] == Judgement("bridged"), f"{broken.breaks}: {judged['repair']!r}"


# Each of these once lost or hid messages or keys without a word where damage was accepted, or refused the
# next start: a changed topic, swapped log files, last records of a queue in a bad part, or of one without its
# first units, units beyond a lost end, index files beside a lost end or a log that is gone.
ACCEPTED_THAT_FAILED = (
    31200248,
    31107639,
    2001,
    1701,
    1709,
    689,
    569,
    1977,
    2363,
    244,
    33,
    1160,
    2000813,
    3010652,
    3010885,
    3011022,
    6005027,
    7106418,
    7107309,
    7103488,
    7104048,
    8008970,
    11001400,
    11006378,
    12000297,
    16007417,
)


@pytest.mark.parametrize("seed", ACCEPTED_THAT_FAILED)
def test_a_start_that_accepts_damage_and_once_failed_does_not_again(seed, tmp_path):
    broken, judged = run_case(seed, tmp_path, ways=["accept"])
    assert isinstance(judged["accept"], Judgement), f"{broken.breaks}: {judged['accept']!r}"


@pytest.mark.parametrize("kind", ["clean", "killed"])
def test_a_record_that_states_another_place_hides_no_message(kind, tmp_path):
    """A flipped bit outside the CRC, in a first record of a queue above all: a start went on after millions
    of offsets, and so did a repair."""
    for seed in range(CASES):
        broken, judged = run_case(seed, tmp_path / str(seed), kind, STATED)
        for way, end in judged.items():
            assert isinstance(end, Judgement), f"seed {seed}, {way}: {broken.breaks}: {end!r}"


# What the record of one message states was changed beside that message's unit, or all of its queue's file:
# the message was lost without a word, its number was given again, or another message was written over.
@pytest.mark.parametrize("seed", [5000182, 5000386, 5000483, 5001190, 5001741])
def test_a_record_that_states_another_place_beside_damaged_units_hides_no_message(seed, tmp_path):
    broken, judged = run_case(seed, tmp_path, within=STATED)
    for way, end in judged.items():
        assert isinstance(end, Judgement), f"{way}: {broken.breaks}: {end!r}"
    assert judged["start"].outcome == "refused"


def test_units_that_an_accepted_start_wrote_anew_are_not_damaged_for_the_next_start(tmp_path):
    """They differ from those of the record of ends, which a plain start had used."""
    broken = broken_store(33)
    write_out(broken, tmp_path / "store")
    clock, settings = Clock(), broken.original.settings(tmp_path / "store")
    clock.advance(10**9)
    for accepts in (False, True, False):
        store = HandStore(replace(settings, accept_damage=accepts), clock).begin()
        store.close()
        store.die()
    assert [one for one in store.report.as_dict()["findings"] if one["file"].startswith("consumequeue")] == []
    shutil.rmtree(tmp_path / "store")  # the log is still damaged


@pytest.mark.parametrize("kind", REPAIRED)
def test_what_is_broken_after_a_repair_or_an_accepted_start_costs_no_message_and_no_offset(kind, tmp_path):
    """Blank units, placeholders and next offsets without files are as good as what was there first.

    Of the MAX_ORIGINALS stores these are repaired at an early try, so they are made soon.
    """
    for seed in (
        original + MAX_ORIGINALS * number for original in (0, 3, 7, 10, 16) for number in range(CASES // 5)
    ):
        broken, judged = run_case(seed, tmp_path / str(seed), kind)
        for way, end in judged.items():
            assert isinstance(end, Judgement), f"seed {seed}, {way}: {broken.breaks}: {end!r}"


# The record of ends is gone, a log file is zero, and the unit of one of its messages is damaged: the start
# gave the numbers after it again.
def test_units_behind_a_damaged_one_that_lead_to_a_bad_part_of_the_log_are_numbers_that_were_given(tmp_path):
    broken, judged = run_case(20401214, tmp_path)
    assert judged["start"].outcome == "refused" and "units 6 to 8 are missing" in judged["start"].sentence, (
        broken.breaks
    )


# A start was refused after it had changed files; the next start was refused, since a queue's new file began
# with blank units; a start that accepts damage took away units that had agreed, and put placeholders in place
# of messages that the log had; units of another queue that lead to a bad part of the log were used, and
# hid messages after it.
@pytest.mark.parametrize(
    ("seed", "kind", "within", "way"),
    [
        (20000371, "repaired", "consumequeue/", "start"),
        (20000092, "accepted", "consumequeue/", "start"),
        (20000172, "accepted", "consumequeue/", "accept"),
        (20000116, "repaired", "", "accept"),
        (20000298, "accepted", "consumequeue/quiet/", "start"),
        (20103517, "", "", "accept"),
        (20108518, "", "", "repair"),
        (20109517, "", "", "accept"),
        (20300048, "", "", "accept"),
        (20506047, "", "", "accept"),
        (20501322, "", "", "repair"),
        (30500538, "", "", "repair"),
        (30700178, "", "", "accept"),
        (30705160, "", "", "accept"),
        (30704280, "", "", "repair"),
        (30905590, "", "", "repair"),
    ],
)
def test_a_mended_store_that_once_failed_does_not_again(seed, kind, within, way, tmp_path):
    broken, judged = run_case(seed, tmp_path, kind, within, [way])
    assert isinstance(judged[way], Judgement), f"{broken.breaks}: {judged[way]!r}"


@pytest.mark.parametrize("accepts", [False, True])
@pytest.mark.parametrize(
    ("of", "instead"), [("FixA/3", "FixA/0"), ("FixB/1", "FixC/2"), ("%RETRY%FixGroup/0", "FixA/1")]
)
def test_units_of_another_queue_below_the_log_hide_no_message_of_the_queue(of, instead, accepts, tmp_path):
    """Retention took the first log file, so the other queue's units lead to no record that would disown them:
    those of the later records counted as written."""
    original = make_original(APACHE, 0)
    broken = Broken(dict(original.files), original, random.Random(0))
    del broken.files["commitlog/00000000000000000000"]
    broken.files[f"consumequeue/{of}/00000000000000000000"] = original.files[
        f"consumequeue/{instead}/00000000000000000000"
    ]
    write_out(broken, tmp_path / "store")
    assert judge_start(tmp_path / "store", broken, accept_damage=accepts).outcome in (
        "bridged",
        "whole",
        "refused",
    )
    shutil.rmtree(tmp_path / "store")  # an accepted start leaves numbers without a record
