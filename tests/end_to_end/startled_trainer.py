"""A trainer and a network that hang or raise as `startled.py` says; apart from it, because they need torch."""

from __future__ import annotations

from typing import Any

from startled import come_to  # type: ignore[import-not-found]  # beside the YAML
from torch import Tensor, nn

from headrace.stages.trainer.ppo import PPOTrainer

come_to("import of the trainer")


class Learns(PPOTrainer):
    """Learns as PPO does."""

    def load_state_dict(self, state: Any) -> None:
        come_to("checkpoint")
        super().load_state_dict(state)


class Network(nn.Module):
    """A layer."""

    encoding_size = 4

    def __init__(self, observations: Any, settings: Any) -> None:
        super().__init__()
        come_to("network")
        self._layer = nn.Linear(3, 4)

    def forward(self, observations: tuple[Tensor, ...]) -> Tensor:
        return self._layer(observations[0])
