"""May a user do that? The answer, with the rule that decides."""

from __future__ import annotations

from typing import NamedTuple

from broker_store.access.addresses import matches
from broker_store.access.denied import FAILED
from broker_store.access.policies import Acl, PolicyType, Rule, Verdict
from broker_store.access.resources import Action, Demand, Kind, Pattern
from broker_store.access.users import User

_ORDER_OF_PATTERNS = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


class Decision(NamedTuple):
    """`reason` is the remark of a refusal, empty if the demand is allowed. `rule` decided; it is None for a
    Super user, and if no rule matches."""

    is_allowed: bool
    reason: str = ""
    rule: Rule | None = None


def decide(user: User, acl: Acl | None, demand: Demand, address: str | None) -> Decision:
    """Return whether a user may do what is demanded, from an address (None: unknown)."""
    if user.is_disabled:
        return Decision(False, f"User:{user.name} is disabled.")
    if user.is_super:
        return Decision(True)
    if address is None and _depends_on_address(acl, demand):
        return Decision(False, FAILED)
    rule = deciding_rule(acl, demand, address)
    if rule is not None and rule.verdict == Verdict.ALLOW:
        return Decision(True, "", rule)
    why = "no matched policies" if rule is None else "the decision is deny"
    where = f"User:{user.name} has no permission to access {demand.resource.text:.300} from {address}"
    return Decision(False, f"{where}, {why}.", rule)


def deciding_rule(acl: Acl | None, demand: Demand, address: str | None) -> Rule | None:
    """Return the most specific of the rules that match, those of the Custom policy before all others; None
    if none matches."""
    if acl is None:
        return None
    for policy_type in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        found = [rule for rule in acl.rules_of(policy_type) if _is_match(rule, demand, address)]
        if found:
            return min(found, key=_order)
    return None


def _depends_on_address(acl: Acl | None, demand: Demand) -> bool:
    policies = () if acl is None else acl.policies
    return any(rule.sources and _is_about(rule, demand) for policy in policies for rule in policy.rules)


def _is_match(rule: Rule, demand: Demand, address: str | None) -> bool:
    if not _is_about(rule, demand):
        return False
    if not rule.sources:
        return True
    return address is not None and any(matches(source, address) for source in rule.sources)


def _is_about(rule: Rule, demand: Demand) -> bool:
    """Return True if a rule is for the resource and one of the actions of a demand."""
    if not rule.resource.covers(demand.resource):
        return False
    if Action.ALL in rule.actions or Action.ANY in demand.actions:
        return True
    return any(action in rule.actions for action in demand.actions)


def _order(rule: Rule) -> tuple[bool, int, int, bool]:
    """Return the place of a rule: a type before all types, the more specific name, Deny before Allow."""
    resource = rule.resource
    return (
        resource.kind == Kind.ANY,
        _ORDER_OF_PATTERNS[resource.pattern],
        -len(resource.name) if resource.pattern == Pattern.PREFIXED else 0,
        rule.verdict != Verdict.DENY,
    )
