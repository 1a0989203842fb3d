"""PPO on CartPole-v1 in eager torch with fused Adam, written in the obvious way, without Headrace code.

    OMP_NUM_THREADS=1 python benchmarks/reference_torch_ppo.py --steps 250000 --seed 0

The second reference of `benchmarks/compare.py`, with the environment, hyperparameters and output of the first one,
`reference_numpy_ppo.py`: 64 environments × 32 steps, minibatches of 256, 4 epochs, two towers of 2×64 tanh units,
autograd, one thread.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from reference_numpy_ppo import (
    ADAM_EPSILON,
    BATCH,
    CLIP,
    ENVS,
    EPOCHS,
    GAMMA,
    NORM,
    RATE,
    TICKS,
    UNITS,
    CartPoles,
    Record,
    advantages_of,
)
from torch import Tensor, nn
from torch.distributions import Categorical


class Agent(nn.Module):
    """Policy and value networks, in separate towers."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.values = tower(2, 0.01), tower(1, 1.0)

    def forward(self, observations: Tensor) -> tuple[Categorical, Tensor]:
        """Return the action distribution and the values [B]."""
        return Categorical(logits=self.policy(observations)), self.values(observations)[:, 0]


def tower(outputs: int, gain: float) -> nn.Sequential:
    """Return a tower with two hidden layers, orthogonally initialised."""
    layers = nn.Linear(4, UNITS), nn.Linear(UNITS, UNITS), nn.Linear(UNITS, outputs)
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def learn(agent: Agent, adam: torch.optim.Adam, rows: dict[str, Tensor]) -> None:
    """Take one gradient step on a minibatch."""
    distribution, values = agent(rows["observations"])
    advantages = rows["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = torch.exp(distribution.log_prob(rows["actions"]) - rows["log_probs"])
    clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
    policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
    loss = policy_loss + 0.5 * nn.functional.mse_loss(values, rows["returns"])
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), NORM)
    adam.step()


def main() -> None:
    """Train and print the measurements."""
    record = Record(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(record.seed)
    envs, agent = CartPoles(ENVS, np.random.default_rng(record.seed)), Agent()
    adam = torch.optim.Adam(agent.parameters(), lr=RATE, eps=ADAM_EPSILON, fused=True)
    observations, actions = torch.zeros(TICKS, ENVS, 4), torch.zeros(TICKS, ENVS, dtype=torch.int64)
    log_probs, rewards, ended = (torch.zeros(TICKS, ENVS) for _ in range(3))
    values = torch.zeros(TICKS + 1, ENVS)
    while record.goes_on():
        with torch.no_grad():
            for tick in range(TICKS):
                t0 = time.process_time()
                observations[tick] = torch.from_numpy(envs.observations)
                distribution, values[tick] = agent(observations[tick])
                actions[tick] = distribution.sample()
                log_probs[tick] = distribution.log_prob(actions[tick])
                t1 = time.process_time()
                fallen, late, last = envs.step(actions[tick].numpy())
                ended[tick] = torch.from_numpy(fallen | late)
                rewards[tick] = 1.0
                record.stages["deciding"] += t1 - t0
                record.stages["stepping"] += time.process_time() - t1
                if late.any():  # truncated, not terminated: bootstrap from the critic's value
                    cut = torch.from_numpy(late)
                    rewards[tick][cut] += GAMMA * agent.values(torch.from_numpy(last))[cut, 0]
            t0 = time.process_time()
            values[TICKS] = agent.values(torch.from_numpy(envs.observations))[:, 0]
        advantages = torch.from_numpy(advantages_of(rewards.numpy(), values.numpy(), ended.numpy()))
        rows = {
            "observations": observations.reshape(-1, 4),
            "actions": actions.reshape(-1),
            "log_probs": log_probs.reshape(-1),
            "advantages": advantages.reshape(-1),
            "returns": (advantages + values[:-1]).reshape(-1),
        }
        for _ in range(EPOCHS):
            for chosen in torch.randperm(ENVS * TICKS).split(BATCH):
                learn(agent, adam, {name: column[chosen] for name, column in rows.items()})
        record.stages["update"] += time.process_time() - t0
        record.add(envs)
    record.print(envs)


if __name__ == "__main__":
    main()
