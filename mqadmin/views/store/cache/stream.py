"""The stream of the parts of files that are in memory."""

from __future__ import annotations

from mqadmin.views.store.cache.facts import for_page
from mqadmin.views.view import Stream

STREAMS = {
    "store.cache": Stream(lambda cluster, name: for_page(cluster.store.cache()), 40, in_thread=True),
}
