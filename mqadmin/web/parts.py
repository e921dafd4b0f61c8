"""Parts of pages that are the same for all users: drawn once, however many browsers show them (the stream
`part`).

The name of a part is the address from which a browser without the stream fetches it. It is the answer of the
page's view at that address to a viewer. It is measured and drawn in one thread, so that the loop waits for
neither.
"""

from __future__ import annotations

from django.core.exceptions import TooManyFieldsSent
from django.http import QueryDict
from django.template.loader import render_to_string
from django.urls import Resolver404, resolve

from broker_store.errors import LookupNameError
from broker_store.units import fields_of
from mqadmin.cluster.protocol import Cluster
from mqadmin.views import registry

MAX_ADDRESS = 1_024


def check_address(address: str) -> str:
    """Return `address` when it is one of a part. Raises LookupNameError."""
    path, _, query = address.partition("?")
    try:
        part = (
            registry.parts().get(resolve(path).url_name)
            if len(address) <= MAX_ADDRESS and address.isascii() and "#" not in address
            else None
        )
        asked = {name: value for name, value in QueryDict(query).items() if value}
    except (Resolver404, TooManyFieldsSent):
        part = None
    if part is not None and asked.keys() <= part.asks and (part.needs is None or part.needs in asked.items()):
        return address
    allowed = ", ".join(
        f"{name} ({', '.join(sorted(part.asks)) or 'nothing asked'})"
        for name, part in sorted(registry.parts().items())
    )
    raise LookupNameError(f"a part is named by an address of {allowed}")


def render(cluster: Cluster, address: str) -> str:
    """Return the HTML of the part. Raises what its measurement raises. For a thread."""
    path, _, query = address.partition("?")
    part = registry.parts()[resolve(path).url_name]
    return render_to_string(part.template, fields_of(part.facts(cluster, QueryDict(query))))
