"""Behavioural cloning as a `Trainer`: imitation without rewards or a critic.

Trajectories may come from an expert's demonstrations, which are used repeatedly, or from another behaviour in the run,
the teacher. A fraction of the episodes is held out. How well the policy predicts the actions in these episodes measures
what it has learned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import BCHyperparameters
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import PolicyDesign, policy_layout
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.observations import Normalizer
from headrace.stages.policy.sampling import ACTION_LIMIT
from headrace.stages.trainer.adam import Adam, flushed_denormals
from headrace.stages.trainer.bc.example_buffer import ExampleBuffer
from headrace.stages.trainer.imitation.cloning import Examples, ImitationBatch, log_likelihood, split_logits
from headrace.stages.trainer.intake import ObservationPreprocessor, policy_design
from headrace.stages.trainer.protocol import (
    LEARNING_RATE_FLOOR,
    Schedule,
    Trainer,
    TrainerContext,
    new_random,
    random_state,
    restore_random,
)

log = logging.getLogger(__name__)


class BCTrainer(Trainer):
    """Learns one behaviour by maximising the likelihood of an expert's actions.

    Continuous actions have the expert's form: plain Gaussian, or SAC's form if `context.teacher_squashed`. With memory,
    the trainer learns from sequences, each of which starts with an empty memory.

    Raises:
        StageError: if there are no actions to learn, or the network does not fit the observations.
    """

    imitates = True

    step = 0
    """Number of agent steps added so far."""
    version = 0
    """Number of calls to `learn` so far."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        settings, spec = context.settings, context.spec
        self._design = policy_design(context)
        self._layout = policy_layout(self._design)
        self._random = new_random(context.seed)
        # A subclass named as `module:Class` gets its hyperparameters unchanged from the YAML.
        self._hyperparameters = BCHyperparameters.model_validate(settings.hyperparameters)
        design = self._design
        self._intake = ObservationPreprocessor(spec, settings.network_settings.normalize)
        self._held_out_intake = ObservationPreprocessor(spec, normalize=False)
        """Encodes the held-out episodes, which must not affect the normaliser."""
        self._actor = FlatParameters(seeded(self._random, lambda: ActorNetwork(design)), context.device)
        self._likelihood = MaximumLikelihood(design, self._actor)
        self._examples = ExampleBuffer(design, context.teacher_squashed)
        self._held_out = ExampleBuffer(design, context.teacher_squashed)
        self._waiting = 0
        """Number of rows added since the last update, including held-out rows."""
        self._warned = False

    @property
    def rows_per_update(self) -> int:
        """`buffer_size` from the hyperparameters."""
        return self._hyperparameters.buffer_size

    def add(self, batch: TrajectoryBatch) -> None:
        """Add copies of trajectories to the training buffer or the held-out buffer."""
        if not batch.num_rows:
            return
        h, trajectories = self._hyperparameters, batch.trajectories
        chosen = held_out(trajectories["agent_ids"], trajectories["episode_ids"], self.context.seed, h.held_out)
        to_evaluate, to_learn = batch.select(chosen), batch.select(~chosen)
        # Check both parts before storing anything.
        evaluated = self._held_out_intake.encode(to_evaluate, self.step)[0]
        learned = self._intake.encode(to_learn, self.step)[0]
        self._held_out.add(to_evaluate, evaluated)
        self._examples.add(to_learn, learned)
        self._held_out.forget(keep=h.buffer_size)
        self.step += batch.num_rows
        self._waiting += batch.num_rows

    def ready(self) -> bool:
        """Return True once `buffer_size` rows are waiting. Held-out rows count, as they do in flow control."""
        return self._waiting >= self._hyperparameters.buffer_size

    @flushed_denormals()
    def learn(self) -> int:
        """Learn from the waiting examples, evaluate on held-out examples, and return the number of rows consumed.

        Raises:
            NotFiniteError: if a loss or a weight becomes NaN or infinite; everything is then restored.
        """
        h, normalizer = self._hyperparameters, self._intake.normalizer
        learning_rate = self._learning_rate()
        report = {"Policy/Learning Rate": learning_rate}
        if len(self._examples):
            examples = self._examples.examples()
            report["Losses/Cloning Loss"], report["Policy/Gradient Norm"] = self._likelihood.learn(
                examples, normalizer, h.num_epoch, h.batch_size, learning_rate, self._random
            )
            report["Policy/Training Log Likelihood"] = self._likelihood.evaluate(examples, normalizer).log_likelihood
        if len(self._held_out):
            quality = self._likelihood.evaluate(self._held_out.examples(), normalizer)
            report["Policy/Held-out Log Likelihood"] = quality.log_likelihood
            if quality.accuracy is not None:
                report["Policy/Held-out Accuracy"] = quality.accuracy
            if quality.error is not None:
                report["Policy/Held-out Error"] = quality.error
        self._warn()
        rows, self._waiting = self._waiting, 0
        self._examples.clear()
        self.version += 1
        for name, value in report.items():
            self.context.statistics.add(self.context.behavior, name, value)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, normaliser, counters, random state, and the waiting and held-out rows."""
        return {
            **self.warm_state(),
            "step": self.step,
            "version": self.version,
            "waiting": self._waiting,
            "optimizer": self._likelihood.state_dict(),
            "random": random_state(self._random),
            "gathered": self._examples.state_dict(),
            "held_out": self._held_out.state_dict(),
        }

    def _learning_rate(self) -> float:
        h, steps = self._hyperparameters, self.context.settings.max_steps
        return Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps).at(self.step)

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Set the value, with effect from the next update."""
        self._hyperparameters = self._hyperparameters.with_value(name, value)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        self.warm_start(state)
        with self.context.naming_behavior():
            self._likelihood.load_state_dict(state["optimizer"])
            self._examples.load_state_dict(state["gathered"])
            self._held_out.load_state_dict(state["held_out"])
        restore_random(self._random, state["random"])
        self.step, self.version = int(state["step"]), int(state["version"])
        self._waiting = int(state["waiting"])

    def parameter_counts(self) -> Mapping[str, int]:
        """Return the number of the actor's parameters."""
        return {"actor": self._actor.values.numel()}

    def warm_state(self) -> dict[str, Any]:
        """Return the weights and the normaliser's state."""
        return {"weights": self._actor.state_dict(), "normalizer": self._intake.normalizer_state()}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`."""
        with self.context.naming_behavior():
            self._intake.load_normalizer(state["normalizer"])
            self._actor.load(state["weights"])

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from an exported policy's actor and normaliser."""
        with self.context.naming_behavior():
            self._actor.module.load_acting(tensors)
            self._intake.load_exported_normalizer(tensors)

    def policy(self) -> PolicyUpdate:
        """Return a policy with the actor's weights and the normaliser's state."""
        return self._intake.policy(self, self._actor.module.acting_views(self._actor.parameters), self._layout)

    def _warn(self) -> None:
        """Warn once if episodes should be held out, but either no episode or every episode is held out."""
        h = self._hyperparameters
        if self._warned or not h.held_out:
            return
        if not len(self._held_out):
            self._warned = True
            log.warning(
                "%s: hyperparameters.held_out: no episode so far is among the %g %% that are held out, so there are "
                "no held-out statistics yet; if there are few demonstrations, raise held_out",
                *(self.context.behavior, 100 * h.held_out),
            )
        elif not len(self._examples):
            self._warned = True
            log.warning(
                "%s: hyperparameters.held_out: all %d steps of this update are held out, so the trainer learned "
                "nothing from it; raise buffer_size, or lower held_out",
                *(self.context.behavior, self._waiting),
            )


# The choice of held-out episodes, on which the trainer evaluates but does not learn.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / φ, a step of one golden ratio around a circle of 2⁶⁴ positions."""


def held_out(
    agent_ids: NDArray[np.int64], episode_ids: NDArray[np.int64], seed: int, share: float
) -> NDArray[np.bool_]:
    """Return flags [K], true for trajectories of held-out episodes; the result is the same for a repeated episode.

    An agent's successive episodes advance around a circle in steps of the golden ratio (Knuth, TAOCP 3, §6.4,
    "Fibonacci hashing"), starting at a point that depends on the agent and the seed. Episodes within a fraction `share`
    of the circle are held out. Steps of this size spread evenly: a fraction of 0.1 holds out 1 to 3 of any 20
    consecutive episodes, whereas independent draws would hold out none of them in one case in eight.

    Args:
        agent_ids: [K] the agent of each trajectory.
        episode_ids: [K] the episode of each trajectory; ids increase by about 1 from one of an agent's episodes to the
            next.
        seed: determines, with `share`, which episodes are held out.
        share: the fraction of episodes to hold out, in [0, 1).
    """
    start = _mixed(agent_ids.astype(np.uint64) ^ _mixed(np.array(seed % 2**64, np.uint64)))
    place = start + episode_ids.astype(np.uint64) * _GOLDEN  # modulo 2⁶⁴
    chosen: NDArray[np.bool_] = place < np.uint64(share * 2.0**64)
    return chosen


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix bits with SplitMix64's finaliser (Steele, Lea & Flood, 2014): each input bit affects each output bit."""
    mixed: NDArray[np.uint64] = np.atleast_1d(number) + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


# Maximum likelihood: gradient steps on an expert's data, and measures of how well a policy predicts the data.

LOG_SIGMA_FLOOR = -5.0
"""Lower bound on log σ, so σ is at least e⁻⁵ (0.2 % of an action's range). With a noiseless expert, σ would otherwise
keep falling, and likelihoods rising, until one unexpected action made the loss infinite."""

_ROWS = 4096
"""Number of rows per forward pass of an evaluation. It limits memory use, and the rows fit the processor's cache."""


@dataclass(frozen=True, slots=True)
class PredictionQuality:
    """How well a policy predicts an expert's actions, averaged over steps."""

    log_likelihood: float
    """Log-likelihood, in nats, of a step's joint action under the policy.

    For continuous actions, this is a log density.
    """
    accuracy: float | None
    """Fraction of branches in which the most likely choice matches the expert's choice; None without discrete
    branches."""
    error: float | None
    """Squared error of the mean continuous action, in the environment's form; None without continuous actions."""


class MaximumLikelihood:
    """Trains an actor by maximum likelihood, and owns its optimizer.

    Args:
        design: the actor's design; its actions must not be squashed.
        actor: the network to train.
    """

    def __init__(self, design: PolicyDesign, actor: FlatParameters[ActorNetwork]) -> None:
        self._design = design
        self._actor = actor
        self._adam = Adam(actor.values, actor.gradients)
        c = design.spec.actions.continuous_size
        limits = torch.full((c,), ACTION_LIMIT)
        limits[list(design.spec.actions.unbounded)] = torch.inf
        self._limits = limits.to(actor.values.device)
        """[C] bounds of the environment's actions.

        Actions are clipped to these bounds, then divided by the finite bounds.
        """

    def learn(
        self,
        examples: Examples,
        normalizer: Normalizer | None,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        random: np.random.Generator,
    ) -> tuple[float, float]:
        """Make `epochs` passes over the examples, each in a new random order.

        Returns:
            The mean loss, in nats per step, and the norm of the last gradient.

        Raises:
            NotFiniteError: if a loss or a weight becomes NaN or infinite; weights and optimizer are then restored.
        """
        actor = self._actor
        at_a_time = max(1, batch_size // examples.rows.shape[1])
        losses = []
        with self._adam.undone_on_failure():
            for _ in range(epochs):
                order = random.permutation(len(examples))
                for which in np.array_split(order, ceil(len(order) / at_a_time)):
                    batch = examples.batch(which, normalizer, actor.values.device)
                    loss = -batch.mean(self._log_likelihood(batch)[1])
                    actor.gradients.zero_()
                    torch.autograd.backward(loss)
                    self._adam.step(learning_rate)
                    if actor.module.log_sigma is not None:
                        actor.module.log_sigma.detach().clamp_(min=LOG_SIGMA_FLOOR)
                    losses.append(loss.detach())
            history = torch.stack(losses)
            if not bool(torch.isfinite(history).all() & torch.isfinite(actor.values).all()):
                raise NotFiniteError(
                    f"{self._design.spec.name}: a loss or a weight became NaN or infinite; the weights from before the "
                    "update are kept. A lower learning_rate often helps"
                )
        return float(history.mean()), float(torch.linalg.vector_norm(actor.gradients))

    @torch.no_grad()
    def evaluate(self, examples: Examples, normalizer: Normalizer | None) -> PredictionQuality:
        """Evaluate the policy's predictions on the examples; at least one example is required."""
        at_a_time = max(1, _ROWS // examples.rows.shape[1])
        sums, steps = torch.zeros(3, dtype=torch.float64), 0
        for start in range(0, len(examples), at_a_time):
            which = slice(start, start + at_a_time)
            batch = examples.batch(which, normalizer, self._actor.values.device)
            heads, likelihood = self._log_likelihood(batch)
            per_step = (likelihood, self._hits(heads, batch), self._error(heads, batch))
            count = int(examples.real[which].sum())
            sums += torch.stack([batch.mean(measure) for measure in per_step]).cpu().double() * count
            steps += count
        log_likelihood, accuracy, error = (sums / steps).tolist()
        actions = self._design.spec.actions
        return PredictionQuality(
            log_likelihood,
            accuracy if actions.discrete_branches else None,
            error if actions.continuous_size else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's step count, and its moments keyed by parameter name."""
        return self._adam.state_dict(self._actor.named_views)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        self._adam.load_state_dict(self._actor.named_views, state)

    def _log_likelihood(self, batch: ImitationBatch) -> tuple[Tensor, Tensor]:
        """Return head outputs [B, H] and log-probabilities [B]."""
        heads, _ = self._actor.module(batch.inputs)
        return heads, log_likelihood(heads, self._actor.module.log_sigma, batch, self._design)

    def _hits(self, heads: Tensor, batch: ImitationBatch) -> Tensor:
        """Return the fraction of branches [B] in which the most likely choice matches the expert's."""
        branches = split_logits(heads, batch, self._design)
        if not branches:
            return torch.zeros(len(heads), device=heads.device)
        best = torch.stack([logits.argmax(dim=1) for logits in branches], dim=1)
        return (best == batch.choices).float().mean(dim=1)

    def _error(self, heads: Tensor, batch: ImitationBatch) -> Tensor:
        """Return the squared error [B] of the actions that the environment receives, averaged over dimensions."""
        if not len(self._limits):
            return torch.zeros(len(heads), device=heads.device)
        scale = torch.where(torch.isinf(self._limits), 1.0, self._limits)
        given = [
            torch.clamp(actions, -self._limits, self._limits) / scale
            for actions in (heads[:, : len(self._limits)], batch.continuous)
        ]
        return (given[0] - given[1]).square().mean(dim=1)
