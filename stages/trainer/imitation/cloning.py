"""Behavioural cloning beside a trainer's own learning: `behavioral_cloning` of a PPO or SAC behaviour.

It has an optimizer of its own for the trainer's actor, and fades out over `steps`. Its loss is in `examples`, which
also converts the expert's actions to the policy's own. A trainer that only imitates is in `headrace.stages.trainer.bc`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import BehavioralCloningSettings
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters
from headrace.stages.policy.network.transfers import Inputs
from headrace.stages.trainer.adam import Adam
from headrace.stages.trainer.imitation.examples import Examples, cloning_loss, examples_of
from headrace.stages.trainer.imitation.loading import load_demonstrations
from headrace.stages.trainer.intake import Intake
from headrace.stages.trainer.protocol import LEARNING_RATE_FLOOR, Schedule, TrainerContext

_USUAL_EPOCHS = 3


@dataclass(frozen=True)
class ClonedActor:
    """The acting part of a trainer's network, which cloning changes.

    `values` may hold more than the actor (PPO's hold the critic as well): parameters without influence on the loss have
    no gradient, and Adam does not change them.
    """

    design: PolicyDesign
    forward: Callable[[Inputs], Tensor]
    """Action heads [B, H] of B rows; with memory, of sequences from the memories in the inputs."""
    values: Tensor
    """All parameters end to end; changed in place."""
    gradients: Tensor
    """Their gradients, to which backward adds; cloning leaves zeros."""
    named_views: Callable[[Tensor], dict[str, Tensor]]
    """Views into a vector as long as `values`, by parameter name."""

    @classmethod
    def from_actor(cls, design: PolicyDesign, actor: FlatParameters[ActorNetwork]) -> ClonedActor:
        """SAC's actor, a network of its own."""
        return cls(design, lambda inputs: actor.module(inputs)[0], actor.values, actor.gradients, actor.named_views)


class BehavioralCloning:
    """Teaches an actor an expert's demonstrations.

    Args:
        examples: the demonstrations.
        actor: learns them.
        settings: sizes and schedule.
        learning_rate: the trainer's, at its start.
        batch_size: the trainer's, the default of the settings'.
        intake: its normaliser normalises the actor's inputs.
        random: shuffles; the trainer saves its state.
    """

    def __init__(
        self,
        examples: Examples,
        actor: ClonedActor,
        settings: BehavioralCloningSettings,
        learning_rate: float,
        batch_size: int,
        intake: Intake,
        random: np.random.Generator,
    ) -> None:
        self._examples = examples
        self._actor = actor
        self._intake = intake
        self._random = random
        self._epochs = settings.num_epoch or _USUAL_EPOCHS
        kind = "linear" if settings.steps else "constant"
        rate = learning_rate * settings.strength
        self._learning_rate = Schedule(kind, rate, LEARNING_RATE_FLOOR, max(1, settings.steps))
        # Counted in sequences, which are steps without memory: some of their rows may be padding.
        length = examples.rows.shape[1]
        bound = max(1, settings.samples_per_update // length) if settings.samples_per_update else len(examples)
        self._per_pass = min(bound, len(examples))
        self._batches = ceil(self._per_pass / max(1, (settings.batch_size or batch_size) // length))
        self._adam = Adam(actor.values, actor.gradients)

    def update(self, step: int) -> Mapping[str, float]:
        """Make the passes over the demonstrations (or `samples_per_update` of them) of one update of the trainer.

        Args:
            step: agent steps of the run, for the schedule.

        Returns:
            The loss, by the name of its statistic; empty once it has faded out.

        Raises:
            NotFiniteError: if a loss or a weight became NaN or infinite; weights and optimizer are then as before.
        """
        learning_rate = self._learning_rate.at(step)
        if learning_rate <= LEARNING_RATE_FLOOR:
            return {}
        actor, losses = self._actor, []
        with self._adam.undone_on_failure():
            for which in self._minibatches():
                batch = self._examples.batch(which, self._intake.normalizer, actor.values.device)
                loss = cloning_loss(actor.forward(batch.inputs), batch, actor.design)
                actor.gradients.zero_()
                loss.backward()  # type: ignore[no-untyped-call]
                self._adam.step(learning_rate)
                losses.append(loss.detach())
            actor.gradients.zero_()
            history = torch.stack(losses)
            if not bool(torch.isfinite(history).all() & torch.isfinite(actor.values).all()):
                raise NotFiniteError(
                    f"{actor.design.spec.name}: behavioral_cloning at step {step}: a loss or a weight became NaN or "
                    "infinite; the weights are those before it. A lower behavioral_cloning.strength often helps"
                )
        return {"Losses/Pretraining Loss": float(history.mean())}

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments by parameter name, and its step count."""
        return self._adam.state_dict(self._actor.named_views)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: naming the tensor that does not fit.
        """
        self._adam.load_state_dict(self._actor.named_views, state, "behavioral_cloning")

    def _minibatches(self) -> Iterator[NDArray[np.int64]]:
        for _ in range(self._epochs):
            order = self._random.permutation(len(self._examples))[: self._per_pass]
            yield from np.array_split(order, self._batches)


def make_cloning(
    context: TrainerContext,
    actor: ClonedActor,
    learning_rate: float,
    batch_size: int,
    intake: Intake,
    random: np.random.Generator,
) -> BehavioralCloning | None:
    """Make the cloning of a behaviour's settings and load its demonstrations; None if it has none.

    Args are those of `BehavioralCloning`, beside the trainer's own.

    Raises:
        StageError: if the demonstrations can't be used; see `load_demonstrations`.
    """
    settings = context.settings.behavioral_cloning
    if settings is None:
        return None
    demonstrations = load_demonstrations(settings.demo_path, context.spec, context.folder)
    examples = examples_of(demonstrations, actor.design)
    return BehavioralCloning(examples, actor, settings, learning_rate, batch_size, intake, random)
