"""The interface of networks with an actor and a critic, for all trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.network.products import HiddenProducts


class TrainedActor(Protocol):
    """An actor, and other parts that are trained with it.

    All parameters are views into one flat vector, and their gradients are views into another. An optimizer step, a norm
    or a copy is therefore one operation.
    """

    @property
    def values(self) -> Tensor:
        """All parameters, concatenated."""
        ...

    @property
    def gradients(self) -> Tensor:
        """Gradients of `values`, which backward accumulates; the caller must zero them."""
        ...

    @property
    def acting(self) -> Tensor:
        """[len(values)] mask: 1 for the values that actions depend on, 0 for all others."""
        ...

    @property
    def parts(self) -> Tensor:
        """[2, len(values)] masks: the actor's values, then the other parts'; a single row if all parts share a body."""
        ...

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Leaf tensors keyed by name, views into `values`."""
        ...

    @property
    def log_sigma(self) -> Tensor | None:
        """[C] log standard deviation of continuous actions, shared by all states; None if it depends on the state."""
        ...

    @property
    def squashed(self) -> bool:
        """Whether continuous actions are the tanh of a draw from the heads' Gaussian."""
        ...

    @property
    def acting_views(self) -> Mapping[str, Tensor]:
        """Views of the actor's parameters, without the normaliser's, keyed by their names in `PolicyUpdate.layout`."""
        ...

    def acting_tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return host copies of the `acting_views`."""
        ...

    def load_acting(self, tensors: Mapping[str, Any]) -> None:
        """Load only the acting part, as returned by `acting_tensors`; the normaliser's tensors are ignored.

        Raises:
            StageError: if a tensor is missing or unknown, or has the wrong shape; the message names it, and nothing is
                changed.
        """
        ...

    def state_dict(self) -> dict[str, NDArray[np.float32]]:
        """Return host copies of all parameters, keyed by name."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Load parameters, keyed by name.

        Raises:
            StageError: if a tensor is missing or unknown, or has the wrong shape; the message names it, and nothing is
                changed.
        """
        ...

    def named_views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views into a vector as long as `values`, such as Adam's moments, keyed by parameter name."""
        ...


class Perceptrons(Protocol):
    """Parallel towers of equal hidden layers, and their heads, for code that computes gradients without autograd.

    The towers are an actor, an actor and a critic, or a single tower with both heads.
    """

    activation: str
    """Name of the activation function."""
    layers: int
    """Number of hidden layers."""
    products: HiddenProducts
    """Computes the hidden layers' matmuls."""

    @property
    def gradients(self) -> Tensor:
        """The gradients of all parameters, concatenated; see `TrainedActor`."""
        ...

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Leaf tensors or views, keyed by name.

        `body.<layer>.weight` [T, in, out] and `.bias` [T, 1, out] for T towers; `action.weight` [in, out] and `.bias`
        [out]; with a critic also `value.weight` and `value.bias`; with continuous actions `log_sigma` [C].
        """
        ...

    def named_views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views into a vector as long as `gradients`, with the names and shapes of `parameters`."""
        ...


class ActorCriticNetwork(TrainedActor, Protocol):
    """An actor, and a critic with one value head per reward signal.

    Axis letters: B rows, in B / L sequences of length L (`Inputs`); H action head outputs; S reward signals; m memory
    size.
    """

    def __call__(self, inputs: Inputs, critic_memories: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run both the actor and the critic.

        Args:
            inputs: B rows; `inputs.memories` contains the actor's memories.
            critic_memories: [B / L, m] the critic's memories before each sequence's first row; None for zeros. Ignored
                by a critic that shares the actor's body, and so its memories.

        Returns:
            Action head outputs [B, H] (means, then the logits of each branch) and values [B, S].
        """
        ...

    def heads(self, inputs: Inputs) -> Tensor:
        """Run only the actor, with the actor's memories; return the action head outputs [B, H] for B rows."""
        ...

    def evaluate(self, inputs: Inputs, /) -> tuple[Tensor, Tensor | None]:
        """Run only the critic.

        Args:
            inputs: B rows; `inputs.memories` contains the critic's memories, or the actor's if they share a body.

        Returns:
            Values [B, S], and the critic's memories [B / L, m] after each sequence's last row (None without memory).
        """
        ...
