"""Adam over one flat vector of parameters.

A network's parameters form one vector (`FlatParameters.values`), so a step is one operation on any device. The
optimizer's state is two vectors and a step count, which is exactly what a checkpoint must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.network.actor_critic import TrainedActor
from headrace.stages.policy.network.flat_parameters import write_named
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.policy.network.layers import Inputs, host_copies
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas


class Adam:
    """The Adam optimizer: Kingma & Ba (2015), "Adam: A Method for Stochastic Optimization", algorithm 1.

    Args:
        values: the parameters, changed in place.
        gradients: their gradients.
        epsilon: added to the square root of the second moment.
        betas: decay rates of the first and the second moment.
    """

    def __init__(
        self, values: Tensor, gradients: Tensor, epsilon: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self._betas = betas
        self._values = values
        self._gradients = gradients
        self._epsilon = epsilon
        self.steps = 0
        """Number of steps taken."""
        self.first_moment = torch.zeros_like(values)
        self.second_moment = torch.zeros_like(values)
        self._count = torch.zeros((), device=values.device)

    def step(self, learning_rate: float | Tensor) -> None:
        """Update the parameters from their gradients.

        If the learning rate is a scalar tensor, everything runs on the device, so the step can be captured as a CUDA
        graph. The caller must then update `steps`.
        """
        # One pass over all five vectors instead of seven operations: for networks that exceed the processor's cache,
        # memory access dominates a step. The operator is called directly: for small networks, going through torch.optim
        # takes four times as long.
        if isinstance(learning_rate, Tensor):
            self._count.add_(1.0)
        else:
            self.steps += 1
            self._count.fill_(self.steps)
        torch._fused_adam_(
            [self._values],
            [self._gradients],
            [self.first_moment],
            [self.second_moment],
            [],
            [self._count],
            lr=learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self, named_views: Callable[[Tensor], Mapping[str, Tensor]]) -> dict[str, Any]:
        """Return the step count, and host copies of the moments, keyed by parameter name.

        Args:
            named_views: splits a vector of the same length as the parameters into views, keyed by name
                (`FlatParameters.named_views`).
        """
        moments = {moment: host_copies(named_views(vector)) for moment, vector in self._moments().items()}
        return {"steps": self.steps, **moments}

    def load_state_dict(
        self, named_views: Callable[[Tensor], Mapping[str, Tensor]], state: Mapping[str, Any], what: str = "optimizer"
    ) -> None:
        """Restore the state from `state_dict()`; error messages use the name `what` for the optimizer.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        for name, moment in self._moments().items():
            write_named(named_views(moment), state[name], f"{what} {name}")
        self._go_on_from(int(state["steps"]))

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Restore the parameters and this optimizer's state if a `NotFiniteError` is raised in the `with` block."""
        changing = (self._values, self.first_moment, self.second_moment)
        steps, copies = self.steps, [vector.clone() for vector in changing]
        try:
            yield
        except NotFiniteError:
            for vector, copy in zip(changing, copies, strict=True):
                vector.copy_(copy)
            self._go_on_from(steps)
            raise

    def _go_on_from(self, steps: int) -> None:
        self.steps = steps
        self._count.fill_(steps)

    def _moments(self) -> dict[str, Tensor]:
        return {"first_moment": self.first_moment, "second_moment": self.second_moment}


class NetworkUpdate:
    """Owns a network and the optimizer that changes its weights.

    Args:
        network: the network to train.
        adam: its optimizer.
        replicas: the replicas that make the same update, each computing its part of the rows.
    """

    def __init__(self, network: TrainedActor, adam: Adam, replicas: Replicas = SINGLE_TRAINER) -> None:
        self.network: Any = network
        self.adam = adam
        self.replicas = replicas

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's step count, and its moments keyed by parameter name."""
        return self.adam.state_dict(self.network.named_views)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        self.adam.load_state_dict(self.network.named_views, state)

    def heads(self, inputs: Inputs) -> Tensor:
        """Return the actor's head outputs [B, H]."""
        heads: Tensor = self.network.heads(inputs)
        return heads


def not_finite(names: Sequence[str], losses: NDArray[np.float32], lower: str) -> str:
    """Describe which losses [k, len(names)] are not finite; if all losses are finite, blame the weights.

    Args:
        names: the names of the losses.
        losses: the losses of k minibatches, from the update that is undone.
        lower: the setting that may fix the problem if it is lowered.
    """
    restored = "the weights from before the update are kept"
    bad = np.argwhere(~np.isfinite(losses))
    if not len(bad):
        return f"the last minibatch made some weights NaN or infinite; {restored}"
    row, column = (int(i) for i in bad[0])
    return (
        f"the {names[column]} of minibatch {row + 1} of {len(losses)} is {losses[row, column]}; "
        f"{restored}. A lower {lower} or smaller rewards often help"
    )


# With a shared norm, a large value loss would leave little of the actor's gradient (docs/decisions/036).
class GradientParts:
    """Clips the norms of a gradient's parts separately.

    Args:
        gradients: [n] the full gradient; scaled in place.
        parts: [k, n] for each part, 1 for the elements in it, else 0; each element is in exactly one part.
        together: whether to clip all parts by their common norm instead.
        use_kernels: whether compiled code may be used if it is installed.
    """

    def __init__(self, gradients: Tensor, parts: Tensor, together: bool = False, *, use_kernels: bool = True) -> None:
        parts = torch.ones_like(parts[:1]) if together else parts
        self._gradients, self._parts = gradients, parts
        # For small networks, the number of calls dominates. For large ones, multiplying by masks would read every
        # element.
        self._runs: list[list[NDArray[Any]]] | None = None
        self._stretches: NDArray[np.int64] | None = None
        """[k, 3] first element, end and part number of each run of elements; None if clipping is not compiled."""
        if gradients.device.type == "cpu":
            # The first element and the end [m, 2] of each part's runs of elements.
            edges = [np.flatnonzero(np.diff(part.numpy(), prepend=0, append=0)).reshape(-1, 2) for part in parts]
            self._runs = [[gradients.numpy()[first:end] for first, end in of_part] for of_part in edges]
            if use_kernels and compiled.kernels is not None and gradients.dtype == torch.float32:
                stretches = [(first, end, at) for at, of_part in enumerate(edges) for first, end in of_part]
                self._stretches = np.array(stretches, np.int64)

    def clip(self, limit: float) -> Tensor:
        """Scale each part in place so that its norm is at most `limit`, like torch's `clip_grad_norm_`.

        Returns:
            [k] the parts' norms before clipping.
        """
        if self._runs is None:
            norms = torch.mv(self._parts, self._gradients.square()).sqrt_()
            self._gradients.mul_(torch.mv(self._parts.t(), (limit / (norms + 1e-6)).clamp_(max=1.0)))
            return norms
        if self._stretches is not None:
            norms = torch.empty(len(self._runs))
            compiled.kernels.limit(self._gradients.numpy(), self._stretches, norms.numpy(), limit)
            return norms
        with np.errstate(all="ignore"):  # non-finite values stay non-finite
            of_parts = [sqrt(sum([float(run.dot(run)) for run in runs])) for runs in self._runs]  # noqa: C419
            for runs, norm in zip(self._runs, of_parts, strict=True):
                if not norm <= limit:
                    # A zero-dimensional array: NumPy takes half as long to convert a Python number as to scale a run.
                    factor = np.array(limit / (norm + 1e-6), runs[0].dtype)
                    for run in runs:
                        run *= factor
        return torch.from_numpy(np.array(of_parts)).to(self._gradients.dtype)


# If a weight's gradient stays 0 (dead ReLU units, images without a pattern), its Adam moments shrink by a tenth each
# step until they are denormal, below 1.2e-38, where processors compute a hundred times as slowly; an Adam step in soft
# actor-critic took eight times as long. Learning does not depend on numbers this small, so they are treated as 0.
_DENORMAL = np.float32(1e-40)
_ONE = np.float32(1.0)
for _kind in (np.float32, np.float64):
    np.finfo(_kind)  # NumPy computes its limits on first use, and would otherwise warn that denormal numbers are 0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Treat denormal numbers as 0 in this thread, if the processor supports it. Can also be used as a decorator."""
    before = bool(_DENORMAL * _ONE == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
