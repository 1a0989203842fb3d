"""What Q is compared with in sequences, against networks with an LSTM written out in NumPy."""

import numpy as np
import torch

from headrace.config import NetworkSettings, SACHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.protocol import new_random
from headrace.stages.trainer.replay.replay_memory import ReplayMinibatch
from headrace.stages.trainer.sac import SACNetworks, SACUpdate

SEQUENCES, LENGTH, WIDTH, ACTIONS, SIGNALS, REMEMBERED = 2, 3, 3, 2, 2, 4


def make_update():
    memory = {"memory_size": REMEMBERED, "sequence_length": LENGTH}
    settings = NetworkSettings(hidden_units=8, num_layers=1, activation="tanh", memory=memory)
    spec = BehaviorSpec("Test", (ObservationSpec("o", (WIDTH,)),), ActionSpec(ACTIONS))
    design, hyperparameters = PolicyDesign(spec, settings, squashed=True), SACHyperparameters()
    return SACUpdate(SACNetworks.drawn(design, hyperparameters, SIGNALS, new_random(4), "cpu"), design, hyperparameters)


def numbers(random, *shape):
    return random.normal(size=shape).astype(np.float32)


def rows(sequences):
    """Tensors of sequences [S, T, ...] end to end."""
    return torch.from_numpy(sequences.reshape(-1, sequences.shape[-1]).copy())


def remembering(weights, prefix, x):
    """What a network with a memory says [S, T, ...] of x [S, T, inputs], beginning with an empty memory."""
    w = {name.removeprefix(prefix): array.astype(np.float64) for name, array in weights.items()}
    sigmoid = lambda z: 1.0 / (1.0 + np.exp(-z))  # noqa: E731
    h = c = np.zeros((len(x), REMEMBERED // 2))
    said = []
    for t in range(x.shape[1]):
        hidden = np.tanh(x[:, t] @ w["body.layers.0.weight"].T + w["body.layers.0.bias"])
        gates = hidden @ w["body.memory.lstm.weight_ih_l0"].T + w["body.memory.lstm.bias_ih_l0"]
        gates = gates + h @ w["body.memory.lstm.weight_hh_l0"].T + w["body.memory.lstm.bias_hh_l0"]
        enter, forget, cell, leave = np.split(gates, 4, axis=1)
        c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(cell)
        h = sigmoid(leave) * np.tanh(c)
        said.append(h @ w["head.weight"].T + w["head.bias"])
    return np.stack(said, axis=1)


def test_q_learns_the_targets_of_sequences():
    update, random = make_update(), np.random.default_rng(0)
    observed = numbers(random, SEQUENCES, LENGTH + 1, WIDTH)  # the last one is what followed the sequence
    actions = np.tanh(numbers(random, SEQUENCES, LENGTH + 1, ACTIONS))  # the first one is what was done before it
    rewards, discounts = numbers(random, SEQUENCES, LENGTH, SIGNALS), np.array([0.9, 0.5]) * np.ones((2, 3, 1))
    discounts[0, 1, 0] = 0.0
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.float32)
    empty = torch.zeros(SEQUENCES, REMEMBERED)
    critic_inputs = Inputs(rows(observed[:, :-1]), (), rows(actions[:, :-1]), empty, LENGTH)
    target_inputs = Inputs(rows(observed), (), rows(actions), empty, LENGTH + 1)
    remembered = torch.from_numpy(numbers(random, SEQUENCES, REMEMBERED))
    batch = ReplayMinibatch(
        critic_inputs._replace(memories=remembered),
        critic_inputs,
        target_inputs,
        rows(actions[:, 1:]),
        (),
        None,
        None,
        torch.from_numpy(mask.reshape(-1)),
    )
    weights = update.weights()
    noise = torch.from_numpy(numbers(random, SEQUENCES * LENGTH, ACTIONS))
    measures = update.step(batch, rows(rewards), rows(discounts.astype(np.float32)), noise, 1e-3)

    valued = remembering(weights["target"], "", np.concatenate((observed, actions), axis=2))
    targets = rewards + discounts * valued[:, 1:]
    seen = np.concatenate((observed[:, :-1], actions[:, :-1], actions[:, 1:]), axis=2)
    for at, name in ((1, "q1."), (2, "q2.")):
        own = {key: array for key, array in weights["critics"].items() if key.startswith(name)}
        errors = 0.5 * (remembering(own, name, seen) - targets) ** 2
        np.testing.assert_allclose(measures.losses[at], errors[mask > 0].mean(), rtol=1e-4)
