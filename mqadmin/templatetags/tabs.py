"""The tabs of the store's pages, from the views that have one."""

from __future__ import annotations

from django import template
from django.urls import reverse

from mqadmin.views import registry

register = template.Library()


@register.inclusion_tag("store_tabs.html", takes_context=True)
def store_tabs(context: template.RequestContext) -> dict[str, object]:
    """Return the tabs. The current one is that whose address is the longest beginning of the page's
    address."""
    here = context.request.path
    shown = [(reverse(tab.page), tab.title) for tab in registry.tabs()]
    current = max((address for address, _ in shown if here.startswith(address)), key=len, default=None)
    return {"tabs": shown, "current": current}
