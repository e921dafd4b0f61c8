"""manage.py token: list, create, revoke."""

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError

from broker_store.rest.callers import ROLES, Caller
from broker_store.rest.problems import Problem
from broker_store.units import document_of
from mqadmin.audit import audited
from mqadmin.management.base import BrokerCommand
from mqadmin.web import tokens
from mqadmin.web.local_socket import user_name


class Command(BrokerCommand):
    help = (
        "API tokens. The command changes the database itself: a running broker uses a change within a second."
    )

    def verbs(self, add) -> None:
        add("list", "all tokens")
        create = add("create", "create a token and print it; it is not shown again")
        create.add_argument("name", help="name of the program that uses it")
        create.add_argument("--role", choices=ROLES, default="viewer")
        create.add_argument(
            "--days",
            type=int,
            help=f"days until it expires, at most {tokens.MAX_DAYS:,} (default: it does not expire)",
        )
        add("revoke", "revoke a token").add_argument("id", type=int)

    def do_list(self, options) -> None:
        items = [document_of(tokens.shown(token)) for token in tokens.ApiToken.objects.all()]
        columns = {
            "id": "ID",
            "name": "NAME",
            "role": "ROLE",
            "start": "BEGINS WITH",
            "state": "STATE",
            "created_by": "BY",
            "created_at": "CREATED",
            "last_used_at": "LAST USED",
        }
        self.show_table(items, columns, empty="There are no tokens.")

    def do_create(self, options) -> None:
        caller = Caller(f"local:{user_name()}", "admin")
        with audited(
            caller, "create", "apitoken", options["name"], role=options["role"], days=options["days"]
        ) as record:
            try:
                token, text = tokens.issue(options["name"], options["role"], caller.name, options["days"])
            except tokens.TooManyTokens as error:
                raise Problem("limit_reached", str(error)) from None
            except ValidationError as error:
                raise Problem("invalid", f"no token is created: {tokens.what_is_wrong(error)}") from None
            record["id"] = token.pk
        self.show(document_of(tokens.issued(token, text)), text)

    def do_revoke(self, options) -> None:
        token = tokens.ApiToken.objects.filter(pk=options["id"]).first()
        if token is None:
            raise CommandError(f"there is no token {options['id']}; see: manage.py token list")
        with audited(Caller(f"local:{user_name()}", "admin"), "delete", "apitoken", token.name, id=token.pk):
            tokens.revoke(token)
        self.show(document_of(tokens.shown(token)), f"Token {token.name} is revoked.")
