"""A torch module whose parameters form one flat vector, and whose gradients form another.

An optimizer step, a norm, a soft update or a copy is then one operation per vector instead of one per tensor. In small
networks, which most game agents have, dispatch dominates the cost, not arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.errors import StageError
from headrace.stages.policy.network.layers import host_copies

Module = TypeVar("Module", bound=nn.Module)


# In small networks the number of calls dominates the cost, not the arithmetic (docs/decisions/037).
class FlatVectors:
    """Named parameters that are views into one flat vector; their gradients are views into another.

    Args:
        shapes: the parameters' shapes, keyed by name.
        device: the torch device that holds the parameters.

    Attributes:
        parameters: leaf tensors keyed by name, views into `values`.
    """

    parameters: Mapping[str, Tensor]

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: str | torch.device) -> None:
        size = sum(map(prod, shapes.values()))
        self.values = torch.zeros(size, device=device)
        """All parameters, concatenated."""
        self.gradients = torch.zeros(size, device=device)
        """Gradients of `values`, which backward accumulates; the caller must zero them."""
        self._shapes = shapes

    def state_dict(self) -> dict[str, NDArray[np.float32]]:
        """Return host copies of all parameters, keyed by name."""
        return host_copies(self.parameters)

    def load(self, state: Mapping[str, Any]) -> None:
        """Load parameters, keyed by name.

        Raises:
            StageError: if a tensor is missing or unknown, or has the wrong shape; the message names it, and nothing is
                changed.
        """
        write_named(self.parameters, state, "weights")

    def named_views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views into a vector as long as `values`, such as Adam's moments, keyed by parameter name."""
        return split_named(flat, self._shapes)


class FlatParameters(FlatVectors, Generic[Module]):
    """A module's parameters as flat vectors; the module's buffers stay unchanged.

    Args:
        module: the module to train; its parameters become views into `values`.
        device: the torch device that holds the parameters.
    """

    def __init__(self, module: Module, device: str | torch.device = "cpu") -> None:
        self.module: Module = module.to(device)
        named = list(module.named_parameters())
        super().__init__({name: tuple(parameter.shape) for name, parameter in named}, device)
        views, gradients = self.named_views(self.values), self.named_views(self.gradients)
        with torch.no_grad():
            for name, parameter in named:
                views[name].copy_(parameter)
                parameter.data = views[name]
                parameter.grad = gradients[name]
        self.parameters = dict(named)


def seeded(random: np.random.Generator, make: Callable[[], Module]) -> Module:
    """Make a module whose initial weights depend only on `random`; torch's global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(2**63)))
        return make()


def split_named(flat: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Split a vector into consecutive views, one per shape."""
    pieces = torch.split(flat.detach(), [prod(shape) for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def write_named(targets: Mapping[str, Tensor], state: Mapping[str, Any], what: str) -> None:
    """Copy arrays into the tensors of the same names, after checking all of them.

    Raises:
        StageError: if a tensor is missing or unknown, or has the wrong shape; the message names it, and nothing is
            changed.
    """
    unknown = sorted(set(state) - set(targets))
    if unknown:
        raise StageError(f"{what}: tensor {unknown[0]!r} is not part of this network, which has {sorted(targets)}")
    for name, target in targets.items():
        if name not in state:
            raise StageError(f"{what}: tensor {name!r} is missing; expected shape {tuple(target.shape)}")
        got = np.shape(state[name])
        if got != tuple(target.shape):
            raise StageError(
                f"{what}: tensor {name!r}: expected shape {tuple(target.shape)}, got {got}; "
                "was it saved with other network_settings or another environment?"
            )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(torch.from_numpy(np.array(state[name], np.float32)))
