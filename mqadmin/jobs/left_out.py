"""Dead letters that were left out when those of their group were sent again (mqadmin/jobs/dead_letters.py),
so that they can be sent later.

They lie before the committed offset up to which letters were taken up, and were not sent: their topic did not
exist, or took no messages. A row is a range of offsets of a queue. Rows at or after the committed offset do
not count: a run that was killed before its commit reads these letters again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db import models, transaction

from mqadmin.facts.offset_ranges import Range, within


class LeftOutLetters(models.Model):
    """Dead letters [first, end) of one queue of a group."""

    group = models.CharField(max_length=255)
    queue_id = models.IntegerField()
    first = models.BigIntegerField()
    end = models.BigIntegerField()

    class Meta:
        ordering = ("queue_id", "first")
        indexes = (models.Index(fields=("group", "queue_id", "first")),)

    def __str__(self) -> str:
        return f"{self.group}, queue {self.queue_id}: {self.first:,} to {self.end - 1:,}"


class LeftOut:
    """The rows of one group."""

    def __init__(self, group: str):
        self._group = group

    def begin(self, queue_id: int, low: int, place: int) -> list[Range]:
        """Return the letters of a queue that wait in [low, place), in order. Delete all other rows of the
        queue: their letters expired, or lie after `place`."""
        rows = LeftOutLetters.objects.filter(group=self._group, queue_id=queue_id)
        with transaction.atomic():
            ranges = within(rows.values_list("first", "end"), low, place)
            rows.delete()
            self._add(queue_id, ranges)
        return ranges

    def replace(self, queue_id: int, first: int, end: int, kept: Sequence[Range]) -> None:
        """Store that of the letters [first, end) those of `kept` are left out, and no others."""
        rows = LeftOutLetters.objects.filter(
            group=self._group, queue_id=queue_id, first__lt=end, end__gt=first
        )
        with transaction.atomic():
            parts = list(kept)
            for row_first, row_end in rows.values_list("first", "end"):
                parts += [(row_first, first)] if row_first < first else []
                parts += [(end, row_end)] if row_end > end else []
            rows.delete()
            self._add(queue_id, parts)

    def _add(self, queue_id: int, ranges: Iterable[Range]) -> None:
        LeftOutLetters.objects.bulk_create(
            [
                LeftOutLetters(group=self._group, queue_id=queue_id, first=first, end=end)
                for first, end in ranges
            ],
            batch_size=500,
        )


def of_group(group: str) -> dict[int, list[Range]]:
    """Return the stored ranges of each queue. For a thread: it reads the database."""
    found: dict[int, list[Range]] = {}
    for queue_id, first, end in LeftOutLetters.objects.filter(group=group).values_list(
        "queue_id", "first", "end"
    ):
        found.setdefault(queue_id, []).append((first, end))
    return found
