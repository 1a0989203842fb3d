"""Adam over one flat vector of parameters.

A network's parameters are one vector (`FlatParameters.values`), so the whole step is one operation on any device, and
its state is two vectors and a count: no optimizer object between us and what a checkpoint must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from stages.errors import NotFiniteError
from stages.policy.network.flat_parameters import write_named


class Adam:
    """Kingma & Ba (2015), "Adam: A Method for Stochastic Optimization", algorithm 1.

    Args:
        values: the parameters, changed in place.
        gradients: their gradients.
        epsilon: added to the root of the second moment.
        betas: decay of the first and of the second moment.
    """

    def __init__(
        self, values: Tensor, gradients: Tensor, epsilon: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self._betas = betas
        self._values = values
        self._gradients = gradients
        self._epsilon = epsilon
        self.steps = 0
        """Steps made."""
        self.first_moment = torch.zeros_like(values)
        self.second_moment = torch.zeros_like(values)
        self._count = torch.zeros((), device=values.device)

    def step(self, learning_rate: float) -> None:
        """Change the parameters by their gradients."""
        # One pass over all five vectors instead of seven operations: of networks that are larger than the processor's
        # cache, fetching them is what a step costs.
        self._count.fill_(self.steps)
        adam(
            [self._values],
            [self._gradients],
            [self.first_moment],
            [self.second_moment],
            [],
            [self._count],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=self._epsilon,
        )
        self.steps += 1

    def state_dict(self, named_views: Callable[[Tensor], Mapping[str, Tensor]]) -> dict[str, Any]:
        """Step count, and the moments by parameter name; copies, on the host.

        Args:
            named_views: views into a vector as long as the parameters, by name (`FlatParameters.named_views`).
        """
        moments = {
            moment: {name: view.cpu().numpy().copy() for name, view in named_views(vector).items()}
            for moment, vector in self._moments().items()
        }
        return {"steps": self.steps, **moments}

    def load_state_dict(
        self, named_views: Callable[[Tensor], Mapping[str, Tensor]], state: Mapping[str, Any], what: str = "optimizer"
    ) -> None:
        """Continue from `state_dict()`, which messages call `what`.

        Raises:
            StageError: naming the tensor that does not fit.
        """
        for name, moment in self._moments().items():
            write_named(named_views(moment), state[name], f"{what} {name}")
        self.steps = int(state["steps"])

    def snapshot(self) -> tuple[int, Tensor, Tensor]:
        """A copy of the state, for `restore`."""
        return self.steps, self.first_moment.clone(), self.second_moment.clone()

    def restore(self, snapshot: tuple[int, Tensor, Tensor]) -> None:
        """Go back to a snapshot."""
        self.steps = snapshot[0]
        self.first_moment.copy_(snapshot[1])
        self.second_moment.copy_(snapshot[2])

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Restore the parameters and this state if a `NotFiniteError` is raised within."""
        values, state = self._values.clone(), self.snapshot()
        try:
            yield
        except NotFiniteError:
            self._values.copy_(values)
            self.restore(state)
            raise

    def _moments(self) -> dict[str, Tensor]:
        return {"first_moment": self.first_moment, "second_moment": self.second_moment}


def clip_norms(gradients: Tensor, parts: Tensor, limit: float) -> Tensor:
    """Scale each part of gradients [n] in place so that its norm is at most `limit`, as torch's `clip_grad_norm_` does.

    Args:
        gradients: [n]
        parts: [k, n] 1 for the elements of the part, 0 for others; each element is in one part.
        limit: the largest norm of a part.

    Returns:
        [k] the parts' norms before.
    """
    norms = torch.mv(parts, gradients.square()).sqrt_()
    gradients.mul_(torch.mv(parts.t(), (limit / (norms + 1e-6)).clamp_(max=1.0)))
    return norms
