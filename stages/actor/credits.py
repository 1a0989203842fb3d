"""The actor's side of flow control: the gate holds the actor's caps and requests credits; the account counts steps.

The account knows which behaviours need credits, how many they have used, and which policies act. The gate knows only
caps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from headrace.queues.messages import FREE
from headrace.queues.specs import behavior_name
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.agent import AgentProcessor


class CreditGate:
    """Holds the caps on learning steps, keyed by behaviour name. The host sends its requests and passes in grants.

    In all methods, `used` counts the steps emitted or held so far, keyed by behaviour name, and `alive` names the
    behaviours that currently have agents in this actor. Only these behaviours can close the gate.

    Args:
        request: called with (request number, `used`, behaviours that need credits, behaviours whose credits are
            returned).

    Attributes:
        versions: the oldest policy version that may spend the last grant's credits, keyed by behaviour name; without a
            grant, any version.
    """

    def __init__(self, request: Callable[[int, Mapping[str, int], Sequence[str], Sequence[str]], None]) -> None:
        self._request = request
        self._caps: dict[str, int] = {}
        self._request_at: dict[str, int] = {}
        self.versions: dict[str, int] = {}
        self._given_back_at: dict[str, int] = {}
        self._number = 0
        self._last_request = 0
        self._requested = False

    def closed(self, used: Mapping[str, int], newest: Mapping[str, int]) -> list[str]:
        """Return the behaviours that have used up their caps, or whose grant's policy has not arrived yet.

        Args:
            used: see the class docstring.
            newest: the newest version of each behaviour's policy, keyed by the names of the behaviours that have agents
                in this actor.
        """
        return [
            name
            for name, version in newest.items()
            if used.get(name, 0) >= self._caps.get(name, 0) or version < self.versions.get(name, 0)
        ]

    def bounds(self, alive: Collection[str]) -> bool:
        """Return True if the gate will eventually close again; a behaviour without a cap never closes it."""
        return any(self._caps.get(name, 0) < FREE for name in alive)

    def request_ahead(self, used: Mapping[str, int], alive: Collection[str], news: bool = False) -> None:
        """Request more credits early enough that, in steady state, they arrive before the current ones run out.

        Unused credits of behaviours that no longer have agents in this actor are returned, because other actors may
        need them.

        Args:
            used: see the class docstring.
            alive: see the class docstring.
            news: whether to send a request even if no credits are needed, because this actor now uses a newer policy
                and other actors may be waiting for the ledger to know that.
        """
        if len(alive) < len(self._caps):
            idle = [name for name, cap in self._caps.items() if name not in alive and cap > used.get(name, 0)]
            if idle:
                self._send(used, (), idle)
        low = []
        if not self._requested:
            low = [name for name in alive if used.get(name, 0) >= self._request_at.get(name, 0)]
        if low or news:
            self._requested |= bool(low)
            self._send(used, low, ())

    # A waiting actor holds no steps; otherwise, all other actors might wait for them (docs/decisions/020).
    def wait(self, used: Mapping[str, int], alive: Collection[str]) -> None:
        """Request credits for a waiting actor, which has emitted all its steps, and return its unused credits."""
        self._requested = True
        # This empties every cap, so all behaviours that have agents here need credits, not only those that were out of
        # them.
        self._send(used, sorted(alive), list(self._caps))

    def start_again(self, used: Mapping[str, int]) -> None:
        """Return all unused credits, and start again as a new source without credits."""
        self._send(used, (), list(self._caps))
        for table in (self._caps, self._request_at, self.versions, self._given_back_at):
            table.clear()
        self._requested = False

    def granted(self, number: int, caps: Mapping[str, int], versions: Mapping[str, int]) -> None:
        """Apply the ledger's answer to request number `number`."""
        if number == self._last_request:
            self._requested = False
        for name, cap in caps.items():
            if number >= self._given_back_at.get(name, 0):
                self._request_at[name] = (self._caps.get(name, 0) + cap) // 2
                self._caps[name] = cap
                self.versions[name] = versions[name]

    def _send(self, used: Mapping[str, int], wants: Sequence[str], gives_back: Sequence[str]) -> None:
        """Request credits for the behaviours in `wants`, and return the unused credits of those in `gives_back`."""
        self._number += 1
        for name in gives_back:
            self._caps[name] = self._request_at[name] = used.get(name, 0)
            self._given_back_at[name] = self._number
        self._request(self._number, used, wants, gives_back)
        if wants:
            self._last_request = self._number
        for name in wants:
            # The ledger may grant credits after the gate has returned them; only requested behaviours can return
            # credits.
            self._caps.setdefault(name, 0)


class CreditAccount:
    """Counts an actor's learning steps against the gate's caps, separately for each behaviour name.

    Args:
        environment: the environment stage.
        processor: the agent processor.
        gate: flow control.

    Attributes:
        names: the behaviours that are counted.
        acting: per behaviour name, (steps, version): all learning steps after the first `steps` come from that version
            or a newer one.
        unready: the behaviours that had no credits or no policy when `missing` was last called.
        turns: number of the turn in which the last decisions were made.
    """

    def __init__(self, environment: EnvironmentStage, processor: AgentProcessor, gate: CreditGate) -> None:
        self._environment = environment
        self._processor = processor
        self._gate = gate
        self.names: tuple[str, ...] = ()
        self._used: dict[str, int] = {}
        self._learners: tuple[str, ...] = ()
        self._requested_for: tuple[str, ...] | None = None
        self._unreported = False
        self.turns = 0
        self.acting: dict[str, tuple[int, int]] = {}
        self.unready: list[str] = []

    def adopt_behaviors(self) -> None:
        """Start counting for behaviours that the environments have announced since the last call."""
        self.names = tuple(dict.fromkeys(behavior_name(i) for i in self._environment.specs))

    def begin_source(self, source: int) -> None:
        """Continue as a new source, whose credits are counted from 0.

        These credits also pay for the steps that the actor still holds.
        """
        self._gate.start_again({name: self._processor.emitted(name) for name in self.names})
        self._processor.begin_source(source)
        self.acting.clear()
        self._requested_for = None

    # Steps that complete an old turn's decisions would exceed all caps, so they do not count (docs/decisions/021).
    def end_turn(self) -> None:
        """Exclude the previous turn's decisions from learning, because another team's turn has begun.

        The gate does not hold back behaviours that have stopped learning, and returns their credits. If the steps that
        they complete later still counted as learning steps, their number would exceed all caps, and by more with each
        turn. The actor calls this method before each tick's decisions, and completes the tick's steps afterwards, so
        the decisions that are open now belong to the previous turn.
        """
        mappings = self._environment.mappings
        self.turns = mappings.turns
        for behavior_id in filter(mappings.has_self_play, self._environment.specs):
            self._processor.end_learning(behavior_id)

    def missing(self, players: Iterable[str]) -> bool:
        """Return True if one of these behaviours is out of credits, or has a grant whose policy has not arrived yet."""
        self._used = {name: self._processor.used(name) for name in self.names}
        newest = self._environment.mappings.newest_versions(players)
        self._learners = tuple(newest)
        self.unready = self._gate.closed(self._used, newest)
        return bool(self.unready)

    def bounded(self) -> bool:
        """Return True if the behaviours that decide now will eventually use up their credits."""
        return self._gate.bounds(self._environment.mappings.newest_versions(self.deciding()))

    def deciding(self) -> tuple[str, ...]:
        """Return the names of the behaviours whose agents have open decisions."""
        return tuple(name for name in self.names if self._processor.open_agents(name))

    def request_ahead(self) -> None:
        """Request more credits before the current ones run out."""
        self._gate.request_ahead(self._used, self._learners, self._unreported)
        self._unreported = False

    def ask(self, again: bool = False) -> None:
        """Request credits while waiting.

        Args:
            again: whether to send the request even if the learning behaviours are those of the last request.
        """
        if again or self._learners != self._requested_for:
            self._requested_for = self._learners
            self._gate.wait({name: self._processor.used(name) for name in self.names}, self._learners)

    def ask_for(self, players: Iterable[str]) -> None:
        """Request credits for those of the given behaviours that are learning."""
        self._learners = tuple(self._environment.mappings.newest_versions(players))
        self.ask(again=True)

    def give_back(self) -> None:
        """Return unused credits, for use by other actors."""
        self._learners = ()
        self.ask()

    def forget_request(self) -> None:
        """Forget the last request, so the next one is sent even if nothing has changed."""
        self._requested_for = None

    def note_versions(self, versions: Mapping[str, int], granted: bool = False) -> None:
        """Record which versions made the open decisions and which will make the next ones.

        Args:
            versions: the versions of the behaviours' policies.
            granted: whether the last grants are fresh, so the ledger knows the versions that they named.
        """
        for name, version in versions.items():
            if version > self.acting.get(name, (0, -1))[1]:
                self._unreported |= version > (self._gate.versions.get(name, 0) if granted else 0)
                self.acting[name] = (self._processor.used(name), version)
