"""A broker in controller mode among the others of its name: its id, the epochs of its log, its master."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker_store.protocol.controller_bodies import Assignment
from broker_store.replication.epochs import EpochHistory


class ControllerState(Protocol):
    """What is known of the controllers."""

    error: str | None  # why they give this broker no role now

    @property
    def leader(self) -> str | None:
        """The address of the one that leads; None while none is known."""


@dataclass(frozen=True)
class Membership:
    """Of one run of the store. `number` is 0 and `assignment` None while no controller has answered."""

    number: int
    history: EpochHistory
    assignment: Assignment | None
    on_cut: Callable[[int], None]  # the log has to be cut at this log offset
    on_other_set: Callable[[], None]  # the controller should know another sync state set
    on_notice: Callable[[], None]  # a notice came that the master has changed
    controller: ControllerState

    @property
    def is_known(self) -> bool:
        """True if a controller has said who the master is."""
        return self.number > 0 and self.assignment is not None
