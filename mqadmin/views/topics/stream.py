"""One topic."""

from __future__ import annotations

from broker_store.formats import names
from mqadmin.views.view import Stream

STREAMS = {
    "topic": Stream(lambda cluster, name: cluster.topics.detail(name), 4, names.check_topic),
}
