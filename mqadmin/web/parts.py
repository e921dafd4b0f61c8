"""Parts of pages that are the same for everybody: drawn once, however many browsers show them (the stream
`part`).

A part is named by the address from which a browser without the stream would fetch it, and is what the page's
own view answers there to whoever has the least role. It is looked at and drawn in one thread, so that the
loop waits for neither.
"""

from __future__ import annotations

from django.core.exceptions import TooManyFieldsSent
from django.http import QueryDict
from django.template.loader import render_to_string
from django.urls import Resolver404, resolve

from broker_store.errors import LookupNameError
from mqadmin.views import registry

MOST_ADDRESS = 1_024


def check_address(address: str) -> str:
    """`address` when a part stands there; else LookupNameError."""
    path, _, query = address.partition("?")
    try:
        part = (
            registry.parts().get(resolve(path).url_name)
            if len(address) <= MOST_ADDRESS and address.isascii() and "#" not in address
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


def render(cluster, address: str) -> str:
    """The HTML of the part. Raises what its look raises. For a thread."""
    path, _, query = address.partition("?")
    part = registry.parts()[resolve(path).url_name]
    return render_to_string(part.template, part.facts(cluster, QueryDict(query)))
