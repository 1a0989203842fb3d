"""The actor's side of flow control: the gate has its caps and requests more, the account counts steps against them.

The account knows which behaviours need credits, what they used, and which policies act; the gate knows caps alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from headrace.queues.messages import FREE
from headrace.queues.specs import behavior_name
from headrace.stages.agent import AgentProcessor
from headrace.stages.environments.stage import EnvironmentStage


class CreditGate:
    """Caps on learning steps by behaviour name. Pure: the host sends its requests and passes it the grants.

    Everywhere, `used` counts the steps emitted or held so far, by behaviour name, and `alive` names the behaviours that
    have agents here now: only these can close the gate.

    Args:
        request: called with (number of the request, used, wanted behaviours, behaviours whose credits are returned).
    """

    def __init__(self, request: Callable[[int, Mapping[str, int], Sequence[str], Sequence[str]], None]) -> None:
        self._request = request
        self._caps: dict[str, int] = {}
        self._request_at: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._given_back_at: dict[str, int] = {}
        self._number = 0
        self._last_request = 0
        self._requested = False

    def closed(self, used: Mapping[str, int], alive: Collection[str]) -> list[str]:
        """Behaviours that have used up their caps."""
        return [name for name in alive if used.get(name, 0) >= self._caps.get(name, 0)]

    def bounds(self, alive: Collection[str]) -> bool:
        """True if the gate will close again some time; behaviours may be without a cap."""
        return any(self._caps.get(name, 0) < FREE for name in alive)

    def look_ahead(self, used: Mapping[str, int], alive: Collection[str], news: bool = False) -> None:
        """Ask for more while some are left, so that in the steady state the answer comes before they are used up.

        Credits of behaviours that have no agents here any more are returned, as other actors may need them.

        Args:
            used: see the class.
            alive: see the class.
            news: tell the ledger in any case, as this actor acts by a newer policy: others may wait for that.
        """
        if len(alive) < len(self._caps):
            idle = [name for name, cap in self._caps.items() if name not in alive and cap > used.get(name, 0)]
            if idle:
                self._give_back(used, (), idle)
        low = (
            [name for name in alive if used.get(name, 0) >= self._request_at.get(name, 0)]
            if not self._requested
            else []
        )
        if low or news:
            self._requested |= bool(low)
            self._number += 1
            self._ask(used, low, ())

    # An actor that waits holds nothing, or all others could wait for what it holds (docs/decisions/020).
    def wait(self, used: Mapping[str, int], alive: Collection[str]) -> None:
        """Request credits for an actor that stands still: it has emitted all it held, and returns the unused ones."""
        self._requested = True
        # Nothing is left of any cap, so all behaviours that have agents here are wanted, not only the closed ones.
        self._give_back(used, sorted(alive), list(self._caps))

    def renew(self, used: Mapping[str, int]) -> None:
        """Give back all that is left, and begin without any credits, as another source."""
        self._give_back(used, (), list(self._caps))
        for table in (self._caps, self._request_at, self._versions, self._given_back_at):
            table.clear()
        self._requested = False

    def granted(self, number: int, caps: Mapping[str, int], versions: Mapping[str, int]) -> None:
        """Apply the ledger's answer to request `number`."""
        if number == self._last_request:
            self._requested = False
        for name, cap in caps.items():
            if number >= self._given_back_at.get(name, 0):
                self._request_at[name] = (self._caps.get(name, 0) + cap) // 2
                self._caps[name] = cap
                self._versions[name] = versions[name]

    def needed_version(self, name: str) -> int:
        """The oldest policy version that may use the last grant."""
        return self._versions.get(name, 0)

    def _give_back(self, used: Mapping[str, int], wants: Sequence[str], names: Sequence[str]) -> None:
        self._number += 1
        for name in names:
            self._caps[name] = self._request_at[name] = used.get(name, 0)
            self._given_back_at[name] = self._number
        self._ask(used, wants, names)

    def _ask(self, used: Mapping[str, int], wants: Sequence[str], gives_back: Sequence[str]) -> None:
        self._request(self._number, used, wants, gives_back)
        if wants:
            self._last_request = self._number
        for name in wants:
            # Requested credits may be granted after they were returned, so they can be returned from now on.
            self._caps.setdefault(name, 0)


class CreditAccount:
    """Counts an actor's learning steps against the gate's caps, by behaviour name.

    Args:
        environment: the environment stage.
        processor: the agent processor.
        gate: flow control.

    Attributes:
        acting: (steps, version) by name: a behaviour's learning steps after so many are by that version or newer ones.
    """

    def __init__(self, environment: EnvironmentStage, processor: AgentProcessor, gate: CreditGate) -> None:
        self._environment = environment
        self._processor = processor
        self._gate = gate
        self._names: tuple[str, ...] = ()
        self._used: dict[str, int] = {}
        self._learners: tuple[str, ...] = ()
        self._requested_for: tuple[str, ...] | None = None
        self._unreported = False
        self._turns = 0
        """The turn of the last decisions."""
        self.acting: dict[str, tuple[int, int]] = {}

    def adopt_behaviors(self) -> None:
        """Count for all behaviours that the environments have by now."""
        self._names = tuple(dict.fromkeys(behavior_name(i) for i in self._environment.specs))

    def renew(self, source: int) -> None:
        """Go on as another source: its credits are counted anew, and those of steps that are held are spent there."""
        self._gate.renew({name: int(self._processor.emitted(name)) for name in self._names})
        self._processor.renew(source)
        self.acting.clear()
        self._requested_for = None

    # Decisions open at the end of a turn are beyond all caps, so their steps are a ghost's (docs/decisions/021).
    def end_turn(self) -> None:
        """End learning from the decisions of the turn before, if another team's turn has begun.

        The gate does not hold back behaviours that learn no more, and returns their credits: steps that they then
        completed as learners would be beyond all caps, more of them with each turn. Each tick's decisions are taken
        after this, and its steps are completed after it: decisions open now are those of the turn before.
        """
        mappings = self._environment.mappings
        if self._turns != mappings.turns:
            self._turns = mappings.turns
            for behavior_id in filter(mappings.has_self_play, self._environment.specs):
                self._processor.end_learning(behavior_id)

    def missing(self, players: Iterable[str]) -> bool:
        """True if credits of some of these behaviours are used up, or came before the policy that they are for."""
        mappings, gate = self._environment.mappings, self._gate
        self._used = self._count_used()
        self._learners = learners = self._learning(players)
        return bool(gate.closed(self._used, learners)) or any(
            mappings.newest_version(name) < gate.needed_version(name) for name in learners
        )

    def lacking(self) -> list[str]:
        """Behaviours that `missing` has found to be missing."""
        mappings, gate = self._environment.mappings, self._gate
        closed = gate.closed(self._used, self._learners)
        return [
            name
            for name in self._learners
            if name in closed or mappings.newest_version(name) < gate.needed_version(name)
        ]

    def bounded(self) -> bool:
        """True if the behaviours that decide now will have used up their credits some time."""
        return self._gate.bounds(self._learning(self.deciding()))

    def deciding(self) -> tuple[str, ...]:
        """Behaviours whose agents have open decisions."""
        return tuple(name for name in self._names if self._processor.open_agents(name))

    def look_ahead(self) -> None:
        """Ask for credits while some are left."""
        self._gate.look_ahead(self._used, self._learners, self._unreported)
        self._unreported = False

    def ask(self) -> None:
        """Ask for credits while standing still, once more if other behaviours learn than at the last request."""
        if self._learners != self._requested_for:
            self._requested_for = self._learners
            self._gate.wait(self._count_used(), self._learners)

    def ask_anew(self) -> None:
        """Ask once more, whatever was asked for last."""
        self.forget_request()
        self.ask()

    def ask_for(self, players: Iterable[str]) -> None:
        """Ask anew for those of these behaviours that are learned from."""
        self._learners = self._learning(players)
        self.ask_anew()

    def give_back(self) -> None:
        """Leave what is left to other actors."""
        self._learners = ()
        self.ask()

    def forget_request(self) -> None:
        """Let the next request be made, whatever it is for."""
        self._requested_for = None

    def newest_versions(self) -> dict[str, int]:
        """The versions by which the behaviours' learners act."""
        return {name: self._environment.mappings.newest_version(name) for name in self._names}

    def needed_versions(self) -> dict[str, int]:
        """The oldest versions that may use the last grants."""
        return {name: self._gate.needed_version(name) for name in self._names}

    def note_versions(self, versions: Mapping[str, int], known: Mapping[str, int]) -> None:
        """Note which versions have made all open decisions and will make those that follow; the ledger knows some."""
        for name, version in versions.items():
            if version > self.acting.get(name, (0, -1))[1]:
                self._unreported |= version > known.get(name, 0)
                self.acting[name] = (self._processor.emitted(name) + self._processor.pending(name), version)

    def _count_used(self) -> dict[str, int]:
        """Learning steps that were emitted or are held."""
        processor = self._processor
        return {name: int(processor.emitted(name) + processor.pending(name)) for name in self._names}

    def _learning(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of some behaviours that are learned from now: only these need credits and their newest policies."""
        return tuple(name for name in names if self._environment.mappings.learns(name))
