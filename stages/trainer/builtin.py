"""The common parts of the built-in trainers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from headrace.queues.messages import Array, PolicyUpdate
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.layout import policy_layout
from headrace.stages.trainer.intake import Intake
from headrace.stages.trainer.protocol import Trainer, TrainerContext
from headrace.stages.trainer.randomness import new_random


class BuiltinTrainer(Trainer):
    """Counts steps and updates, and makes policies of an actor's tensors and the intake's normaliser.

    Raises:
        StageError: if the behaviour has no actions to learn.
    """

    _intake: Intake

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        if not context.spec.actions.log_prob_size:
            raise StageError(f"{context.behavior}: the behaviour has neither continuous nor discrete actions to learn")
        self._spec = context.spec
        self._design = replace(design_of(context.spec, context.settings, context.folder), bf16=context.bf16)
        self._layout = policy_layout(self._design)
        self._random = new_random(context.seed)
        self._step = 0
        self._version = 0

    @property
    def step(self) -> int:
        """Agent steps added so far."""
        return self._step

    @property
    def version(self) -> int:
        """Calls of `learn` so far."""
        return self._version

    def policy(self) -> PolicyUpdate:
        """The actor's weights and the normaliser's state."""
        weights = self._intake.acting_weights(self._acting_tensors(), self._layout)
        return PolicyUpdate(self.context.behavior, self._version, weights, self._layout, self._step)

    @abstractmethod
    def _acting_tensors(self) -> Mapping[str, Array]:
        """The actor's parameters by the names of the layout."""
