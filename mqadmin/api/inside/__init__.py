"""The inside of the store by REST: a module a view."""

from __future__ import annotations

from ninja import Router

from mqadmin.api.inside import bytes, cache, checks, disk, index, journey, recoveries, write

router = Router()
for module in (bytes, cache, checks, disk, index, journey, recoveries, write):
    router.add_router("", module.router)
