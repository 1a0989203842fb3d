"""The actor's account of its learning steps: which behaviours need credits, what they used, and which policies act.

The gate (`credit_gate`) knows caps alone; here is what it is asked with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.queues.specs import behavior_name
from headrace.stages.actor.credit_gate import CreditGate
from headrace.stages.agent import AgentProcessor
from headrace.stages.environments.stage import EnvironmentStage


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
        self._asked_for: tuple[str, ...] | None = None
        self._untold = False
        self.acting: dict[str, tuple[int, int]] = {}

    def adopt_behaviors(self) -> None:
        """Count for all behaviours that the environments have by now."""
        self._names = tuple(dict.fromkeys(behavior_name(i) for i in self._environment.specs))

    def renew(self, source: int) -> None:
        """Go on as another source: its credits are counted anew, and those of steps that are held are spent there."""
        self._gate.renew({name: int(self._processor.emitted(name)) for name in self._names})
        self._processor.renew(source)
        self.acting.clear()
        self._asked_for = None

    def missing(self, players: Iterable[str]) -> bool:
        """True if credits of some of these behaviours are used up, or came before the policy that they are for."""
        mappings, gate = self._environment.mappings, self._gate
        self._used = self._count_used()
        self._learners = learners = self._learning(players)
        return bool(gate.closed(self._used, learners)) or any(
            mappings.newest_version(name) < gate.needed_version(name) for name in learners
        )

    def bounded(self) -> bool:
        """True if the behaviours that decide now will have used up their credits some time."""
        return self._gate.bounds(self._learning(self.deciding()))

    def deciding(self) -> tuple[str, ...]:
        """Behaviours whose agents have open decisions."""
        return tuple(name for name in self._names if self._processor.open_agents(name))

    def look_ahead(self) -> None:
        """Ask for credits while some are left."""
        self._gate.look_ahead(self._used, self._learners, self._untold)
        self._untold = False

    def ask(self) -> None:
        """Ask for credits while standing still, once more if other behaviours learn than at the last request."""
        if self._learners != self._asked_for:
            self._asked_for = self._learners
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
        self._asked_for = None

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
                self._untold |= version > known.get(name, 0)
                self.acting[name] = (self._processor.emitted(name) + self._processor.pending(name), version)

    def _count_used(self) -> dict[str, int]:
        """Learning steps that were emitted or are held."""
        processor = self._processor
        return {name: int(processor.emitted(name) + processor.pending(name)) for name in self._names}

    def _learning(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of some behaviours that are learned from now: only these need credits and their newest policies."""
        return tuple(name for name in names if self._environment.mappings.learns(name))
