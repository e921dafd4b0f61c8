"""Policies: which actions on which resources, from which addresses, are allowed or denied to a user.

A user has at most one ACL. It has a Custom policy and a Default policy; the Default one decides only where no
entry of the Custom one matches. The wire form of both is Apache's `AclInfo`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from broker_store.access.addresses import is_address_rule, one_spelling
from broker_store.access.resources import ANYTHING, Action, Resource, read_actions, read_resource
from broker_store.errors import FormatError
from broker_store.excerpts import text_excerpt

MAX_ENTRIES = 1_000  # of a user
MAX_SOURCES = 100  # of an entry
MAX_RESOURCE_CHARACTERS = 300


class PolicyType(StrEnum):
    """Which entries are searched first."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Verdict(StrEnum):
    """What an entry says of the requests that it matches."""

    ALLOW = "Allow"
    DENY = "Deny"


_VERDICTS = {verdict.lower(): verdict for verdict in Verdict}


class Rule(NamedTuple):
    """An entry of a policy. Without `sources` it is for all addresses."""

    resource: Resource
    actions: tuple[Action, ...]
    sources: tuple[str, ...]
    verdict: Verdict

    @property
    def text(self) -> str:
        """Return the rule in words, for people."""
        sources = f" from {', '.join(self.sources)}" if self.sources else ""
        return f"{self.verdict} {', '.join(self.actions)} on {self.resource.text}{sources}"


@dataclass(frozen=True, slots=True)
class Policy:
    """The entries of one type, in the order in which they were given."""

    type: PolicyType
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Acl:
    """The policies of a user."""

    policies: tuple[Policy, ...] = ()

    @property
    def rules(self) -> int:
        """Return the number of entries."""
        return sum(len(policy.rules) for policy in self.policies)

    def rules_of(self, wanted: PolicyType) -> Iterator[Rule]:
        for policy in self.policies:
            if policy.type == wanted:
                yield from policy.rules

    def updated(self, given: Iterable[Policy]) -> Acl:
        """Return the ACL after a change: entries with an equal resource are replaced, others are added."""
        policies = list(self.policies)
        for policy in given:
            at = next((at for at, known in enumerate(policies) if known.type == policy.type), None)
            if at is None:
                policies.append(policy)
                continue
            rules = list(policies[at].rules)
            for rule in policy.rules:
                place = next((at for at, known in enumerate(rules) if known.resource == rule.resource), None)
                if place is None:
                    rules.append(rule)
                else:
                    rules[place] = rule
                    # One request may have given two of them, and the other would decide as before
                    rules[place + 1 :] = [one for one in rules[place + 1 :] if one.resource != rule.resource]
            policies[at] = Policy(policy.type, tuple(rules))
        return Acl(tuple(policies))

    def filtered(self, keeps: Callable[[Policy, Rule], bool]) -> Acl:
        """Return the ACL with the entries that `keeps` takes, without empty policies."""
        kept = (
            replace(policy, rules=tuple(rule for rule in policy.rules if keeps(policy, rule)))
            for policy in self.policies
        )
        return Acl(tuple(policy for policy in kept if policy.rules))


class PolicyError(FormatError):
    """Policies that a user cannot have. The text is Apache's, as far as Apache has one."""

    cause = "wrong policy"


# The wire form


def policy_type(text: object) -> PolicyType:
    """Return the type of a text. Any text but `Default` means Custom, as in Apache."""
    is_default = isinstance(text, str) and text.lower() == PolicyType.DEFAULT.lower()
    return PolicyType.DEFAULT if is_default else PolicyType.CUSTOM


def read_policies(value: object, *, is_strict: bool = False, have_types: bool = False) -> tuple[Policy, ...]:
    """Return the policies in the member `policies` of an AclInfo. Raises PolicyError.

    Apache takes an unknown policy type for Custom, leaves unknown actions out, cuts a resource `Topic:*x*` to
    `Topic:*`, and compares addresses as text. With `is_strict`, of requests and of the file, the first three
    are refused and addresses have one spelling: they would be a right that is given, or not withheld. With
    `have_types`, of the file, a policy without a type is refused too; in a request it is Custom."""
    if not isinstance(value, list) or not value:
        raise PolicyError("The policies is empty.")
    policies = []
    count = 0
    for given in value:
        entries = given.get("entries") if isinstance(given, dict) else None
        if not isinstance(entries, list) or not entries:
            raise PolicyError("The policies is empty.")
        count += len(entries)
        if count > MAX_ENTRIES:
            raise PolicyError(f"{count} entries, of at most {MAX_ENTRIES} of a user")
        kind = policy_type(given.get("policyType"))
        rules = tuple(map(_read_rule, entries))
        if is_strict:
            if have_types or given.get("policyType") is not None:
                _check_type(given.get("policyType"), kind)
            _check_known(entries)
            rules = tuple(rule._replace(sources=tuple(map(one_spelling, rule.sources))) for rule in rules)
        policies.append(Policy(kind, rules))
    return tuple(policies)


def _read_rule(value: object) -> Rule:
    entry: Mapping[str, object] = value if isinstance(value, dict) else {}
    text = entry.get("resource")
    is_text = isinstance(text, str) and len(text) <= MAX_RESOURCE_CHARACTERS and text.isprintable()
    resource = read_resource(str(text)) if is_text else None
    if resource is None:
        raise PolicyError("The resource is null.")
    actions = read_actions(_texts(entry.get("actions")))
    if not actions:
        raise PolicyError("The actions is empty.")
    if Action.ANY in actions:
        raise PolicyError("The actions can not be Any.")
    sources = _sources(entry.get("sourceIps"))
    if len(sources) > MAX_SOURCES:
        raise PolicyError(f"{len(sources)} source ips, of at most {MAX_SOURCES} of an entry")
    for source in sources:
        if not source.strip():
            raise PolicyError("The source ip is empty.")
        if not is_address_rule(source):
            raise PolicyError("The source ip is invalid.")
    decision = entry.get("decision")
    verdict = _VERDICTS.get(decision.lower()) if isinstance(decision, str) else None
    if verdict is None:
        raise PolicyError("The decision is null or illegal.")
    return Rule(resource, tuple(dict.fromkeys(actions)), sources, verdict)


def _check_type(given: object, kind: PolicyType) -> None:
    if not (isinstance(given, str) and given.lower() == kind.lower()):
        raise PolicyError(f"The policy type {text_excerpt(given)} is not known.")


def _check_known(entries: list[Mapping[str, object]]) -> None:
    """Raise PolicyError for what Apache reads as something else."""
    for entry in entries:
        actions = entry.get("actions")
        for action in actions if isinstance(actions, list) else []:
            if not (isinstance(action, str) and read_actions([action])):
                raise PolicyError(f"The action {text_excerpt(action)} is not known.")
        resource = str(entry.get("resource"))
        if ANYTHING in resource.rstrip(ANYTHING):
            raise PolicyError(f"The resource {text_excerpt(resource)} has a * that is not at its end.")


def _sources(value: object) -> tuple[str, ...]:
    """Return the addresses of an entry; none if the member is missing or null. One that is no text is
    refused: an entry without it would be for all addresses."""
    given = [] if value is None else value
    if not isinstance(given, list):
        raise PolicyError("The source ip is invalid.")
    texts = tuple(_texts(given))
    if len(texts) != len(given):
        raise PolicyError("The source ip is invalid.")
    return texts


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def acl_info(subject: str, acl: Acl) -> dict[str, object]:
    """Return Apache's AclInfo of an ACL, for JSON."""
    policies = [
        {"entries": [_entry(rule) for rule in policy.rules], "policyType": str(policy.type)}
        for policy in acl.policies
    ]
    return {"policies": policies, "subject": subject}


def _entry(rule: Rule) -> dict[str, object]:
    entry: dict[str, object] = {
        "actions": [str(action) for action in rule.actions],
        "decision": str(rule.verdict),
        "resource": rule.resource.text,
    }
    return entry | ({"sourceIps": list(rule.sources)} if rule.sources else {})
