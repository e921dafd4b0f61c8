"""Changes of tokens by the page *Access* and REST, each with its audit record. They block: for threads."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin.audit import audited
from mqadmin.web import tokens


def issue(caller: Caller, name: str, role: tokens.Role, days: int | None) -> tuple[tokens.ApiToken, str]:
    """Issue a token; return it with its text, which is kept nowhere. Raises Problem."""
    with audited(caller, "create", "apitoken", name, role=role, days=days) as record:
        try:
            token, text = tokens.issue(name, role, caller.name, days)
        except tokens.TooManyTokens as error:
            raise Problem("limit_reached", str(error)) from None
        except ValidationError as error:
            raise Problem("invalid", tokens.what_is_wrong(error)) from None
        record["id"] = token.pk
    return token, text


def revoke(caller: Caller, token_id: int) -> None:
    """End a token. Raises Problem if there is none."""
    token = tokens.ApiToken.objects.filter(pk=token_id).first() if token_id < 1 << 63 else None
    if token is None:
        raise Problem("not_found", f"there is no token {token_id}")
    with audited(caller, "delete", "apitoken", token.name, id=token_id):
        tokens.revoke(token)
