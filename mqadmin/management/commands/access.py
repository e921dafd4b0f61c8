"""manage.py access: may, import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from broker_store.access.plain_acl import MAX_FILE_BYTES, Account, PlainAclError, read_plain_acl
from broker_store.access.state import ChangeRefused
from broker_store.rest.callers import Caller
from broker_store.units import Document, fact_of
from mqadmin.audit import audited
from mqadmin.facts.access import AccessAnswer, ImportedUsers
from mqadmin.management.base import BrokerCommand
from mqadmin.process import run_file
from mqadmin.process.rest_client import NotRunningError
from mqadmin.web.local_socket import user_name

MAX_FILES = 1_000
USERS_PER_REQUEST = 50


class Command(BrokerCommand):
    help = "Access control of a broker. `import` also works while it is stopped."

    def verbs(self, add: Any) -> None:
        may = add("may", "may a user do that? With the rule that decides")
        may.add_argument("user")
        may.add_argument("action", help="Pub, Sub, Create, Update, Delete, Get or List")
        may.add_argument("resource", help="such as Topic:orders, Group:billing or Cluster:DefaultCluster")
        may.add_argument("--address", help="of the client")
        importing = add("import", "add the accounts of Apache 4.9 as users with their rules")
        importing.add_argument(
            "path", type=Path, help="plain_acl.yml, a directory with such files, or conf with both"
        )
        importing.add_argument("--dry-run", action="store_true", help="show what would be added, add nothing")

    def do_may(self, options: dict[str, Any]) -> None:
        asked = {name: options[name] for name in ("user", "action", "resource", "address")}
        with self.broker() as broker:
            found = broker.get("/access/decision", **{name: value for name, value in asked.items() if value})
        answer = fact_of(AccessAnswer, found)
        self.show(found, f"{'Yes' if answer.is_allowed else 'No'}: {answer.why}.")

    def do_import(self, options: dict[str, Any]) -> None:
        """Read all files before anything is added, so that a wrong line stops the whole import."""
        accounts: list[Account] = []
        places: dict[str, str] = {}
        for path in _files(options["path"]):
            try:
                with path.open("rb") as file:
                    found = read_plain_acl(file.read(MAX_FILE_BYTES + 1))
            except OSError as error:
                raise CommandError(f"{path} cannot be read: {error.strerror}") from None
            except PlainAclError as error:
                raise CommandError(f"nothing is imported: {path}, {error}") from None
            for note in found.notes:
                self.stderr.write(f"{path}, {note}")
            for account in found.accounts:
                place = f"{path}, line {account.line}"
                if account.user.name in places:
                    raise CommandError(
                        f"nothing is imported: {place}: the account {account.user.name} is also at "
                        f"{places[account.user.name]}"
                    )
                places[account.user.name] = place
                accounts.append(account)
        made = self._import(accounts, options["dry_run"]) if accounts else _nothing(options["dry_run"])
        verb = "would be created" if made.dry_run else "are created"
        sentence = f"{len(made.created)} users {verb}, {len(made.skipped)} exist and stay as they are."
        lines = [sentence, *(f"  {name}" for name in made.created)]
        self.show(
            {"dry_run": made.dry_run, "created": made.created, "skipped": made.skipped}, "\n".join(lines)
        )

    def _import(self, accounts: list[Account], dry_run: bool) -> ImportedUsers:
        users = list(map(_document, accounts))
        created: list[str] = []
        skipped: list[str] = []
        try:
            with self.broker() as broker:
                # All are tried before one is made
                for is_dry in (True,) if dry_run else (True, False):
                    created, skipped = [], []
                    for begin in range(0, len(users), USERS_PER_REQUEST):
                        piece = users[begin : begin + USERS_PER_REQUEST]
                        answer = broker.post("/access/import", {"users": piece, "dry_run": is_dry})
                        made = fact_of(ImportedUsers, answer)
                        created += made.created
                        skipped += made.skipped
        except NotRunningError:
            return self._import_into_file(accounts, dry_run)
        return ImportedUsers(dry_run=dry_run, created=created, skipped=skipped)

    def _import_into_file(self, accounts: list[Account], dry_run: bool) -> ImportedUsers:
        """Add accounts to the file of a broker that is stopped. A lock refuses that while one runs."""
        from mqadmin.process.stopped_access import import_into

        root = run_file.store_directory(self.data).absolute()
        given = [(account.user, account.policies) for account in accounts]
        caller = Caller(f"local:{user_name()}", "admin")
        try:
            if dry_run:
                made = import_into(root, given, dry_run=True)
            else:
                with audited(caller, "import", "user", f"{len(given)} users") as record:
                    made = import_into(root, given, dry_run=False)
                    record |= {"created": made.created, "skipped": made.skipped}
        except ChangeRefused as error:
            raise CommandError(f"nothing is imported: {error}") from None
        self.stderr.write(f"No broker answers, so {root} is changed; the next start reads it.")
        return ImportedUsers(dry_run=dry_run, created=made.created, skipped=made.skipped)


def _nothing(dry_run: bool) -> ImportedUsers:
    return ImportedUsers(dry_run=dry_run, created=[], skipped=[])


def _document(account: Account) -> Document:
    """Return an account as REST takes it."""
    return {
        "name": account.user.name,
        "password": account.user.secret,
        "type": str(account.user.type),
        "rules": [
            {
                "policy": str(policy.type),
                "resource": rule.resource.text,
                "actions": list(map(str, rule.actions)),
                "verdict": str(rule.verdict),
            }
            for policy in account.policies
            for rule in policy.rules
        ],
    }


def _files(path: Path) -> Iterator[Path]:
    """Yield the files of an import: of a directory with plain_acl.yml that and those below acl/, else all
    .yml and .yaml below it, in the order of their names. Raises CommandError."""
    if not path.is_dir():
        if not path.is_file():
            raise CommandError(f"there is no file {path}")
        yield path
        return
    single = path / "plain_acl.yml"
    below = path / "acl" if single.is_file() else path
    found = sorted(
        one for one in below.rglob("*") if one.suffix in (".yml", ".yaml") and one.is_file() and one != single
    )
    if single.is_file():
        found.insert(0, single)
    if not found or len(found) > MAX_FILES:
        raise CommandError(f"{path} has {len(found)} files .yml or .yaml, expected 1 to {MAX_FILES}")
    yield from found
