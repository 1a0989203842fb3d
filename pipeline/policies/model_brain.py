"""The brain that acts by a trained policy: what a model reference names, in the place of a learner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.model_files import find_model, find_models, read_model
from headrace.queues.messages import Array, PolicyUpdate
from headrace.stages.brains.protocol import BrainRequest
from headrace.stages.errors import LoadError, blaming
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall


class ModelBrain:
    """Acts by a model; as `ActingPolicy` it keeps its weights.

    Args:
        policy: the model's, loaded.
        deterministic: always take its most likely actions.
    """

    def __init__(self, policy: ActingPolicy, deterministic: bool) -> None:
        self._policy = policy
        self._deterministic = deterministic

    @property
    def memory_size(self) -> int:
        """M of the model."""
        return self._policy.memory_size

    @property
    def previous_action_size(self) -> int:
        """P of the model."""
        return self._policy.previous_action_size

    def load(self, update: PolicyUpdate) -> None:
        """Load nothing: a model does not change."""

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """See `ActingPolicy.act`."""
        return self._policy.act(observations, masks, random, deterministic or self._deterministic, recall)


def make_model(request: BrainRequest) -> ModelBrain | None:
    """Read the model.

    Raises:
        LoadError: if there is none, or it was made for other observations or actions.
    """
    spec = request.spec
    with blaming(*request.key):
        try:
            if spec is None:
                find_models(request.use, request.folder)
                return None
            file = find_model(request.use, spec.name, request.folder)
            policy = read_model(file, spec, request.folder).make_policy()
        except RunError as error:
            raise LoadError(f"{request.where}: {error}") from error
        return ModelBrain(policy, bool(request.given.get("deterministic", False)))
