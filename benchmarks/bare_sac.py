"""SAC on one page: Stable-Baselines3's networks, hyperparameters and random draws, and none of its code, nor of ours.

    python benchmarks/bare_sac.py --seeds 0 --steps 3000 --peer PYTHON    are the weights the peer's, bit for bit?
    python benchmarks/bare_sac.py --seeds 0 1 2                           50,000 steps of HalfCheetah-v5 each
    python benchmarks/bare_sac.py --seeds 0 1 2 --change warm-up          with one part as Headrace has it

`PYTHON` is an interpreter with stable-baselines3 2.9.2 and the same versions of torch, NumPy and Gymnasium as here.
`--change` replaces parts: `warm-up` acts with the untrained policy instead of uniformly; `order` takes all gradients
before any weight changes; `log-prob` is the exact logarithm of tanh's slope, without 1e-6; `late` acts with a policy
that is 8 to 16 steps old; `bit` adds 1e-7 to one
initial weight, which changes no part: what it changes in the return is luck.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
from collections.abc import Callable
from math import log

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import mse_loss, softplus

ENV, WARM_UP, BATCH, TAU, GAMMA, RATE = "HalfCheetah-v5", 2000, 256, 0.005, 0.99, 3e-4
LATE = 8
"""Steps between two copies that act, by `--change late`: the acting policy is 8 to 16 steps old, as in Headrace."""
CHANGES = ("warm-up", "order", "log-prob", "late", "bit")
Floats = NDArray[np.float32]
PEER = f"""
import sys, torch, gymnasium, stable_baselines3
torch.set_num_threads(1)
model = stable_baselines3.SAC("MlpPolicy", gymnasium.make("{ENV}"), learning_rate={RATE}, buffer_size=100_000,
    device="cpu", learning_starts={WARM_UP}, batch_size={BATCH}, tau={TAU}, gamma={GAMMA}, seed=int(sys.argv[1]))
model.learn(int(sys.argv[2]))
print(sum(float(weight.detach().double().abs().sum()) for weight in model.actor.parameters()))
"""


class Actor(nn.Module):
    """Mean and deviation of a Gaussian by observation; actions are tanh of its draws."""

    def __init__(self, observed: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observed, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.mean, self.log_std = nn.Linear(256, actions), nn.Linear(256, actions)

    def forward(self, observations: Tensor) -> torch.distributions.Normal:
        """The Gaussian."""
        x = self.body(observations)
        return torch.distributions.Normal(self.mean(x), self.log_std(x).clamp(-20, 2).exp())

    def draw(self, observations: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
        """Actions [B, C], and their log-probabilities [B, 1]."""
        gaussian = self(observations)
        u = gaussian.rsample()
        actions, size = torch.tanh(u), u.abs()
        slope = 2 * (log(2) - size - softplus(-2 * size)) if exact else torch.log(1 - actions**2 + 1e-6)
        return actions, (gaussian.log_prob(u).sum(dim=1) - slope.sum(dim=1)).reshape(-1, 1)

    @torch.no_grad()
    def act(self, observation: Floats, best: bool = False) -> Floats:
        """One action, drawn or the most likely one."""
        gaussian = self(torch.as_tensor(observation[None]).float())
        action: Floats = torch.tanh(gaussian.mean if best else gaussian.rsample()).numpy()[0]
        return action


def q_network(width: int) -> nn.Sequential:
    """The value of an observation and an action beside it."""
    return nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


def run(seed: int, steps: int, changes: set[str]) -> tuple[Actor, list[float]]:
    """Train; returns the actor, and the returns of the training episodes."""
    np.random.seed(seed)  # the peer draws from NumPy's global generator
    torch.manual_seed(seed)
    env = gymnasium.make(ENV)
    env.action_space.seed(seed)
    observed, c = env.observation_space.shape[0], env.action_space.shape[0]
    actor = Actor(observed, c)
    first, second, first_target, second_target = (q_network(observed + c) for _ in range(4))
    first_target.load_state_dict(first.state_dict())
    second_target.load_state_dict(second.state_dict())
    if "bit" in changes:
        actor.mean.bias.data[0] += 1e-7
    weights = [*first.parameters(), *second.parameters()]
    targets = [*first_target.parameters(), *second_target.parameters()]
    log_alpha = torch.zeros(1, requires_grad=True)
    learn_actor, learn_critics, learn_alpha = (
        torch.optim.Adam(of, RATE) for of in (actor.parameters(), weights, [log_alpha])
    )
    widths = {"seen": observed, "next": observed, "action": c, "reward": 1, "terminated": 1}
    memory = {name: np.zeros((steps, width), np.float32) for name, width in widths.items()}
    to_box, from_box = _scaling(env.action_space)
    exact, episode, returns = "log-prob" in changes, 0.0, []
    acting, published = (copy.deepcopy(actor), copy.deepcopy(actor)) if "late" in changes else (actor, actor)
    seen, _ = env.reset(seed=seed)
    for step in range(steps):
        uniform = step < WARM_UP and "warm-up" not in changes
        if "late" in changes and step % LATE == 0:
            acting, published = published, copy.deepcopy(actor)
        action = from_box(env.action_space.sample() if uniform else to_box(acting.act(seen)))
        after, reward, terminated, truncated, _ = env.step(to_box(action))
        for name, value in zip(memory, (seen, after, action, reward, terminated), strict=True):
            memory[name][step] = value
        seen, episode = after, episode + float(reward)
        if terminated or truncated:
            returns.append(episode)
            (seen, _), episode = env.reset(), 0.0
        if step < WARM_UP:
            continue
        rows = np.random.randint(0, step + 1, size=BATCH)
        s, s2, a, r, end = (torch.from_numpy(column[rows]) for column in memory.values())
        drawn, log_probs = actor.draw(s, exact)
        alpha = log_alpha.detach().exp()
        learn_alpha.zero_grad()
        (-(log_alpha * (log_probs - c).detach()).mean()).backward()
        learn_alpha.step()
        with torch.no_grad():
            next_drawn, next_log_probs = actor.draw(s2, exact)
            x = torch.cat((s2, next_drawn), dim=1)
            next_values = torch.min(first_target(x), second_target(x)) - alpha * next_log_probs
            wanted = r + (1 - end) * GAMMA * next_values
        x = torch.cat((s, a), dim=1)
        learn_critics.zero_grad()
        (0.5 * (mse_loss(first(x), wanted) + mse_loss(second(x), wanted))).backward()
        if "order" not in changes:
            learn_critics.step()
        x = torch.cat((s, drawn), dim=1)
        learn_actor.zero_grad()
        loss = (alpha * log_probs - torch.min(first(x), second(x))).mean()
        torch.autograd.backward(loss, inputs=list(actor.parameters()))
        if "order" in changes:
            learn_critics.step()
        learn_actor.step()
        with torch.no_grad():
            for weight, target in zip(weights, targets, strict=True):
                target.mul_(1 - TAU).add_(weight, alpha=TAU)
    return actor, returns


def _scaling(space: gymnasium.spaces.Box) -> tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """From [-1, 1] to the environment's bounds, and back, rounded as the peer does it."""
    low, high = space.low, space.high
    return (
        lambda action: low + 0.5 * (action + 1.0) * (high - low),
        lambda action: 2.0 * ((action - low) / (high - low)) - 1.0,
    )


def evaluate(actor: Actor, seed: int, episodes: int = 30) -> float:
    """Mean return of deterministic episodes in a fresh environment, as in `learning.py`."""
    env, returns = gymnasium.make(ENV), []
    for episode in range(episodes):
        seen, _ = env.reset(seed=10_000 + 1000 * seed + episode)
        total, over = 0.0, False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(actor.act(seen, best=True))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    """Print a line per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--change", choices=CHANGES, action="append", default=[])
    parser.add_argument(
        "--peer", metavar="PYTHON", help="compare the actor's weights with the peer's, and evaluate nothing"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in asked.seeds:
        actor, returns = run(seed, asked.steps, set(asked.change))
        shown = " ".join(f"{value:.0f}" for value in returns[4::5])
        if asked.peer is None:
            print(f"seed {seed}: {evaluate(actor, seed):.0f}; every fifth training episode: {shown}", flush=True)
            continue
        own = sum(float(weight.detach().double().abs().sum()) for weight in actor.parameters())
        command = [asked.peer, "-c", PEER, str(seed), str(asked.steps)]
        other = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
        print(f"seed {seed}: weights {own}, the peer's {other}: {'equal' if own == other else 'NOT equal'}", flush=True)


if __name__ == "__main__":
    main()
