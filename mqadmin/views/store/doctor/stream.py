"""How far a check is, and what it has found."""

from __future__ import annotations

from mqadmin import jobs
from mqadmin.views.store.doctor import facts
from mqadmin.views.view import Stream

STREAMS = {
    "check": Stream(
        lambda cluster, name: facts.watched(name), 2, jobs.check_id, in_thread=True, in_turn=False
    ),
}
