"""The actor's side of parts of a run (`pipeline/common/run_parts.py` lists them): what each adds to an actor host."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from headrace.pipeline.control.messages import ControlMessage
from headrace.pipeline.roles.runtime import Host
from headrace.queues.ends import Inlet, Outlet
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.environments.remote_policy import DecisionClient
from headrace.stages.environments.stage import Audience
from headrace.stages.policy.protocol import ActingPolicy


class ActorPart:
    """One part of a run in an actor host. What a part does not override does nothing.

    Args:
        host: the actor host.
        request: for its environments.

    Attributes:
        oracle: decides in place of policies in the actor.
        audience: sees all that is played.
        make_group: makes the environments.
        make_policy: makes the acting policies.
        person: makes the brain of a person who plays.
    """

    outlets: ClassVar[tuple[str, ...]] = ()
    """The kinds of queues from the actor that are the part's; a queue's kind is its name before the first slash."""
    inlets: ClassVar[tuple[str, ...]] = ()
    """The kinds of queues to the actor that are the part's."""
    oracle: DecisionClient | None = None
    audience: Audience | None = None
    make_group: Callable[[], EnvironmentGroup] | None = None
    make_policy: Callable[[BehaviorSpec], ActingPolicy] | None = None
    person: Any = None

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        self.host = host
        self.request = request

    def receive(self, message: ControlMessage) -> None:
        """Receive a message of main, after the actor."""

    def open_outlet(self, outlet: Outlet[Any]) -> None:
        """Take the producing end of one of `outlets`."""

    def follow(self, inlet: Inlet[Any]) -> Coroutine[Any, Any, None]:
        """Listen to one of `inlets` until it ends."""
        raise NotImplementedError

    def before_report(self) -> None:
        """The host is about to report to main."""
