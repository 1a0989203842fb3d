"""The gradients of SAC's losses, derived by hand, for perceptrons and continuous actions.

This code replaces autograd for the network that most agents with continuous actions have. It records no graph, writes
large arrays to buffers allocated once, and needs one pass of the policy for both s and s', and one pass of each Q for
both (s, a) and (s, ã). Autograd remains the reference: tests compare the two.

Axis letters: B rows, U units, C actions, S reward signals. Head outputs, values, and arrays computed from these have
rows last.

**Perceptrons** (`by_hand`). A layer is y = f(z) with z = x·Wᵀ + b, outputs are h = Wₕ·yᵀ + bₕ. Given ∂L/∂h,

    ∂L/∂Wₕ = ∂L/∂h·y     ∂L/∂bₕ = Σ_B ∂L/∂h     ∂L/∂y = ∂L/∂hᵀ·Wₕ

and from the last layer to the first, with δ = ∂L/∂z = ∂L/∂y ⊙ f′(z),

    ∂L/∂W = δᵀ·x         ∂L/∂b = Σ_B δ           ∂L/∂x = δ·W.

**The policy.** With noise ε, log σ within its limits, u = μ + σ·ε and ã = tanh u,

    log π = Σ_C -ε²/2 - log σ - log(2π)/2 - log(1 - ã²),     ∂log π/∂u = 2ã,     ∂log π/∂log σ = -1 + 2ã·σ·ε.

**Losses.** With y = r + γ·(min Q′(s', ã') - α·log π'), Q's loss is the mean of (Q(s, a) - y)²/2 over B and S, and the
policy's loss is the mean of α·log π - min Q(s, ã), so

    ∂L/∂Q(s, a) = (Q - y)/BS     ∂L/∂Q(s, ã) = -1/BS for the smaller Q, and half of that if both are equal
    ∂L/∂u = ∂L/∂ã·(1 - ã²) + α/B·2ã     ∂L/∂μ = ∂L/∂u     ∂L/∂log σ = ∂L/∂u·σ·ε - α/B (0 beyond the limits).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import log, pi
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.config import SACHyperparameters
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.layers import to_device
from headrace.stages.policy.network.products import HiddenProducts
from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS
from headrace.stages.trainer.gradients import CapturedStep, Graphs, copied, graphs_for, say_autograd, say_uncaptured
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.sac.by_hand import HandPerceptron, Numbers, Room
from headrace.stages.trainer.sac.minibatch import ReplayMinibatch, UpdateMeasures
from headrace.stages.trainer.sac.update import SACSteps, SACUpdate

Half = TypeVar("Half")

_ROWS_AT_ONCE = 32
"""Row counts are padded to multiples of this number, because oneDNN compiles kernels for each row count."""
_HALF_LOG_TWO_PI = 0.5 * log(2.0 * pi)


class SACByHand:
    """Computes the gradients of a `SACUpdate` on the CPU, for plain designs with only continuous actions.

    Args:
        design: the policy's design.
        update: the update whose networks' parameters are read, and whose gradients are overwritten.
    """

    def __init__(self, design: PolicyDesign, update: SACUpdate) -> None:
        products = HiddenProducts(design.products)

        def by_hand(body: NetworkBody, head: nn.Linear) -> HandPerceptron:
            layers = [layer for layer in body.layers if isinstance(layer, nn.Linear)]
            return HandPerceptron([*layers, head], design.settings.activation, products)

        self._actor = by_hand(update.actor.module.body, update.actor.module.action)
        self._critics, self._targets = (
            [by_hand(q.body, q.head) for q in (both.module.q1, both.module.q2)]
            for both in (update.critics, update.target)
        )
        self._actions = design.spec.actions.continuous_size
        self._coefficients = update.coefficients
        self._entropy = float(update.target_entropies[0]) if update.learns_coefficients else None
        """The target entropy; None if the entropy coefficient is fixed."""
        self._beside = SideThread()
        self.use_threads = torch.set_num_threads if products.alone else self._beside.use
        """Sets the number of threads to compute with from now on."""
        self._seen: tuple[Tensor, Tensor]
        """The observations and the next observations, each [B, V]."""
        self._make_room(0, self._actor.inputs.shape[1])

    def __call__(self, batch: ReplayMinibatch, rewards: Tensor, discounts: Tensor, noise: Tensor) -> UpdateMeasures:
        """Write the gradients of all networks; the arguments are those of `SACUpdate.step`."""
        self._take_in(batch)
        rows = rewards.shape[0]
        alpha = float(np.exp(self._coefficients.values.numpy()[0]))
        with np.errstate(all="ignore"):  # the caller checks for NaN and infinity after the updates
            heads = self._both(lambda at: self._actor.forward(self._seen[at], self._of_actor[at]))
            draw = _Draw(np.concatenate(heads, axis=1), noise.numpy().T)
            width = self._seen[0].shape[1]
            self._judged.numpy()[rows:, width:] = draw.actions[:, :rows].T
            self._following.numpy()[:, width:] = draw.actions[:, rows:].T
            after, both = zip(*self._both(self._valued), strict=True)
            goals = np.minimum(*after)
            goals -= alpha * draw.log_probs[rows:]
            goals = rewards.numpy().T + discounts.numpy().T * goals
            taken, drawn = [values[:, :rows] for values in both], [values[:, rows:] for values in both]
            soft = np.minimum(*drawn) - alpha * draw.log_probs[:rows]
            if self._entropy is not None:
                self._coefficients.gradients.fill_(-(_mean(draw.log_probs[:rows]) + self._entropy))
            errors = [values - goals for values in taken]
            squares = [0.5 * float(np.vdot(each, each)) / each.size for each in errors]
            self._back(errors, drawn, draw, alpha)
            losses = np.array([-_mean(soft), *squares, 0.5 * sum(squares)], goals.dtype)
        q1, q2, targets, values, negentropies = (
            torch.from_numpy(found.T) for found in (*taken, goals, soft, draw.log_probs[None, :rows])
        )
        return UpdateMeasures(torch.from_numpy(losses), q1, q2, targets, values, negentropies, None)

    def _valued(self, at: int) -> tuple[Numbers, Numbers]:
        """Return the values computed by one target network, and by its Q.

        The target network's values [S, B] are those of the next observations. The Q's values [S, 2B] are those of the
        actions taken, followed by those of the actions drawn.
        """
        room = self._rooms[at]
        return self._targets[at].forward(self._following, room), self._critics[at].forward(self._judged, room)

    def _back(self, errors: Sequence[Numbers], drawn: Sequence[Numbers], draw: _Draw, alpha: float) -> None:
        """Write the gradients of both Qs and of the policy, which needs the Qs' gradients w.r.t. the drawn actions.

        Args:
            errors: for each Q, the errors [S, B] in its values for the actions taken.
            drawn: for each Q, its values [S, B] for the actions drawn.
            draw: the actions that the policy drew.
            alpha: the entropy coefficient.
        """
        rows, each = errors[0].shape[1], 1.0 / errors[0].size
        of_errors = [each * found for found in errors]

        def by_actions(at: int) -> tuple[NDArray[np.intp], Numbers]:
            """Return the rows in which this Q is not the larger one, and its gradients [n, C] w.r.t. the actions."""
            q, room, ours, other = self._critics[at], self._rooms[at], drawn[at], drawn[1 - at]
            share = (-0.5 * each) * ((ours < other).astype(ours.dtype) + (ours <= other))
            chosen = np.flatnonzero(share.any(axis=0))
            room.keep(rows, chosen)
            few = len(chosen)
            of_values = np.zeros((len(ours), rows + min(rows, few + -few % _ROWS_AT_ONCE)), ours.dtype)
            of_values[:, :rows], of_values[:, rows : rows + few] = of_errors[at], share[:, chosen]
            delta = q.back(of_values, room).numpy()[rows : rows + few]
            return chosen, delta @ q.inputs.numpy()[:, -self._actions :]

        of_actions = np.zeros((rows, self._actions), draw.actions.dtype)
        for chosen, found in self._both(by_actions):
            of_actions[chosen] += found

        def policy() -> None:
            of_heads = draw.of_heads(of_actions.T, alpha / rows)
            self._actor.back(of_heads, self._of_actor[0])
            self._actor.learn(of_heads, self._of_actor[0])

        def critics() -> None:
            for q, of_values, room in zip(self._critics, of_errors, self._rooms, strict=True):
                q.learn(of_values, room)

        self._beside.both(policy, critics)

    def _both(self, half: Callable[[int], Half]) -> tuple[Half, Half]:
        return self._beside.both(partial(half, 0), partial(half, 1))

    def _take_in(self, batch: ReplayMinibatch) -> None:
        """Copy the networks' inputs to buffers, except for the actions that will be drawn."""
        seen, following = batch.critic_inputs.vectors, batch.target_inputs.vectors
        rows, width = seen.shape
        if self._following.shape[0] != rows:
            self._make_room(rows, width)
        self._seen = seen, following
        judged = self._judged.numpy()
        judged[:rows, :width] = judged[rows:, :width] = seen.numpy()
        judged[:rows, width:] = batch.continuous.numpy()
        self._following.numpy()[:, :width] = following.numpy()

    def _make_room(self, rows: int, width: int) -> None:
        def empty(rows: int, width: int) -> Tensor:
            return torch.empty((rows, width), dtype=self._actor.inputs.dtype)

        self._judged, self._following = empty(2 * rows, width + self._actions), empty(rows, width + self._actions)
        self._of_actor = [Room(self._actor, rows) for _ in range(2)]
        self._rooms = [Room(q, 2 * rows) for q in self._critics]


class _Draw:
    """The actions that a policy draws, given head outputs [2C, R] and noise [C, R].

    Attributes:
        actions: [C, R] the actions drawn.
        log_probs: [R] log-probabilities of the joint actions.
    """

    def __init__(self, heads: Numbers, noise: Numbers) -> None:
        mean, unlimited = np.split(heads, 2)
        log_sigma = np.clip(unlimited, *LOG_SIGMA_LIMITS)
        self._within = log_sigma == unlimited
        self._spread = np.exp(log_sigma) * noise
        u = mean + self._spread
        size = np.abs(u)
        # log(1 - tanh² u), which is exact even if tanh u is rounded to ±1.
        log_slope = 2.0 * (log(2.0) - size - np.log1p(np.exp(-2.0 * size)))
        self.actions: Numbers = np.tanh(u)
        self.log_probs: Numbers = np.add.reduce(-0.5 * noise * noise - log_sigma - _HALF_LOG_TWO_PI - log_slope, axis=0)

    def of_heads(self, of_actions: Numbers, share: float) -> Numbers:
        """Return the loss's gradient with respect to the head outputs [2C, n], for the first n rows.

        Args:
            of_actions: [C, n] the loss's gradient with respect to the actions.
            share: the loss's gradient with respect to log π, which is the same for all rows.
        """
        rows = of_actions.shape[1]
        actions, spread, within = (each[:, :rows] for each in (self.actions, self._spread, self._within))
        of_u = of_actions * (1.0 - actions * actions) + 2.0 * share * actions
        return np.concatenate([of_u, (of_u * spread - share) * within])


def _mean(values: Numbers) -> float:
    """Return the mean, like `values.mean()` but without its checks."""
    return float(np.add.reduce(values, axis=None)) / values.size


# Gradient steps captured as CUDA graphs, and the choice between all ways to compute gradients.


class _Drawn(NamedTuple):
    """Everything that changes from one gradient step to the next; see `SACUpdate.step`."""

    batch: ReplayMinibatch
    rewards: Tensor
    discounts: Tensor
    noise: Tensor
    learning_rate: Tensor
    """The learning rate, a scalar."""


class CapturedSACSteps:
    """Takes gradient steps as CUDA graphs, for networks without memory, as the `advance` of a `SACUpdate`.

    Args:
        update: the update whose steps are captured.
        graphs: captures the steps.
        tell: called once with the reason if steps are not captured.
    """

    def __init__(self, update: SACUpdate, graphs: Graphs, tell: Callable[[str], None]) -> None:
        self._update = update
        # Perceptrons keep their results in buffers, which are replaced if the number of rows changes.
        self._captured = CapturedStep(self._step, graphs, tell, most=1)
        self._rate = 0.0
        self._rate_there = torch.zeros((), device=update.actor.values.device)
        """The learning rate, as a tensor on the device."""

    def __call__(
        self,
        batch: ReplayMinibatch,
        rewards: Tensor,
        discounts: Tensor,
        noise: Tensor,
        learning_rate: float,
        share: float = 1.0,
    ) -> UpdateMeasures:
        """Take a gradient step of all networks, by replaying its graph if that has been captured; see `SACUpdate`."""
        if learning_rate != self._rate:
            self._rate = learning_rate
            self._rate_there = to_device(torch.tensor(learning_rate), self._rate_there.device)
        found = self._captured(_Drawn(batch, rewards, discounts, noise, self._rate_there))
        for adam in self._update.moving:
            adam.steps += 1
        return copied(found)

    def _step(self, drawn: _Drawn) -> UpdateMeasures:
        # Torch accepts a zero-dimensional tensor wherever it accepts a number, but its type hints do not show that.
        rate = cast("float", drawn.learning_rate)
        return self._update.step(drawn.batch, drawn.rewards, drawn.discounts, drawn.noise, rate)


def make_update(
    context: TrainerContext,
    design: PolicyDesign,
    hyperparameters: SACHyperparameters,
    signals: int,
    random: np.random.Generator,
) -> SACUpdate:
    """Make the update that the settings require; if autograd computes its gradients, log why."""
    arguments = design, hyperparameters, signals, random, context.device, context.replicas
    why = _why_autograd(context, design)
    if why is not None:
        say_autograd(context, why)
    update = SACUpdate(*arguments)
    if why is None:
        update.find_gradients = by_hand = SACByHand(design, update)
        update.use_threads = by_hand.use_threads
    graphs = graphs_for(context)
    if graphs is not None:
        update.advance = CapturedSACSteps(update, graphs, partial(say_uncaptured, context))
    if update.target_update_interval > 1:
        update.advance = partial(_followed_seldom, update, update.advance)
    return update


def _followed_seldom(update: SACUpdate, advance: SACSteps, *arguments: Any) -> UpdateMeasures:
    """Take a gradient step, then move the targets if a move is due.

    The graph never changes, so it can't include the move.
    """
    measures = advance(*arguments)
    if update.steps % update.target_update_interval == 0:
        update.follow()
    return measures


def _why_autograd(context: TrainerContext, design: PolicyDesign) -> str | None:
    """Return the reason, as text, why gradients can't be computed by hand; None if they can."""
    if context.autograd:
        return "torch_settings.gradients requests autograd"
    if not design.plain:
        return "its networks are more than perceptrons over vectors"
    if design.spec.actions.discrete_branches:
        return "some of its actions are discrete"
    if design.gsde is not None:
        return "its noise depends on the state (network_settings.gsde)"
    if not context.device.startswith("cpu"):
        return f"it learns on {context.device}"
    return None


# A second thread for independent halves of a step: results are bit-identical to calling them in sequence, but faster.


One = TypeVar("One")
Other = TypeVar("Other")


class SideThread:
    """Calls two functions in parallel, or one after the other if there is only one thread to compute with.

    NumPy and torch release the GIL while they compute. Unlike their worker threads, this thread sleeps until there is
    work. If an actor also needs the core, OpenMP's threads, which spin, take ten times as long as a single thread.
    """

    def __init__(self) -> None:
        self._threads = 1
        self._executor: ThreadPoolExecutor | None = None

    def use(self, threads: int) -> None:
        """Compute with `threads` threads from now on, half of them for each function."""
        torch.set_num_threads(max(1, threads // 2))
        if threads != self._threads:
            self._threads = threads
            self._executor = (
                ThreadPoolExecutor(1, initializer=_begin, initargs=(threads // 2,)) if threads > 1 else None
            )

    def both(self, here: Callable[[], One], there: Callable[[], Other]) -> tuple[One, Other]:
        """Return the results of two functions; `there` may be called in the other thread."""
        if self._executor is None:
            return here(), there()
        other = self._executor.submit(there)
        try:
            one = here()
        except BaseException:
            other.exception()  # `there` writes to buffers that the caller may reuse
            raise
        return one, other.result()


def _begin(threads: int) -> None:
    """Set up the side thread like an update's thread; see `flushed_denormals`. NaN and infinity are checked later."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    np.seterr(all="ignore")
