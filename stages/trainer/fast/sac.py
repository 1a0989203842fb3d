"""SAC's update, accelerated: manual gradients on a CPU for perceptrons and continuous actions, and CUDA graphs.

This code replaces autograd for the network that most agents with continuous actions have. It records no graph, writes
the layers' results to buffers allocated once, and needs one pass of each Q for both (s, a) and (s, ã).
Autograd remains the reference: tests compare the two.

Axis letters: B rows, U units, C actions, S reward signals. Head outputs, values, and arrays computed from these have
rows last.

**Perceptrons** (`ManualPerceptron`). The equations are those of `perceptrons`, for one tower and for weights as torch
stores them: z = x·Wᵀ + b.

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
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.layers import SLOPE_OF_INPUT, TIMES_SLOPE, WRITE_ACTIVATION, to_device
from headrace.stages.policy.network.products import HiddenProducts
from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS
from headrace.stages.trainer.fast.cuda_graphs import CapturedStep, CudaGraphs, copied
from headrace.stages.trainer.fast.perceptrons import Head, Numbers, mean_of
from headrace.stages.trainer.replay.replay_memory import UpdateMeasures
from headrace.stages.trainer.sac import SACUpdate, StepInputs

Half = TypeVar("Half")

FEW = 32
"""Number of columns up to which NumPy's matrix products are faster than torch's."""
_ROWS_AT_ONCE = 32
"""Row counts are padded to multiples of this number, because oneDNN compiles kernels for each row count."""
_HALF_LOG_TWO_PI = 0.5 * log(2.0 * pi)


class ManualSACUpdate(SACUpdate):
    """Computes the gradients on the CPU without autograd, for plain designs with only continuous actions.

    Args:
        update: the update that this one replaces.
    """

    def __init__(self, update: SACUpdate) -> None:
        super().__init__(update.networks, update.design, update.settings, update.replicas)
        activation, products = update.design.settings.activation, HiddenProducts(update.design.products)
        actor = self.actor.module
        self._policy = ManualPerceptron(actor.body, actor.action, activation, products)
        self._qs, self._targets = (
            [ManualPerceptron(q.body, q.head, activation, products) for q in (both.module.q1, both.module.q2)]
            for both in (self.critics, self.target)
        )
        self._of_actor = [ActivationBuffers(self._policy) for _ in range(2)]
        """The policy's buffers for the observations, and for the next observations."""
        self._rooms = [ActivationBuffers(q) for q in self._qs]
        """The buffers of each target network, which the Q that it follows then overwrites."""
        self._beside = SideThread()
        self.threads_sleep = not products.alone

    def use_threads(self, threads: int) -> None:
        """See `SACUpdate.use_threads`."""
        if self.threads_sleep:
            self._beside.use(threads)
        else:
            torch.set_num_threads(threads)

    def find_gradients(self, inputs: StepInputs) -> UpdateMeasures:
        """Write the gradients of all networks; see `SACUpdate.find_gradients`."""
        batch, rewards, discounts, noise, _ = inputs
        seen, following = batch.critic_inputs.vectors, batch.target_inputs.vectors
        rows, alpha = seen.shape[0], float(np.exp(self.coefficients.values.numpy()[0]))
        with np.errstate(all="ignore"):  # the caller checks for NaN and infinity after the updates
            heads = self._both(lambda at: self._policy.forward((seen, following)[at], self._of_actor[at]))
            draw = _Draw(np.concatenate(heads, axis=1), noise.numpy().T)
            # NumPy takes a third of torch's time to put so few columns side by side.
            here, drawn_actions = seen.numpy(), draw.actions.T
            actions = np.concatenate((batch.continuous.numpy(), drawn_actions[:rows]))
            judged = torch.from_numpy(np.concatenate((np.concatenate((here, here)), actions), axis=1))
            following = torch.from_numpy(np.concatenate((following.numpy(), drawn_actions[rows:]), axis=1))

            def values_of(at: int) -> tuple[Numbers, Numbers]:
                """Return a target network's values [S, B], and its Q's for the actions taken, then drawn [S, 2B]."""
                room = self._rooms[at]
                return self._targets[at].forward(following, room), self._qs[at].forward(judged, room)

            after, both = zip(*self._both(values_of), strict=True)
            goals = np.minimum(*after)
            goals -= alpha * draw.log_probs[rows:]
            goals = rewards.numpy().T + discounts.numpy().T * goals
            taken, drawn = [values[:, :rows] for values in both], [values[:, rows:] for values in both]
            soft = np.minimum(*drawn) - alpha * draw.log_probs[:rows]
            if self.learns_coefficients:
                excess = mean_of(draw.log_probs[:rows]) + float(self.target_entropies[0])
                self.coefficients.gradients.fill_(-excess)
            errors = [values - goals for values in taken]
            squares = [0.5 * float(np.vdot(error, error)) / error.size for error in errors]
            self._backpropagate(errors, drawn, draw, alpha)
            losses = np.array([-mean_of(soft), *squares, 0.5 * sum(squares)], goals.dtype)
        q1, q2, targets, values, negentropies = (
            torch.from_numpy(measure.T) for measure in (*taken, goals, soft, draw.log_probs[None, :rows])
        )
        return UpdateMeasures(torch.from_numpy(losses), q1, q2, targets, values, negentropies, None)

    def _backpropagate(self, errors: Sequence[Numbers], drawn: Sequence[Numbers], draw: _Draw, alpha: float) -> None:
        """Write the gradients of both Qs and of the policy, which needs the Qs' gradients w.r.t. the drawn actions.

        Args:
            errors: for each Q, the errors [S, B] in its values for the actions taken.
            drawn: for each Q, its values [S, B] for the actions drawn.
            draw: the actions that the policy drew.
            alpha: the entropy coefficient.
        """
        rows, weight = errors[0].shape[1], 1.0 / errors[0].size
        of_errors = [weight * error for error in errors]
        of_actions = np.zeros((rows, len(draw.actions)), draw.actions.dtype)

        def by_actions(at: int) -> tuple[NDArray[np.intp], Numbers]:
            """Return the rows in which this Q is not the larger one, and its gradients [n, C] w.r.t. the actions."""
            q, room, ours, other = self._qs[at], self._rooms[at], drawn[at], drawn[1 - at]
            share = (-0.5 * weight) * ((ours < other).astype(ours.dtype) + (ours <= other))
            chosen = np.flatnonzero(share.any(axis=0))
            room.keep(rows, chosen)
            few = len(chosen)
            of_values = np.zeros((len(ours), rows + min(rows, few + -few % _ROWS_AT_ONCE)), ours.dtype)
            of_values[:, :rows], of_values[:, rows : rows + few] = of_errors[at], share[:, chosen]
            delta = q.back(of_values, room).numpy()[rows : rows + few]
            return chosen, delta @ q.inputs.numpy()[:, -of_actions.shape[1] :]

        for chosen, gradients in self._both(by_actions):
            of_actions[chosen] += gradients

        def policy() -> None:
            of_heads = draw.of_heads(of_actions.T, alpha / rows)
            self._policy.back(of_heads, self._of_actor[0])
            self._policy.learn(of_heads, self._of_actor[0])

        def critics() -> None:
            for q, of_values, room in zip(self._qs, of_errors, self._rooms, strict=True):
                q.learn(of_values, room)

        self._beside.both(policy, critics)

    def _both(self, half: Callable[[int], Half]) -> tuple[Half, Half]:
        return self._beside.both(partial(half, 0), partial(half, 1))


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
        actions, spread, within = (array[:, :rows] for array in (self.actions, self._spread, self._within))
        of_u = of_actions * (1.0 - actions * actions) + 2.0 * share * actions
        return np.concatenate([of_u, (of_u * spread - share) * within])


class ManualPerceptron:
    """A perceptron on the CPU: linear layers, with an activation after each layer except the last.

    Args:
        body: the hidden layers, whose parameters a `FlatParameters` has taken over.
        head: the last layer.
        activation: the activation's name.
        products: computes the matrix products of wide layers.
    """

    def __init__(self, body: NetworkBody, head: nn.Linear, activation: str, products: HiddenProducts) -> None:
        self.hidden = [_parameters(layer) for layer in body.layers if isinstance(layer, nn.Linear)]
        """Weight, bias, and their gradients, for each hidden layer."""
        self.inputs = self.hidden[0][0]
        """[U, V] the first layer's weights."""
        self._products = products
        for weight, *_ in self.hidden:
            if not products.rounds(weight):
                products.provider(weight)  # chosen by measuring, so before a second thread starts
        self._head_weight, bias, of_weight, of_bias = _parameters(head)
        self._head = Head(self._head_weight.t(), bias, of_weight.t(), of_bias)
        self._activate, self._slope = WRITE_ACTIVATION[activation], TIMES_SLOPE[activation]
        self.keeps_z = activation in SLOPE_OF_INPUT
        """Whether the activation's derivative is computed from the activation's input instead of its output."""

    def forward(self, x: Tensor, room: ActivationBuffers) -> Numbers:
        """Compute outputs [K, R] for rows [R, V]; `room` keeps the results that the backward pass needs."""
        rows = x.shape[0]  # a tensor's `len` is Python code
        room.hold(x)
        for (weight, bias, *_), zs, ys in zip(self.hidden, room.zs, room.ys, strict=True):
            z, y = zs[:rows], ys[:rows]
            self._products.layer(bias, x, weight, z)
            self._activate(z, y)
            x = y
        return self._head.forward(x.numpy())

    def back(self, of_outputs: Numbers, room: ActivationBuffers) -> Tensor:
        """Compute all layers' δ, for use by `learn`; return the first layer's δ [n, U].

        Args:
            of_outputs: [K, n] the loss's gradient with respect to the outputs of the first n rows.
            room: holds the results of the last forward pass, and receives the δ.
        """
        rows = of_outputs.shape[1]
        deltas = [delta[:rows] for delta in room.deltas]
        # BLAS takes three times as long for an outer product.
        multiply = torch.mul if len(of_outputs) == 1 else torch.mm
        multiply(torch.from_numpy(of_outputs).t(), self._head_weight, out=deltas[-1])
        kept = room.zs if self.keeps_z else room.ys
        for at in range(len(deltas) - 1, -1, -1):
            self._slope(deltas[at], kept[at][:rows])
            if at:
                weight = self.hidden[at][0]
                self._products.product(deltas[at], weight, deltas[at - 1], weight)
        return deltas[0]

    def learn(self, of_outputs: Numbers, room: ActivationBuffers) -> None:
        """Write the parameters' gradients.

        Args:
            of_outputs: [K, r] the loss's gradient with respect to the outputs of the first r rows.
            room: holds the δ that `back` computed.
        """
        rows = of_outputs.shape[1]
        self._head.backward(room.ys[-1][:rows].numpy(), of_outputs)
        for (weight, _, of_weight, of_bias), inputs, deltas in zip(
            self.hidden, (room.x, *room.ys), room.deltas, strict=False
        ):
            x, delta = inputs[:rows], deltas[:rows]
            torch.sum(delta, 0, out=of_bias)
            if x.shape[1] <= FEW:
                # With few columns, NumPy's matmul takes a third of the time.
                np.matmul(delta.numpy().T, x.numpy(), out=of_weight.numpy())
            else:
                self._products.product(delta.t(), x, of_weight, weight)


def _parameters(layer: nn.Linear) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a layer's weight and bias, and their gradients, which `FlatParameters` has set."""
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return layer.weight.detach(), layer.bias.detach(), layer.weight.grad, layer.bias.grad


class ActivationBuffers:
    """What a pass keeps for the backward pass. Networks with the same shape may share buffers, one after another.

    Args:
        network: one of the networks that use the buffers.
    """

    def __init__(self, network: ManualPerceptron) -> None:
        self._network = network
        self.x = torch.empty(0)
        """The rows of the last pass."""
        self.zs = self.ys = self.deltas = list[Tensor]()
        """By layer. The outputs y of activations overwrite the inputs z if the inputs are no longer needed."""

    def hold(self, x: Tensor) -> None:
        """Keep the rows [R, V] of a pass, and make room for them."""
        self.x = x
        if not self.zs or self.zs[0].shape[0] < x.shape[0]:
            sizes = [len(weight) for weight, *_ in self._network.hidden]
            self.zs, self.deltas = ([x.new_empty(len(x), size) for size in sizes] for _ in range(2))
            self.ys = [torch.empty_like(z) for z in self.zs] if self._network.keeps_z else self.zs

    def keep(self, rows: int, chosen: NDArray[np.intp]) -> None:
        """Drop all rows after the first `rows`, except the rows `chosen`.

        These are ascending indices, counted from row `rows`.
        """
        for kept in self.zs:  # δ is computed only at these
            of_layer = kept.numpy()[rows:]
            of_layer[: len(chosen)] = of_layer.take(chosen, axis=0)


class CapturedSACUpdate(SACUpdate):
    """Takes gradient steps as CUDA graphs, for networks without memory.

    Args:
        update: the update that this one replaces.
        graphs: captures the steps.
        tell: called once with the reason if steps are not captured.
    """

    def __init__(self, update: SACUpdate, graphs: CudaGraphs, tell: Callable[[str], None]) -> None:
        super().__init__(update.networks, update.design, update.settings, update.replicas)
        self._captured = CapturedStep(super()._take_step, graphs, tell)
        self._rate: float | Tensor = 0.0
        self._rate_there = torch.zeros((), device=self.actor.values.device)
        """The learning rate, as a tensor on the device."""

    def _take_step(self, inputs: StepInputs, share: float = 1.0) -> UpdateMeasures:
        """Take a gradient step, by replaying its graph if that has been captured.

        A graph never changes, so it includes the move of the targets only if every step makes one.
        """
        if inputs.learning_rate != self._rate:
            self._rate = inputs.learning_rate
            self._rate_there = to_device(torch.tensor(self._rate), self._rate_there.device)
        measures = self._captured(inputs._replace(learning_rate=self._rate_there))
        for adam in self._moving:
            adam.steps += 1
        return copied(measures)


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

    def both(self, here: Callable[[], One], beside: Callable[[], Other]) -> tuple[One, Other]:
        """Return the results of two functions; `beside` may be called in the other thread."""
        if self._executor is None:
            return here(), beside()
        other = self._executor.submit(beside)
        try:
            one = here()
        except BaseException:
            other.exception()  # `beside` writes to buffers that the caller may reuse
            raise
        return one, other.result()


def _begin(threads: int) -> None:
    """Set up the side thread like an update's thread; see `flushed_denormals`. NaN and infinity are checked later."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    np.seterr(all="ignore")
