"""A policy's view of an observation: its action distributions and its critic's value of the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.pipeline.common.errors import PredictError
from headrace.pipeline.policies.export import Export, is_export, read_export
from headrace.queues.messages import Array, Floats
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.design import branch_slices, split_action_heads

if TYPE_CHECKING:
    from headrace.stages.policy.network.layers import Inputs

Columns = tuple[Array, ...]
"""One array [n, *shape] for each observation of a behaviour, in a batch of n."""


@dataclass(frozen=True)
class ActionDistribution:
    """The action distributions for one observation, or for a batch of n; a batch's arrays have a leading axis n.

    Attributes:
        probabilities: [choices] for each branch of discrete actions; 0 for masked choices.
        means: [C] means of the Gaussians of continuous actions, in the policy's own units.
        deviations: [C] standard deviations of these Gaussians.
        squashed: True if the action is the tanh of the sample (SAC), scaled to the Box; otherwise it is a third of the
            sample, clipped to ±1 and scaled (in unbounded dimensions, the sample itself).
    """

    probabilities: tuple[Floats, ...]
    means: Floats
    deviations: Floats
    squashed: bool

    def first(self) -> ActionDistribution:
        """Return the distributions of a batch's first row, without the batch axis."""
        return ActionDistribution(
            tuple([each[0] for each in self.probabilities]), self.means[0], self.deviations[0], self.squashed
        )


def distribution_of(
    spec: BehaviorSpec, heads: Floats, masks: NDArray[np.bool_] | None, squashed: bool
) -> ActionDistribution:
    """Return the distributions for action head outputs [n, 2C + choices] (`design.action_heads_column`) and masks."""
    split = split_action_heads(spec, heads)
    found = []
    for branch, logits in zip(branch_slices(spec), split.logits, strict=True):
        allowed = logits if masks is None else np.where(masks[:, branch], logits, -np.inf)
        powers = np.exp(allowed - allowed.max(axis=1, keepdims=True))
        found.append(powers / powers.sum(axis=1, keepdims=True))
    return ActionDistribution(tuple(found), split.means, np.exp(split.log_sigmas), squashed)


def critic_of(file: Path) -> Callable[[Columns], Floats]:
    """Return the critic in a file as a function from n observations to values [n, S] for S reward signals.

    Raises:
        PredictError: if the file has no critic that values a single state.
    """
    if not is_export(file) or file.suffix != ".pt":
        raise PredictError(
            f"{file} holds only a policy; to compute values, use a Headrace .pt file, which also contains the critic"
        )
    export = read_export(file)
    critic = _CRITICS.get(export.trainer_type)
    if critic is None or not export.learner:
        raise PredictError(
            f"{file} comes from a trainer ({export.trainer_type}) that has no state-value critic; "
            f"trainers with one are {', '.join(_CRITICS)}"
        )
    if export.design.memory_size:
        raise PredictError(f"{file}: its critic has its own memory, which policy files do not contain")
    import torch

    from headrace.stages.policy.network.actor import encoded_as_seen, normalizer_of, one_thread
    from headrace.stages.policy.network.layers import Inputs
    from headrace.stages.policy.observations import ObservationLayout

    layout, normalizer = ObservationLayout(export.design.spec), normalizer_of(export.update.tensors())
    judge = critic(export, export.learner)

    def values(observations: Columns) -> Floats:
        encoded = encoded_as_seen(layout, normalizer, observations)
        with torch.inference_mode(), one_thread():
            found: Floats = judge(Inputs.from_encoded(encoded)).numpy()
            return found

    return values


def _state_critic(export: Export, learner: Mapping[str, Any]) -> Callable[[Inputs], Any]:
    """Return an actor-critic's state-value function V(s)."""
    from headrace.stages.policy.network.actor_critic import make_actor_critic

    weights, design = learner["weights"], export.design
    body = weights.get("body.0.weight")
    shared = len(body) == 1 if body is not None else not any(name.startswith("critic.") for name in weights)
    network = make_actor_critic(design, len(weights["value.bias"]), shared, np.random.default_rng(0))
    network.load(weights)
    return lambda inputs: network.evaluate(inputs)[0]


def _soft_critic(export: Export, learner: Mapping[str, Any]) -> Callable[[Inputs], Any]:
    """Return SAC's V(s) if learned, else a function for the lower of the most likely action's two Q values."""
    import torch

    from headrace.stages.policy.network.actor import ActorNetwork
    from headrace.stages.policy.network.flat_parameters import FlatParameters
    from headrace.stages.trainer.sac.networks import Critics

    weights, design = learner["networks"], export.design
    actions = design.spec.actions
    learned = "value.head.bias" in weights["critics"]
    if actions.discrete_branches and not learned:
        raise PredictError("sac with both continuous and discrete actions learns action values but no state values")
    signals = len(weights["critics"]["value.head.bias" if learned else "q1.head.bias"])
    critics, actor = FlatParameters(Critics(design, signals, learned)), FlatParameters(ActorNetwork(design))
    critics.load(weights["critics"])
    actor.load(weights["actor"])
    if learned:
        return critics.module.value

    def smaller(inputs: Inputs) -> Any:
        heads, _ = actor.module(inputs)
        likely = torch.tanh(heads[:, : actions.continuous_size])
        return torch.minimum(*(q(inputs, likely) for q in (critics.module.q1, critics.module.q2))).squeeze(2)

    return smaller


_CRITICS: Mapping[str, Callable[[Export, Mapping[str, Any]], Callable[[Inputs], Any]]] = {
    "ppo": _state_critic,
    "impala": _state_critic,
    "sac": _soft_critic,
}
"""Functions that make a value function from an export and its learner state, keyed by trainer type."""
