"""The inside of the store by REST: a module a view."""

from __future__ import annotations

from ninja import Router

router = Router()
