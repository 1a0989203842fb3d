"""A trainer that may do what it should not; apart from `misbehaving.py`, as neither main nor actors need torch."""

from __future__ import annotations

import time
from typing import Any

from misbehaving import HAPPENED, MOMENT, SAVING, Fault, spoil  # type: ignore[import-not-found]  # beside the YAML

from headrace.queues.messages import PolicyUpdate
from headrace.stages.trainer.ppo import PPOTrainer


class Learns(PPOTrainer):
    """Learns as PPO does."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._fault = Fault("trainer")
        self._spoilt = ""
        self._fault.strike("start")
        super().__init__(*arguments, **named)

    def learn(self) -> int:
        self._spoilt = self._fault.strike("item")
        return super().learn()

    def policy(self) -> PolicyUpdate:
        policy = super().policy()
        return spoil(policy, self._spoilt)

    def state_dict(self) -> dict[str, Any]:
        SAVING.touch()
        spoilt = self._fault.strike("checkpoint")
        if self.step >= self.context.settings.max_steps:
            spoilt = self._fault.strike("end")
        deadline = time.monotonic() + 3.0
        while MOMENT == "checkpoint" and not HAPPENED.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        SAVING.unlink(missing_ok=True)
        state = super().state_dict()
        return {**state, "step": {1, 2}} if spoilt == "wrong output" else state
