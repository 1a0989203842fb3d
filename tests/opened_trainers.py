"""Built-in trainers that show what their subclasses work with: for tests of the steps between rows and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer_samples import context_of

from headrace.queues.specs import BehaviorSpec
from headrace.stages.trainer.poca import POCATrainer
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.rewards.signal import RewardSignal
from headrace.stages.trainer.sac import SACTrainer


class OpenedOnPolicy:
    """What a subclass of `OnPolicyTrainer` works with."""

    _buffer: Any
    _critic: Any
    _intake: Any
    _network: Any
    _prepare: Any
    _signals: Any
    _update: Any

    @property
    def buffer(self) -> Any:
        return self._buffer

    @property
    def critic(self) -> Any:
        return self._critic

    @critic.setter
    def critic(self, critic: Any) -> None:
        self._critic = critic

    @property
    def layout(self) -> Any:
        return self._intake.layout

    @property
    def network(self) -> Any:
        return self._network

    @property
    def signals(self) -> Any:
        return self._signals

    @property
    def update(self) -> Any:
        return self._update

    def signal(self, name: str) -> Any:
        return dict(zip(self._signals.names, self._signals.signals, strict=True))[name]

    def prepare(self) -> Any:
        """Evaluate what the buffer holds, as `learn` does before its update."""
        return self._prepare()


class OpenedPPO(PPOTrainer, OpenedOnPolicy):
    pass


class OpenedPOCA(POCATrainer, OpenedOnPolicy):
    pass


class OpenedSAC(SACTrainer):
    """What `SACTrainer` learns with."""

    @property
    def memory(self) -> Any:
        return self._memory

    @property
    def update(self) -> Any:
        return self._update

    def signal(self, name: str) -> RewardSignal:
        return next(signal for signal in self._signals.signals if signal.name == name)


def opened_trainer_of(
    kind: str, spec: BehaviorSpec, seed: int = 0, statistics: Any = None, folder: Path | None = None, **settings: Any
) -> Any:
    """A small trainer, as `trainer_of` makes it."""
    classes: dict[str, Any] = {"ppo": OpenedPPO, "poca": OpenedPOCA, "sac": OpenedSAC}
    return classes[kind](context_of(kind, spec, seed, statistics, folder, **settings))
