"""A network with its optimizer: what a reward signal trains, checkpoints and restores as one thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic

import torch
from torch import Tensor

from stages.policy.network.flat import Flat, Module
from stages.trainer.adam import Adam


class TrainedNetwork(Generic[Module]):
    """Owns a module's parameters and their Adam.

    Args:
        module: what is trained.
        learning_rate: Adam's step size, constant.
        device: where it lives.
    """

    def __init__(self, module: Module, learning_rate: float, device: str) -> None:
        self._flat = Flat(module, device)
        self._adam = Adam(self._flat.values, self._flat.gradients)
        self._learning_rate = learning_rate

    @property
    def module(self) -> Module:
        """The module itself."""
        return self._flat.module

    @property
    def updates(self) -> int:
        """Gradient steps made."""
        return self._adam.steps

    def descend(self, loss: Tensor) -> bool:
        """One gradient step down a scalar loss; false, with nothing changed, if loss or gradients are not finite."""
        self._flat.gradients.zero_()
        torch.autograd.backward(loss)
        if not bool(torch.isfinite(loss) & torch.isfinite(self._flat.gradients).all()):
            return False
        self._adam.step(self._learning_rate)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Weights, and Adam's steps and moments, by parameter name; copies, on the host."""
        return {"weights": self._flat.state_dict(), **self._adam.state_dict(self._flat.named_views)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: naming the tensor that does not fit.
        """
        self._flat.load(state["weights"])
        self._adam.load_state_dict(self._flat.named_views, state)
