"""The stream of a check's progress and findings."""

from __future__ import annotations

from mqadmin.jobs import queue
from mqadmin.views.store.doctor import facts
from mqadmin.views.view import Stream

STREAMS = {
    "check": Stream(
        lambda cluster, name: facts.watched(name), 2, queue.check_id, in_thread=True, in_turn=False
    ),
}
