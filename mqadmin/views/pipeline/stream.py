"""The stream of waiting and running runs."""

from __future__ import annotations

from mqadmin.jobs import queue
from mqadmin.views.view import Stream

STREAMS = {
    "pipeline": Stream(lambda cluster, name: queue.moving(runs_only=True), 4, in_thread=True, in_turn=False),
}
