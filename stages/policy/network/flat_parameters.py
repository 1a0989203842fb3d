"""A torch module whose parameters form one flat vector, and whose gradients form another.

An optimizer step, a norm, a soft update or a copy is then one operation per vector instead of one per tensor. In small
networks, which most game agents have, dispatch dominates the cost, not arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.policy.design import check_tensors
from headrace.stages.policy.network.layers import host_copies

Module = TypeVar("Module", bound=nn.Module)


# In small networks the number of calls dominates the cost, not the arithmetic (docs/decisions/037).
class FlatVectors:
    """Parameters that are views into one flat vector; their gradients are views into another.

    Args:
        parameters: leaf tensors keyed by name, all on one device; they become views into `values`.

    Attributes:
        values: all parameters, concatenated.
        gradients: gradients of `values`, which backward accumulates; the caller must zero them.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self.values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])
        self.gradients = torch.zeros_like(self.values)
        views, gradients = self.named_views(self.values), self.named_views(self.gradients)
        for name, parameter in parameters.items():
            parameter.data, parameter.grad = views[name], gradients[name]

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
        pieces = torch.split(flat.detach(), [parameter.numel() for parameter in self.parameters.values()])
        named = zip(self.parameters.items(), pieces, strict=True)
        return {name: piece.view(parameter.shape) for (name, parameter), piece in named}


class FlatParameters(FlatVectors, Generic[Module]):
    """A module's parameters as flat vectors; the module's buffers stay unchanged.

    Args:
        module: the module to train; its parameters become views into `values`.
        device: the torch device that holds the parameters.
    """

    def __init__(self, module: Module, device: str | torch.device = "cpu") -> None:
        self.module: Module = module.to(device)
        super().__init__(dict(module.named_parameters()))


def seeded(random: np.random.Generator, make: Callable[[], Module]) -> Module:
    """Make a module whose initial weights depend only on `random`; torch's global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(2**63)))
        return make()


def write_named(targets: Mapping[str, Tensor], state: Mapping[str, Any], what: str) -> None:
    """Copy arrays into the tensors of the same names, after checking all of them.

    Raises:
        StageError: if a tensor is missing or unknown, or has the wrong shape; the message names it, and nothing is
            changed.
    """
    got = [(name, np.shape(array)) for name, array in state.items()]
    check_tensors(what, got, tuple((name, tuple(target.shape)) for name, target in targets.items()))
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(torch.from_numpy(np.array(state[name], np.float32)))
