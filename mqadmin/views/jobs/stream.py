"""The jobs that wait or run, and one job."""

from __future__ import annotations

from mqadmin import jobs
from mqadmin.views.view import Stream

STREAMS = {
    "jobs": Stream(lambda cluster, name: jobs.moving(), 4, in_thread=True, in_turn=False),
    "job": Stream(lambda cluster, name: jobs.state_of(name), 2, jobs.check_id, in_thread=True, in_turn=False),
}
