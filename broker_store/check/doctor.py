"""The store doctor: what each finding of a check means, its severity, and what a repair does about it.

harmless     nothing needs to be done
next start   the next start of a broker repairs it by itself
repair       a repair changes it, and nothing that was readable is lost
lost         bytes that held data are gone; a repair makes the rest whole
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker_store.check.report import ERROR, NOTE, CheckReport, Finding
from broker_store.check.results import GRADES, HARMLESS, LOST, NEXT_START, REPAIR, GradedFinding
from broker_store.check.rules import AFTER_THE_LOG
from broker_store.formats import timer_log


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a kind of finding: what it means to the reader of the store, what a repair does, and its
    grade as an error and as a warning."""

    means: str
    repair: str
    as_error: str = REPAIR
    as_warning: str = NEXT_START


_OR_KEY = (
    "The keys in the record may have changed instead. Nothing shows which of both is wrong; a repair "
    "uses those of the record."
)
_INDEX = "Lookups by key may miss messages of this file or find others; reading by queue is not touched."
_NEW_INDEX = "The index files are moved away and the index is made again from the log."
_NEW_QUEUE = "The queue's files are moved away and the queue is made again from the log."
_FROM_QUEUE = (
    "The next start of this broker takes what waits from the queue of timer messages again, without what "
    "was delivered."
)
_NEW_TIMER_LOG = f"Timer log and wheel are moved away. {_FROM_QUEUE}"
_NEW_WHEEL = "The wheel is made again from the timer log."
_START_REFUSED = "A broker refuses to start with it."

MEANINGS = {
    "bad-record": Meaning(
        "Bytes of the log that were once right have changed. The message here cannot be read; "
        "without a repair a start would end the log here and drop all that follows.",
        "The damaged bytes are bridged: an empty placeholder takes the message's place in its queue, "
        "and everything after it stays readable.",
        LOST,
    ),
    "torn-tail": Meaning(
        "The log ends in the middle of a record, as a crash leaves it. What follows was never whole "
        "on the disk.",
        "The log is cut here; queues and index are cut to fit.",
        LOST,
    ),
    "stale-tail": Meaning(
        "Old bytes lie after the end of the log. No broker reads them.", "They are made zero.", REPAIR
    ),
    "queue-offset": Meaning(
        "A record states a place in a queue that is not the next one there: its header has changed, "
        "or a message between is missing.",
        "The record gets the topic, queue and number of the unit that points to it.",
    ),
    "store-time": Meaning(
        "Store times go back along the log: a clock was set back, or a record's bytes have changed. "
        "A search by time, and the day of an archive, may be wrong near here.",
        "Nothing: the time that the record had is not known.",
    ),
    "unit-wrong": Meaning(
        "A unit of a queue does not say of its record what the log says: a reader would get another "
        "message, half of one, or pass it over by its tag.",
        _NEW_QUEUE,
    ),
    "unit-missing": Meaning(
        "The log has messages that their queue does not know: a reader cannot reach them, or stops "
        "before them.",
        _NEW_QUEUE,
    ),
    "unit-extra": Meaning(
        "The queue knows messages that the log does not have: they are lost, or were never whole.",
        "The queue is cut where the log's messages end, or made again from the log.",
    ),
    "index-entry": Meaning(
        f"An entry names a record or a key that is not there. {_INDEX} {_OR_KEY}", _NEW_INDEX
    ),
    "index-time": Meaning(f"An entry has another time than its record. {_INDEX}", _NEW_INDEX),
    "index-chain": Meaning(
        f"An entry names a wrong one as the one before it: a chain is cut, mixed with another, or "
        f"has no end. {_INDEX}",
        _NEW_INDEX,
    ),
    "index-slot": Meaning(f"A slot does not name its newest entry. {_INDEX}", _NEW_INDEX),
    "index-header": Meaning(f"What the file says of itself does not fit its entries. {_INDEX}", _NEW_INDEX),
    "index-missing": Meaning(
        "Keys of messages are in no index file: these messages cannot be looked up by key.", _NEW_INDEX
    ),
    "index-behind": Meaning(
        "The newest keys are not in the index: these messages cannot be looked up by key.",
        "The keys are added from the log.",
    ),
    "index-extra": Meaning(
        "The index knows messages that the log does not have (any more).",
        "The index is cut where the log ends.",
    ),
    "index-geometry": Meaning(
        f"Its length and content do not show how many slots and entries it has. {_START_REFUSED}",
        _NEW_INDEX,
    ),
    "index-starts-late": Meaning(
        "Keys of older messages are in no index file: an index file is missing.", _NEW_INDEX, REPAIR, REPAIR
    ),
    "no-index": Meaning(
        "No message can be looked up by key.", "The index is made from the log.", REPAIR, REPAIR
    ),
    "file-length": Meaning(
        f"A file has not the length that all of its kind have. {_START_REFUSED}",
        "It gets its length again, or is made again from the log; a timer log from its queue, by the "
        "next start.",
    ),
    "file-name": Meaning(
        f"A file's name is no place where a file can begin. {_START_REFUSED}",
        "It is moved away, or its queue is made again from the log.",
    ),
    "misplaced-file": Meaning(
        f"A file lies under another name than its records state, or holds nothing and lies after the "
        f"end of the log. {_START_REFUSED}",
        "It gets the name that its records state. Where another file has that place, it is moved away.",
    ),
    "file-missing": Meaning(
        f"A file between others is gone, with all that was in it. {_START_REFUSED}",
        "A queue's is made again from the log. A timer log is moved away whole, and what waits is "
        "taken from the queue of timer messages again. In place of a log file one of empty "
        "placeholders is put, so that the files after it can be read.",
        LOST,
    ),
    "empty-file": Meaning("A file was made and never used.", "It is removed."),
    "stray-file": Meaning(
        f"A file or directory that is not the store's. {_START_REFUSED}", "It is moved away."
    ),
    "unreadable": Meaning(
        "Where the store expects a regular file, or a directory, there is something else: a link, a "
        "device, the other of the two.",
        "In the place of a file of a queue or of the index it is moved away, and the file is made "
        "again from the log. Elsewhere it stays: put the file itself there, or move what is there "
        "out of the store.",
    ),
    "log-start": Meaning(
        "The oldest messages are not in the log any more. After the time that messages are kept that "
        "is as it should be.",
        "Nothing: the log decides what exists.",
    ),
    "log-missing": Meaning(
        "The store had a log, and no file of it is here. A start refuses.",
        "Nothing, until its files are put back or their disk is mounted; a start with "
        "--accept-damage goes on without it, with new offsets after the old ones.",
        LOST,
    ),
    "log-starts-late": Meaning(
        "Files are missing at the begin of the log, and retention did not remove them. A start "
        "refuses; put them back if you can.",
        "The log begins with the first file that is there; the messages that lay before are named as lost.",
        LOST,
    ),
    "log-starts-early": Meaning(
        "A crash came between the note of the log's new begin and the removal of the old files.",
        "The next start removes them.",
    ),
    "ends": Meaning(
        "The record of where queues and index end is not whole. A start reads the log from where the "
        "whole part ends, and compares.",
        "It is written again.",
    ),
    "ends-missing": Meaning(
        "The record of where the log begins and where queues and index end is gone. What is missing "
        "at either end of the log then counts as removed by retention, or is not noticed.",
        "Nothing: the next start writes it again, from the files that are there.",
    ),
    "config-missing": Meaning(
        "A table of `config/` that each stop writes is not there, so what it said is lost.",
        "Nothing: put it back before the next start.",
        LOST,
        LOST,
    ),
    "checkpoint": Meaning(
        "A start does not know what was surely on the disk, and reads the whole log after a crash.",
        "It is written again.",
    ),
    "checkpoint-ahead": Meaning(
        "The checkpoint claims more than the log holds: the end of the log is gone, or the "
        "checkpoint is wrong. A start would refuse.",
        "It is written again.",
    ),
    "config": Meaning(
        "A table of `config/` is missing, cannot be read or is not of the form that a start takes.",
        "Its copy takes its place; without a good one it is moved away, topics.json made from the queues.",
        LOST,
    ),
    "offset-ahead": Meaning(
        "A group or a delay level is further than its queue goes, as after a power cut. A start sets "
        "it back; Apache's broker passes over what lies before it.",
        "The offset is lowered to the end of the queue, that of a delay level to what still waits.",
    ),
    "timer-wheel": Meaning(
        f"The wheel of timer messages has not the length of all wheels. {_START_REFUSED}",
        "It is moved away and made again from the timer log.",
    ),
    "timer-slot": Meaning(
        "The wheel does not name the newest message of a second. This broker makes the wheel again at "
        "each start; Apache's would lose these messages.",
        _NEW_WHEEL,
    ),
    "timer-slots": Meaning(
        "More slots of the wheel differ from the timer log than were compared one by one: the "
        "others may be wrong or right, and units of another second than their message says may be "
        "among those that they name.",
        _NEW_WHEEL,
    ),
    "timer-log": Meaning(
        "The log of timer messages ends before its file says so, as a crash or damage leaves it.",
        f"It is cut here. {_FROM_QUEUE}",
    ),
    "timer-chain": Meaning(
        "Timer messages of one second are linked wrongly: some would come at another's time, twice, "
        "or never.",
        _NEW_TIMER_LOG,
    ),
    "timer-unit": Meaning(
        "A unit of the timer log names a message that is none, or another second than the message "
        "does: it would never come, or at a wrong time.",
        _NEW_TIMER_LOG,
    ),
    "timer-check": Meaning(
        "How far timer messages were delivered is not known, or does not fit the rest. Without it "
        "those of the last seven days are delivered once more; one that states a time to come passes "
        "over all that wait until then.",
        "One that states a time to come is moved away: twice is better than never.",
    ),
    "empty": Meaning("There is nothing here yet.", "Nothing."),
}


def meaning_of(finding: Finding) -> Meaning:
    return MEANINGS[finding.kind]


def grade_of(finding: Finding, unclean: bool) -> str:
    """Return the grade of a finding; `unclean`: the store was not closed in order."""
    if finding.severity == NOTE:
        return HARMLESS
    meaning = meaning_of(finding)
    if finding.kind == "file-missing" and (
        finding.queue is not None or Path(finding.file).parent.name == timer_log.PATH
    ):
        return REPAIR
    if finding.kind == "unit-extra" and finding.severity == ERROR and finding.what.endswith(AFTER_THE_LOG):
        return LOST
    if finding.kind == "no-index" and unclean:
        return NEXT_START
    return meaning.as_error if finding.severity == ERROR else meaning.as_warning


def findings_of(report: CheckReport, root: Path, unclean: bool) -> list[GradedFinding]:
    """Return the findings of a report, each with its grade, its meaning and what a repair does; the most
    severe first."""
    found = [
        GradedFinding(
            severity=finding.severity,
            grade=grade_of(finding, unclean),
            kind=finding.kind,
            file=_inside(finding.file, root),
            offset=finding.offset,
            what=finding.what,
            means=meaning_of(finding).means,
            repair=meaning_of(finding).repair,
        )
        for finding in report.findings
    ]
    return sorted(found, key=lambda finding: -GRADES.index(finding.grade))


def _inside(file: str, root: Path) -> str:
    """Return a file's name relative to the store."""
    try:
        return str(Path(file).relative_to(root))
    except ValueError:
        return file
