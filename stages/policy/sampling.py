"""Action sampling in NumPy: from a network's head outputs to a decision, and to the actions that environments receive.

All randomness comes from the generator argument, no matter which library computed the head outputs: the same generator
state and head outputs give the same decision. `network.layers` implements the same distributions in torch, for
trainers. Actions have two forms: the form that the policy drew, in which streams store them, and the form that
environments receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, Floats, PolicyUpdate
from headrace.queues.specs import ActionSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import (
    ACTION_HEADS,
    MASK_PENALTY,
    Exploration,
    Layout,
    PolicyDesign,
    consecutive_slices,
    split_action_heads,
)
from headrace.stages.policy.protocol import Decision, Recall

ACTION_LIMIT = 3.0
"""A plain Gaussian policy outputs a bounded action as clip(a, -3, 3) / 3, as in ML-Agents."""


def environment_actions(actions: ActionSpec, drawn: Floats, squashed: bool) -> Floats:
    """Convert continuous actions [n, C] from the form that a policy drew to the environment's; return a new array.

    Actions of a plain Gaussian policy are clipped and scaled, except in unbounded dimensions. Actions of a squashed
    (tanh) policy are already in [-1, 1], in all dimensions; SAC can't be used if the environment has no bounds.
    """
    if squashed:
        return drawn.copy()
    scaled = np.minimum(drawn, ACTION_LIMIT)  # minimum and maximum together take half of np.clip's time
    np.maximum(scaled, -ACTION_LIMIT, out=scaled)
    scaled /= ACTION_LIMIT
    if actions.unbounded:
        unbounded = list(actions.unbounded)
        scaled[:, unbounded] = drawn[:, unbounded]
    return scaled


def policy_actions(actions: ActionSpec, received: Floats, squashed: bool) -> Floats:
    """Invert `environment_actions` for actions [n, C] that an environment received; return a new array."""
    if squashed:
        return received.copy()
    drawn = received * np.float32(ACTION_LIMIT)
    if actions.unbounded:
        unbounded = list(actions.unbounded)
        drawn[:, unbounded] = received[:, unbounded]
    return drawn


def action_features(actions: ActionSpec, continuous: Floats, discrete: Array) -> Floats:
    """Return actions as network inputs [n, C + choices]: continuous actions, then a one-hot vector per branch.

    Args:
        actions: the spec.
        continuous: [n, C] as the environment received them.
        discrete: [n, branches] choices.
    """
    n, c = len(continuous), actions.continuous_size
    features = np.zeros((n, c + actions.mask_size), np.float32)
    features[:, :c] = continuous
    rows, at = np.arange(n), c
    for branch, size in enumerate(actions.discrete_branches):
        features[rows, at + discrete[:, branch]] = 1.0
        at += size
    return features


def first_action_features(actions: ActionSpec) -> Floats:
    """Return the features [C + choices] for the action before an episode's first: zeros, and choice 0 per branch.

    They equal `action_features` of all-zero actions, which trajectories hold at that point.
    """
    nothing = np.zeros((1, actions.continuous_size), np.float32)
    return action_features(actions, nothing, np.zeros((1, len(actions.discrete_branches)), np.int32)).reshape(-1)


LOG_SIGMA_LIMITS = (-20.0, 2.0)
"""Range that a state-dependent log σ is clamped to, as in the code of Haarnoja et al. (2018), "Soft Actor-Critic"."""

_HALF_LOG_TWO_PI = np.float32(0.5 * log(2.0 * pi))
_HALF = np.float32(0.5)
_LOG_TWO = np.float32(log(2.0))
_NUMBERS_SHOWN = 64


# NumPy and torch compute only the heads, so both ways to act share this sampler (docs/decisions/030).
class ActionSampler:
    """Draws actions for one design from head outputs [d, H].

    The head outputs are the means of the continuous actions, their log σ if it depends on the state (squashed, gSDE),
    then each branch's logits.
    """

    def __init__(self, design: PolicyDesign) -> None:
        self._design, self._actions = design, design.spec.actions
        self._step = 0
        self.uniform = False
        """Whether the loaded policy currently samples uniformly and ignores the head outputs."""
        self._branches = consecutive_slices(self._actions.discrete_branches)
        self._own_spreads = design.squashed or design.gsde is not None
        self._gaussian_heads = design.head_size - self._actions.mask_size
        self.log_sigma = np.zeros(0, np.float32)
        """[C] log σ of a Gaussian that is not squashed; zeros until a policy is loaded."""
        self.noise = None if design.gsde is None else StateNoise(design)
        """gSDE's noise, which replaces independent noise for each action; None without gSDE."""

    def adopt(self, update: PolicyUpdate, log_sigma: Floats | None = None) -> None:
        """Sample for this policy from now on, uniformly if its trainer has taken at most `random_steps` steps.

        The snapshots that self-play opponents use are never sampled uniformly. `log_sigma` is the policy's parameter of
        this name, if it has one.
        """
        self.uniform = update.step < self._design.random_steps and update.snapshot < 0
        self._step = update.step
        if self.noise is not None and log_sigma is not None:
            self.noise.load(log_sigma)
        elif log_sigma is not None:
            self.log_sigma = log_sigma

    def decide(
        self,
        heads: Floats,
        encoding: Floats,
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool,
        recall: Recall | None,
        memories: Floats | None = None,
    ) -> Decision:
        """Decide for d agents as in `sample`, with gSDE's noise if the design has it.

        `encoding` [d, features] is the output of the last hidden layer, and `memories` [d, m] are those of the network
        after the decision. `recall` has the network's memories before the decision, then the noise's rows.
        """
        m, noise = self._design.memory_size, None
        kept = None if recall is None or recall.memories.shape[1] == m else recall.memories[:, m:]
        keeps = kept is not None
        if self.noise is not None and not (deterministic or self.uniform):
            noise, kept = self.noise.draw(encoding, kept, random)
        actions, columns = self.sample(heads, masks, random, deterministic, noise=noise)
        if recall is None:
            return Decision(actions, columns)
        previous, after = recall.previous_actions, [kept] if kept is not None and keeps else []
        if memories is not None:
            columns["memories"] = recall.memories[:, :m]
            previous = action_features(self._actions, actions.continuous, actions.discrete)
            after = [memories, *after]
        return Decision(actions, columns, Recall(after[0] if len(after) == 1 else np.hstack(after), previous))

    def sample(
        self,
        heads: Floats,
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool,
        log_sigma: Floats | None = None,
        noise: Floats | None = None,
    ) -> tuple[ActionBatch, dict[str, Array]]:
        """Decide for d agents.

        Args:
            heads: [d, H] head outputs, all finite.
            masks: [d, sum of branches] true = allowed, or None.
            random: the only source of randomness.
            deterministic: whether to take the mean and the most likely choice instead of a sample.
            log_sigma: [d, C] if the rows belong to policies with different log σ; None for the loaded log σ.
            noise: [d, C] from gSDE, added to the means; None draws independent noise for each action.

        Returns:
            The environment's actions, and the decision's columns; all arrays are new except the masks.

        Raises:
            StageError: if a mask forbids all choices of a branch.
        """
        d, c = len(heads), self._actions.continuous_size
        log_sigma = self.log_sigma if log_sigma is None else log_sigma
        deterministic = deterministic or self._design.greedy
        if self._design.exploration is not None and not deterministic:
            heads, log_sigma = self._explored(self._design.exploration, heads, log_sigma, masks, random)
        uniform = self.uniform and not deterministic
        log_probs = np.empty((d, c + len(self._branches)), np.float32)
        columns: dict[str, Array] = {}
        continuous = np.empty((d, 0), np.float32)
        discrete = np.empty((d, len(self._branches)), np.int32)
        if c:
            drawn = self._sample_continuous(heads, log_sigma, random, deterministic, noise, log_probs[:, :c])
            columns["continuous_actions"] = drawn
            continuous = environment_actions(self._actions, drawn, self._design.squashed)
        if self._branches:
            logits = heads[:, self._gaussian_heads :]
            if uniform:
                logits = np.zeros_like(logits)
            if masks is not None:
                self._check_masks(masks)
                logits = np.where(masks, logits, logits + MASK_PENALTY)  # no forbidden choice is ever drawn
            for index, branch in enumerate(self._branches):
                choices, chosen = sample_categorical(logits[:, branch], random, deterministic)
                discrete[:, index] = choices
                log_probs[:, c + index] = chosen
            columns["discrete_actions"] = discrete
        columns["log_probs"] = log_probs
        if self._actions.masked:
            columns["action_masks"] = np.ones((d, self._actions.mask_size), np.bool_) if masks is None else masks
        if ACTION_HEADS in self._design.extra_columns:
            columns[ACTION_HEADS] = self._action_heads(heads, log_sigma)
        return ActionBatch(continuous, discrete), columns

    def _explored(
        self,
        exploration: Exploration,
        heads: Floats,
        log_sigma: Floats,
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
    ) -> tuple[Floats, Floats]:
        """Return the head outputs [d, H] and log σ [d, C] of the distributions that explore."""
        masks = np.ones((len(heads), self._actions.mask_size), np.bool_) if masks is None else masks
        self._check_masks(masks)
        given = split_action_heads(self._design.spec, self._action_heads(heads, log_sigma))
        allowed = tuple([masks[:, branch] for branch in self._branches])
        changed = exploration.explored(given, allowed, random, self._step)
        spreads = [changed.log_sigmas] if self._own_spreads else []
        return np.concatenate([changed.means, *spreads, *changed.logits], axis=1, dtype=np.float32), changed.log_sigmas

    def _sample_continuous(
        self,
        heads: Floats,
        log_sigma: Floats,
        random: np.random.Generator,
        deterministic: bool,
        noise: Floats | None,
        log_probs: Floats,
    ) -> Floats:
        """Return continuous actions [d, c] as policies draw them; write their log-probabilities to `log_probs`."""
        c = self._actions.continuous_size
        if self.uniform and not deterministic:
            log_probs.fill(-_LOG_TWO)
            return np.float32(2.0) * random.random((len(heads), c), np.float32) - np.float32(1.0)
        log_sigma = heads[:, c : 2 * c] if self._own_spreads else log_sigma
        standard: Floats | None = None
        if not deterministic and noise is None:
            standard = random.standard_normal((len(heads), c), np.float32)
        elif noise is not None and not deterministic:
            standard = noise * np.exp(-log_sigma)
        sample = sample_squashed if self._design.squashed else sample_gaussian
        return sample(heads[:, :c], log_sigma, standard, log_probs)

    def _action_heads(self, heads: Floats, log_sigma: Floats) -> Floats:
        """Build the column `action_heads` [d, 2·C + choices] from these head outputs, as a new array."""
        c = self._actions.continuous_size
        if self._own_spreads or not c:
            column = heads.copy()
            if self._design.squashed:
                np.clip(column[:, c : 2 * c], *LOG_SIGMA_LIMITS, out=column[:, c : 2 * c])
            return column
        column = np.empty((len(heads), heads.shape[1] + c), np.float32)
        column[:, :c] = heads[:, :c]
        column[:, c : 2 * c] = log_sigma
        column[:, 2 * c :] = heads[:, c:]
        return column

    def _check_masks(self, masks: NDArray[np.bool_]) -> None:
        for index, branch in enumerate(self._branches):
            open_rows = masks[:, branch].any(axis=1)
            if not open_rows.all():
                row = int(np.flatnonzero(~open_rows)[0])
                raise StageError(
                    f"{self._design.spec.behavior_id}: the action mask of row {row} forbids all "
                    f"{branch.stop - branch.start} choices of branch {index}; "
                    "an environment must leave at least one"
                )


def sample_gaussian(mu: Floats, log_sigma: Floats, noise: Floats | None, log_probs: Floats) -> Floats:
    """Return raw actions [d, c], μ + σ·noise, and write their log-probabilities to `log_probs` [d, c].

    log N(a; μ, σ) = -((a - μ)/σ)²/2 - log σ - log(2π)/2, evaluated for the action as stored, so the trainer computes
    the same number. `log_sigma` is [c] or [d, c]; `noise` [d, c] holds standard normals, or is None to return μ.
    """
    sigma = np.exp(log_sigma)
    actions = mu.copy() if noise is None else noise * sigma
    if noise is not None:
        actions += mu
    np.subtract(actions, mu, out=log_probs)
    log_probs /= sigma
    np.square(log_probs, out=log_probs)
    log_probs *= -_HALF
    log_probs -= log_sigma + _HALF_LOG_TWO_PI
    return actions


def sample_squashed(mu: Floats, log_sigma: Floats, noise: Floats | None, log_probs: Floats) -> Floats:
    """Return tanh(u) [d, c] with u = μ + σ·noise, and write the log-probabilities to `log_probs` [d, c].

    Haarnoja et al. (2018), "Soft Actor-Critic", appendix C: log π(tanh u) = log N(u; μ, σ) - log(1 - tanh² u), here per
    dimension. The log-probabilities are computed from the drawn u, which can't be recovered if tanh u is ±1. The
    arguments are those of `sample_gaussian`.
    """
    log_sigma = np.clip(log_sigma, *LOG_SIGMA_LIMITS)
    if noise is None:
        u = mu.copy()
        log_probs.fill(0.0)
    else:
        np.square(noise, out=log_probs)
        log_probs *= -_HALF
        u = np.exp(log_sigma)
        u *= noise
        u += mu
    log_probs -= log_sigma
    log_probs -= _HALF_LOG_TWO_PI
    log_probs -= log_tanh_slope(u)
    return np.tanh(u, out=u)


def log_tanh_slope(u: Floats) -> Floats:
    """Return log(1 - tanh² u), the log of tanh's derivative, as a new array.

    1 - tanh² u = 4 / (e^u + e^-u)², so its log is 2·(log 2 - |u| - log(1 + e^(-2|u|))). This is exact where tanh u is
    ±1 in float32 (for |u| above about 9), and avoids the cancellation that the formula with u in place of |u| has for u
    < 0.
    """
    size = np.abs(u)
    tail = np.log1p(np.exp(np.float32(-2.0) * size))
    return np.float32(2.0) * (_LOG_TWO - size - tail)


def sample_categorical(
    logits: Floats, random: np.random.Generator, deterministic: bool
) -> tuple[NDArray[np.intp], Floats]:
    """Draw from softmax(logits) [d, choices] by inverting the cumulative distribution.

    The random number is in (0, total], and the first choice whose cumulative weight reaches this number is drawn.
    Choices with weight 0 are therefore never drawn, regardless of rounding.

    Returns:
        Choices [d] (the most likely ones if `deterministic`) and their log-probabilities [d].
    """
    shifted = logits.T.copy()  # [choices, d]: a few long rows are faster to process than many short ones
    shifted -= np.maximum.reduce(shifted, axis=0)
    cumulated = np.exp(shifted)
    np.add.accumulate(cumulated, axis=0, out=cumulated)
    total = cumulated[-1]
    if deterministic:
        choices = shifted.argmax(axis=0)
    else:
        drawn = (np.float32(1.0) - random.random(len(logits), np.float32)) * total
        choices = np.add.reduce(cumulated < drawn, axis=0, dtype=np.intp)
    return choices, shifted[choices, np.arange(len(logits))] - np.log(total)


def check_heads(behavior_id: str, version: int, heads: Floats, observations: Sequence[Array]) -> None:
    """Raise an error if head outputs [d, H] are NaN or infinite.

    Raises:
        NotFiniteError: if a head output is NaN or infinite. The message names the policy, the first of these rows and
            its observations. If that row's observations are not finite, the message names the environment instead.
    """
    if np.isfinite(heads).all():
        return
    row = int(np.flatnonzero(~np.isfinite(heads).all(axis=1))[0])
    observed = f"[{', '.join(_shown(o[row]) for o in observations)}]"
    if not all(np.isfinite(o[row]).all() for o in observations if o.dtype.kind == "f"):
        raise NotFiniteError(
            f"{behavior_id}: the environment gave row {row} of {len(heads)} agents an observation that is not finite: "
            f"{observed}. The environment is the cause, not the policy: look for a division by zero or an overflow"
        )
    raise NotFiniteError(
        f"{behavior_id}: policy version {version} outputs {heads[row].tolist()} for row {row} of {len(heads)} agents, "
        f"whose observation is {observed}"
    )


def _shown(observation: Array) -> str:
    """Format an observation for an error message; for a large one, show only its range or its number of bad values."""
    if observation.size <= _NUMBERS_SHOWN:
        return str(observation.tolist())
    if observation.dtype.kind != "f" or np.isfinite(observation).all():
        return f"{observation.size} finite numbers from {observation.min()} to {observation.max()}"
    return f"{observation.size} numbers, {int((~np.isfinite(observation)).sum())} of them not finite"


# State-dependent noise: gSDE, generalised state-dependent exploration, of Raffin, Kober and Stulp (2021), "Smooth
# Exploration for Robotic Reinforcement Learning". An action's noise is z·θ, where z is the last hidden layer's output
# and θ [features, C] a matrix of independent draws from N(0, σ²). An agent keeps θ for several decisions, so its noise
# varies only with its observations. Each single action has a Gaussian distribution with the variance z²·σ² (eq. 5), to
# which Stable-Baselines3 adds `GSDE_EPSILON`. Trainers therefore see a Gaussian whose log σ depends on the state;
# `network.body` implements the same distribution in torch.

GSDE_EPSILON = 1e-6
"""Added to variances, and to log σ in `use_expln`, as in Stable-Baselines3."""


def noise_size(design: PolicyDesign, layout: Layout) -> int:
    """Return the size of an agent's noise row.

    The row holds a matrix and the number of further decisions that the matrix is valid for.
    """
    shape = design.log_sigma_shape(0) if design.gsde is not None and design.explores else None
    if shape is None:
        return 0
    features, _ = dict(layout)["log_sigma"]
    return 1 + features * design.spec.actions.continuous_size


class StateNoise:
    """The noise for one design's policies, scaled by the loaded log σ.

    Each agent has a row of `noise_size` numbers, all zero before its first decision. The matrix in that row holds
    standard normals, so a newer policy scales them by its own σ.
    """

    def __init__(self, design: PolicyDesign) -> None:
        assert design.gsde is not None, "the settings ask for it"
        self._settings = design.gsde
        self._continuous = design.spec.actions.continuous_size
        self._limit = design.mean_limit
        self._sigma = np.zeros((0, self._continuous), np.float32)

    def load(self, log_sigma: Floats) -> None:
        """Load a policy's log σ, [features, C] or [features, 1].

        With `use_expln` (eq. 6 of the paper), σ grows logarithmically above 1.
        """
        sigma = np.exp(log_sigma)
        if self._settings.use_expln:
            above = np.log1p(np.maximum(log_sigma, 0) + np.float32(GSDE_EPSILON)) + np.float32(1)
            sigma = np.where(log_sigma > 0, above, np.exp(np.minimum(log_sigma, 0)))
        self._sigma = np.repeat(sigma, self._continuous // sigma.shape[1], axis=1)

    def heads(self, outputs: Floats, encoding: Floats) -> Floats:
        """Return head outputs [d, 2C + choices], given the action layer's outputs [d, C + choices] and its inputs."""
        c = self._continuous
        means = np.clip(outputs[:, :c], -self._limit, self._limit) if self._limit else outputs[:, :c]
        variances = np.square(encoding) @ np.square(self._sigma)
        variances += np.float32(GSDE_EPSILON)
        return np.concatenate([means, np.float32(0.5) * np.log(variances), outputs[:, c:]], axis=1)

    def draw(self, encoding: Floats, kept: Floats | None, random: np.random.Generator) -> tuple[Floats, Floats]:
        """Draw the noise [d, C] for d agents; return the noise and the agents' rows for their next decisions.

        Args:
            encoding: [d, features] the last hidden layer's outputs.
            kept: the agents' rows, which are not modified; None for the first decision.
            random: the source of new matrices, for agents whose matrix has expired.
        """
        d, features = encoding.shape
        size = features * self._continuous
        kept = np.zeros((d, 1 + size), np.float32) if kept is None else kept.copy()
        over: NDArray[np.intp] = np.flatnonzero(kept[:, 0] <= 0)
        if len(over):
            kept[over, 0] = np.inf if self._settings.sample_freq < 0 else self._settings.sample_freq
            kept[over, 1:] = random.standard_normal((len(over), size), np.float32)
        kept[:, 0] -= 1
        matrices = kept[:, 1:].reshape(d, features, self._continuous) * self._sigma
        return np.matmul(encoding[:, None], matrices)[:, 0], kept
