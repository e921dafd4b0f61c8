"""The jobs that wait or run, and one job."""

from __future__ import annotations

from mqadmin.jobs import queue
from mqadmin.views.view import Stream

STREAMS = {
    "jobs": Stream(lambda cluster, name: queue.moving(), 4, in_thread=True, in_turn=False),
    "job": Stream(
        lambda cluster, name: queue.state_of(name), 2, queue.check_id, in_thread=True, in_turn=False
    ),
}
