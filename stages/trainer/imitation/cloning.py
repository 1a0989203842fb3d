"""Behavioural cloning alongside a trainer's own learning: the setting `behavioral_cloning` of a PPO or SAC behaviour.

Cloning has a separate optimizer for the trainer's actor, and fades out over `steps`. The trainer in
`headrace.stages.trainer.bc` learns only by imitation. Both learn from `Examples`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters, FlatVectors
from headrace.stages.policy.network.layers import Inputs, categorical_log_probs, gaussian_log_probs
from headrace.stages.policy.observations import EncodedObservations, Normalizer, ObservationLayout
from headrace.stages.policy.sampling import action_features, first_action_features, policy_actions
from headrace.stages.trainer.adam import Adam
from headrace.stages.trainer.imitation.demonstrations import Demonstrations
from headrace.stages.trainer.imitation.loading import load_demonstrations
from headrace.stages.trainer.intake import ObservationPreprocessor
from headrace.stages.trainer.protocol import LEARNING_RATE_FLOOR, Schedule, TrainerContext
from headrace.stages.trainer.trajectories import SequenceCuts

_USUAL_EPOCHS = 3


@dataclass(frozen=True)
class ClonedActor:
    """The acting part of a trainer's network, to be trained by cloning."""

    design: PolicyDesign
    forward: Callable[[Inputs], Tensor]
    """Computes head outputs [B, H]. With memory, the inputs are sequences and their initial memories."""
    network: FlatVectors
    """The parameters, changed in place, and their gradients, which a trainer finds zeroed after cloning.

    They may include a critic's. Parameters that do not affect the loss get no gradient, so Adam does not change them.
    """

    @classmethod
    def from_actor(cls, design: PolicyDesign, actor: FlatParameters[ActorNetwork]) -> ClonedActor:
        """Make a `ClonedActor` from an actor that is a separate network."""
        return cls(design, lambda inputs: actor.module(inputs)[0], actor)


class ImitationUpdate(ABC):
    """Trains an actor to imitate an expert, and owns the optimizer for that.

    Args:
        actor: the actor to train.
        optimizer: the optimizer's name in messages.
        rate: the setting that scales the learning rate, for messages.
    """

    def __init__(self, actor: ClonedActor, optimizer: str = "optimizer", rate: str = "learning_rate") -> None:
        self._actor = actor
        self._adam = Adam(actor.network.values, actor.network.gradients)
        self._optimizer, self._rate = optimizer, rate

    @abstractmethod
    def loss(self, heads: Tensor, batch: ImitationBatch) -> Tensor:
        """Return the scalar loss of head outputs [B, H] for a batch's inputs."""

    @property
    def steps(self) -> int:
        """Number of gradient steps taken so far."""
        return self._adam.steps

    def step(self, learning_rate: float) -> None:
        """Change the parameters by their gradients."""
        self._adam.step(learning_rate)

    def learn(
        self,
        examples: Examples,
        normalizer: Normalizer | None,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        random: np.random.Generator,
        samples: int = 0,
    ) -> float:
        """Make `epochs` passes over the examples, or over `samples` of their steps, each in a new random order.

        Returns:
            The mean loss. The last minibatch's gradients stay in the actor.

        Raises:
            NotFiniteError: if a loss or a weight becomes NaN or infinite; weights and optimizer are then restored.
        """
        network, losses = self._actor.network, []
        # Counted in sequences, which may include padding; without memory, a sequence is a single step.
        length = examples.rows.shape[1]
        per_pass = min(max(1, samples // length), len(examples)) if samples else len(examples)
        batches = ceil(per_pass / max(1, batch_size // length))
        with self._adam.undone_on_failure():
            for _ in range(epochs):
                order = random.permutation(len(examples))[:per_pass]
                for which in np.array_split(order, batches):
                    batch = examples.batch(which, normalizer, network.values.device)
                    loss = self.loss(self._actor.forward(batch.inputs), batch)
                    network.gradients.zero_()
                    torch.autograd.backward(loss)
                    self.step(learning_rate)
                    losses.append(loss.detach())
            history = torch.stack(losses)
            if not bool(torch.isfinite(history).all() & torch.isfinite(network.values).all()):
                raise NotFiniteError(
                    f"{self._actor.design.spec.name}: a loss or a weight became NaN or infinite; the weights from "
                    f"before this update are kept. A lower {self._rate} often helps"
                )
        return float(history.mean())

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's step count, and its moments keyed by parameter name."""
        return self._adam.state_dict(self._actor.network.named_views)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        self._adam.load_state_dict(self._actor.network.named_views, state, self._optimizer)


class BehavioralCloning(ImitationUpdate):
    """Trains an actor to imitate demonstrations, alongside its trainer's own updates.

    Args:
        context: the trainer's arguments, with `behavioral_cloning` in its settings.
        actor: the actor to train.
        learning_rate: the trainer's initial learning rate.
        batch_size: the trainer's batch size, used if the settings have no batch size.
        intake: provides the normaliser for the actor's inputs.
        random: the generator that shuffles the examples; the trainer saves its state.

    Raises:
        StageError: if the demonstrations can't be used; see `load_demonstrations`.
    """

    def __init__(
        self,
        context: TrainerContext,
        actor: ClonedActor,
        learning_rate: float,
        batch_size: int,
        intake: ObservationPreprocessor,
        random: np.random.Generator,
    ) -> None:
        super().__init__(actor, "behavioral_cloning", "behavioral_cloning.strength")
        settings = context.settings.behavioral_cloning
        assert settings is not None, "made only if it is set"
        demonstrations = load_demonstrations(settings.demo_path, context.spec, context.folder)
        self._examples, self._intake, self._random = examples_of(demonstrations, actor.design), intake, random
        self._epochs, self._samples = settings.num_epoch or _USUAL_EPOCHS, settings.samples_per_update
        self._batch_size = settings.batch_size or batch_size
        kind, rate = "linear" if settings.steps else "constant", learning_rate * settings.strength
        self._learning_rate = Schedule(kind, rate, LEARNING_RATE_FLOOR, max(1, settings.steps))

    def loss(self, heads: Tensor, batch: ImitationBatch) -> Tensor:
        """Return `cloning_loss`."""
        return cloning_loss(heads, batch, self._actor.design)

    def update(self, step: int) -> Mapping[str, float]:
        """Run the cloning passes of one trainer update, over all demonstrations or over `samples_per_update` of them.

        Args:
            step: the run's agent steps so far, for the schedule.

        Returns:
            The loss, keyed by statistic name; empty once cloning has faded out.

        Raises:
            NotFiniteError: see `learn`.
        """
        rate = self._learning_rate.at(step)
        if rate <= LEARNING_RATE_FLOOR:
            return {}
        sizes = self._epochs, self._batch_size
        loss = self.learn(self._examples, self._intake.normalizer, *sizes, rate, self._random, self._samples)
        self._actor.network.gradients.zero_()
        return {"Losses/Pretraining Loss": loss}


# Examples are an expert's steps, from demonstrations or from a teacher's trajectories, as input to an update. Their
# actions are in the form that the learning policy draws. Without memory an example is a step; with memory it is a
# sequence of steps that starts with an empty memory, because the expert's memories are meaningless to the learner.


class ImitationBatch(NamedTuple):
    """B rows to imitate, on the device. With memory, they are B / L sequences of L rows each, padded at the end."""

    inputs: Inputs
    continuous: Tensor
    """[B, C] the expert's continuous actions, in the form that the policy draws."""
    choices: Tensor
    """[B, branches] int64 choices by the expert."""
    penalties: Tensor | None
    """[B, choices] added to logits: `MASK_PENALTY` for choices that were forbidden, else 0; None without masks."""
    weights: Tensor | None
    """[B] 1 for real rows, 0 for padding; None without padding."""

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of values [B] over all rows except padding, as a scalar."""
        if self.weights is None:
            return values.mean()
        return (values * self.weights).sum() / self.weights.sum()


class Examples:
    """N steps of an expert in consecutive runs, not normalised; with a memory, runs are cut into sequences.

    Args:
        design: the learning policy's design.
        observations: [N, …] the expert's observations.
        continuous: [N, C] continuous actions, in the form that the policy draws.
        choices: [N, branches] the expert's choice in each branch.
        masks: [N, choices] true for allowed choices; None if all were allowed.
        previous: [N, P] features of the previous actions; not used without memory.
        lengths: [K] the number of steps of each run.

    Attributes:
        rows: [S, L] the rows of each sequence. A shorter sequence repeats its last row. Without memory, L is 1.
        real: [S, L] true for real rows, false for padding.
    """

    def __init__(
        self,
        design: PolicyDesign,
        observations: EncodedObservations,
        continuous: NDArray[np.float32],
        choices: NDArray[np.int64],
        masks: NDArray[np.bool_] | None,
        previous: NDArray[np.float32] | None,
        lengths: NDArray[np.int64],
    ) -> None:
        self.design, self.observations, self.previous = design, observations, previous
        self._continuous, self._choices, self._masks = continuous, choices, masks
        memory = design.settings.memory
        cuts = SequenceCuts.of(lengths, 1 if memory is None else memory.sequence_length)
        self.rows, self.real = cuts.padded(slice(None))

    def __len__(self) -> int:
        """Return the number of sequences, S; without memory, each sequence is a single step."""
        return len(self.rows)

    def batch(
        self, which: NDArray[np.int64] | slice, normalizer: Normalizer | None, device: str | torch.device
    ) -> ImitationBatch:
        """Return the selected sequences, normalised, on a device."""
        rows, real = self.rows[which].reshape(-1), self.real[which].reshape(-1)
        observed = self.observations.rows(rows)
        if normalizer is not None:
            observed = EncodedObservations(normalizer.apply(observed.vectors), observed.others)
        inputs = Inputs.from_encoded(observed, device)
        if self.design.memory_size:
            assert self.previous is not None, "made with memory"
            length = self.rows.shape[1]
            memories = torch.zeros(len(rows) // length, self.design.memory_size, device=device)
            previous = torch.from_numpy(self.previous[rows]).to(device)
            inputs = inputs._replace(previous_actions=previous, memories=memories, sequence_length=length)
        penalties = None if self._masks is None else np.where(self._masks[rows], np.float32(0), MASK_PENALTY)
        return ImitationBatch(
            inputs,
            torch.from_numpy(self._continuous[rows]).to(device),
            torch.from_numpy(self._choices[rows]).to(device),
            None if penalties is None else torch.from_numpy(penalties).to(device),
            None if real.all() else torch.from_numpy(real.astype(np.float32)).to(device),
        )


def examples_of(demonstrations: Demonstrations, design: PolicyDesign) -> Examples:
    """Convert demonstrations to examples for policies of this design."""
    actions, previous = design.spec.actions, None
    if design.memory_size:
        previous = np.empty((len(demonstrations), design.previous_action_size), np.float32)
        features = action_features(actions, demonstrations.continuous, demonstrations.choices)
        previous[1:] = features[:-1]
        previous[demonstrations.episode_starts] = first_action_features(actions)
    return Examples(
        design,
        ObservationLayout(design.spec).encode(demonstrations.observations),
        policy_actions(actions, demonstrations.continuous, design.squashed),
        demonstrations.choices,
        demonstrations.masks,
        previous,
        demonstrations.episode_lengths,
    )


# Imitation losses, computed from the head outputs of `ActorNetwork`: means, log σ if the design is squashed, then the
# logits of each branch.


def cloning_loss(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> Tensor:
    """Return the sum of the mean action's squared error and the choices' cross-entropy, a scalar.

    The squared error is averaged over dimensions, and the cross-entropy over branches.

    ML-Agents uses the squared error of a sampled action. In expectation, this equals the mean action's error plus σ²,
    so it also pulls σ towards 0, indefinitely if cloning does not fade out. This ends exploration, and works against
    trainers that learn σ with an entropy bonus. The mean action's error has the same gradient for the means, without
    sampling noise, and leaves σ to the trainer.

    Args:
        heads: [B, H] head outputs for the batch's inputs.
        batch: the expert's steps.
        design: the policy's design.
    """
    continuous = design.spec.actions.continuous_size
    terms = []
    if continuous:
        means = heads[:, :continuous]
        error = (torch.tanh(means) if design.squashed else means) - batch.continuous
        terms.append(error.square().mean(dim=1))
    log_probs = _choice_log_probs(heads, batch, design)
    if log_probs:
        terms.append(-torch.cat(log_probs, dim=1).mean(dim=1))
    return batch.mean(terms[0] if len(terms) == 1 else terms[0] + terms[1])


def log_likelihood(heads: Tensor, log_sigma: Tensor | None, batch: ImitationBatch, design: PolicyDesign) -> Tensor:
    """Return the log-probability [B] of the expert's joint action under a plain Gaussian policy.

    Args:
        heads: [B, H] head outputs for the batch's inputs.
        log_sigma: [C] log σ of the continuous actions; None if there are none.
        batch: the expert's steps.
        design: the policy's design, which must not be squashed.
    """
    columns = _choice_log_probs(heads, batch, design)
    if log_sigma is not None:
        columns.append(gaussian_log_probs(heads[:, : len(log_sigma)], log_sigma, batch.continuous))
    return torch.cat(columns, dim=1).sum(dim=1)


def _choice_log_probs(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> list[Tensor]:
    """Return the log-probability [B, 1] of the expert's choice in each branch."""
    branches = split_logits(heads, batch, design)
    return [
        categorical_log_probs(branch, batch.choices[:, index : index + 1])[0] for index, branch in enumerate(branches)
    ]


def split_logits(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> tuple[Tensor, ...]:
    """Return the logits [B, choices] of each branch; forbidden choices get probability 0."""
    actions = design.spec.actions
    if not actions.discrete_branches:
        return ()
    logits = heads[:, design.head_size - actions.mask_size :]
    if batch.penalties is not None:
        logits = logits + batch.penalties
    return torch.split(logits, list(actions.discrete_branches), dim=1)
