"""The inside of the store by REST: a module a view."""

from __future__ import annotations

from ninja import Router

from mqadmin.api.inside import index

router = Router()
router.add_router("", index.router)
