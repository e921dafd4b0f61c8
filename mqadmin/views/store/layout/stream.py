"""Layout while a page shows it: from the ends of the queues on, without a start of the asker's."""

from __future__ import annotations

from mqadmin.views.store.layout import facts
from mqadmin.views.view import Stream


def layout(cluster, name: str) -> facts.Shown:
    return facts.for_page(cluster.store.watched_layout(*facts.choice_of(name)))


STREAMS = {"store.layout": Stream(layout, 40, facts.check_choice, in_thread=True)}
