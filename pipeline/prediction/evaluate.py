"""Measures a policy's returns in any environment object: single, vectorised or multi-agent.

For each kind of environment, a generator steps the environment and yields finished episodes; see `_KINDS`. The
environments are not stepped as an `EnvironmentGroup`, because its float32 rewards, drawn seeds and batched decisions
would give other returns than the caller's own loop over `predict`.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.pipeline.common.errors import RunError
from headrace.pipeline.prediction.policy import LoadedMixture, LoadedPolicy, load_policy
from headrace.queues.specs import STEP_MUL
from headrace.stages.environments.given import is_vec_env, offers
from headrace.stages.environments.pettingzoo.instances import api_of, instance_of
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import type_of


@dataclass(frozen=True)
class EvaluatedPolicy:
    """An evaluation's result: the returns (in the environment's rewards) and lengths of its episodes."""

    returns: tuple[float, ...]
    """Return of each episode, in the order in which the episodes ended."""
    lengths: tuple[int, ...]
    """Number of environment steps in each episode, in the same order."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return statistics.fmean(self.returns)

    @property
    def deviation(self) -> float:
        """Standard deviation of the returns, computed as by `np.std`."""
        return statistics.pstdev(self.returns)

    def __str__(self) -> str:
        """Return the mean ± standard deviation and the number of episodes as text."""
        return f"{self.mean:.6g} ± {self.deviation:.3g} ({len(self.returns)} episodes)"


@dataclass(frozen=True)
class _EvaluationRequest:
    """The policy to evaluate, how it acts, and the number of episodes."""

    policy: LoadedPolicy | LoadedMixture
    deterministic: bool
    seed: int | None
    episodes: int


_Episodes = Iterator[tuple[float, int]]
"""Infinite iterator that yields each episode's return and length when the episode ends."""
_Kind = Callable[[Any, _EvaluationRequest], _Episodes]


def evaluate(
    policy: LoadedPolicy | LoadedMixture | str | os.PathLike[str] | Any,
    env: Any,
    episodes: int = 10,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    behavior: str | None = None,
    checkpoint: str | int | None = None,
) -> EvaluatedPolicy:
    """Play a number of episodes with a policy and return the results.

        print(evaluate("results/cartpole", "CartPole-v1", episodes=100))

    Args:
        policy: a policy from `load_policy`, an argument for it (a run's folder or a file), or the result of `run`.
        env: an environment, which stays open: a `gymnasium.Env`, a `gymnasium.vector.VectorEnv` with any autoreset
            mode, a Stable-Baselines3 VecEnv, or a PettingZoo `ParallelEnv` or `AECEnv`, in which the policy plays all
            agents. A Gymnasium id, or a function that makes an environment, also works; that environment is closed at
            the end. Wrap the environment as in training.
        episodes: number of episodes. Each instance of a vectorised environment plays an equal share, so that short
            episodes don't count more than long ones. With several agents, each agent's part counts as an episode.
        deterministic: True to act with the mean or the most likely choice instead of a sample.
        seed: seed of the first reset (instance i gets seed + i); None for resets without a seed.
        behavior: the behaviour to load from a run with several.
        checkpoint: "best", "last" or a step, if the policy is loaded from a run.

    Raises:
        RunError: if the policy can't be loaded, or this kind of environment is not supported.
        PredictError: if an observation does not fit the policy.
    """
    if episodes < 1:
        raise RunError(f"episodes: expected 1 or more, got {episodes}")
    if not isinstance(policy, LoadedPolicy | LoadedMixture):
        policy = load_policy(getattr(policy, "folder", policy), behavior, checkpoint, seed)
    elif behavior is not None or checkpoint is not None:
        raise RunError(
            "behavior and checkpoint choose a policy from a run, but this policy is already loaded; omit them"
        )
    request = _EvaluationRequest(policy, deterministic, seed, episodes)
    with _opened(env) as (kind, opened):
        finished = list(itertools.islice(kind(opened, request), episodes))
    return EvaluatedPolicy(tuple(total for total, _ in finished), tuple(length for _, length in finished))


@contextmanager
def _opened(env: Any) -> Iterator[tuple[_Kind, Any]]:
    """Yield the environment and the generator for its kind; close the environment if it was created here."""
    made = isinstance(env, str) or (callable(env) and _kind_of(env) is None)
    if isinstance(env, str):
        import gymnasium

        env = gymnasium.make(env)
    elif made:
        env = env()
    kind = _kind_of(env)
    if kind is None:
        raise RunError(
            "env: expected a Gymnasium environment (single or vectorised), a Stable-Baselines3 VecEnv, a PettingZoo "
            f"environment, an id, or a function that makes an environment; got {type_of(env)}"
        )
    with closing(env) if made else nullcontext():
        yield kind, env


class _Agent:
    """One agent's part of an episode: its memory, the action being held and the return so far."""

    def __init__(self, request: _EvaluationRequest) -> None:
        self._evaluated, self._deterministic = request.policy, request.deterministic
        self.begin()

    def begin(self) -> None:
        """Begin an episode: clear the memory, the held action and the return."""
        self._policy = self._evaluated.reset() if isinstance(self._evaluated, LoadedMixture) else self._evaluated
        self._state: Any = None
        self._action: Any = None
        self._left = 0
        self._returned, self._steps = 0.0, 0

    def act(self, observation: Any, mask: Any) -> Any:
        """Return the action for the next step: a new decision, or the action still being held."""
        if self._left == 0:
            prediction = self._policy.predict(observation, self._deterministic, self._state, mask)
            self._action, self._state = prediction
            self._left = self._policy.action_repeat or 1
            if isinstance(self._action, dict) and STEP_MUL in self._action:
                self._action, self._left = self._action["action"], int(self._action[STEP_MUL])
        self._left -= 1
        self._steps += 1
        return self._action

    def take(self, reward: Any) -> None:
        """Add a step's reward to the return."""
        self._returned += float(np.asarray(reward).item())

    def end(self, info: Any) -> tuple[float, int]:
        """Return the episode's return and length.

        Prefer the original ones that a monitor wrapper has put into `info`.
        """
        monitored = info.get("episode") if isinstance(info, dict) else None
        if isinstance(monitored, dict) and {"r", "l"} <= monitored.keys():
            return float(np.asarray(monitored["r"]).item()), int(np.asarray(monitored["l"]).item())
        return self._returned, self._steps


def _single(env: Any, request: _EvaluationRequest) -> _Episodes:
    agent, seed = _Agent(request), request.seed
    while True:
        observation, info = env.reset(seed=seed)
        agent.begin()
        seed, ended = None, False
        while not ended:
            observation, reward, terminated, truncated, info = env.step(agent.act(observation, info.get(MASK)))
            agent.take(reward)
            ended = bool(terminated or truncated)
        yield agent.end(info)


def _multi_agent(env: Any, request: _EvaluationRequest) -> _Episodes:
    instance, seed = instance_of(env, "env"), request.seed
    while True:
        time_steps, agents, seed = instance.reset(seed), defaultdict[Any, _Agent](lambda: _Agent(request)), None
        if instance.over:  # the episode would never end
            raise RunError("env: no agents after reset() (env.agents is empty); expected at least one")
        while time_steps:
            actions = {}
            for time_step in time_steps:
                agent = agents[time_step.agent]
                agent.take(time_step.reward)
                if time_step.ended:
                    yield agent.end(time_step.info)
                    del agents[time_step.agent]
                else:
                    actions[time_step.agent] = agent.act(time_step.observation, time_step.info.get(MASK))
            time_steps = [] if instance.over else instance.step(actions)


def _vectorised(env: Any, request: _EvaluationRequest) -> _Episodes:
    from gymnasium.vector import AutoresetMode

    def step(actions: Any) -> tuple[Any, Any, Any, Any, Callable[[int], Any]]:
        batch, rewards, terminated, truncated, infos = env.step(actions)
        ended = np.asarray(terminated) | np.asarray(truncated)
        finals = infos.get("final_info", infos)
        monitored = finals.get("episode", {}) if isinstance(finals, dict) else {}

        def info(row: int) -> Any:
            if not isinstance(finals, dict):
                return finals[row]
            return {"episode": {key: values[row] for key, values in monitored.items()}}

        if mode is AutoresetMode.DISABLED and ended.any():
            batch, infos = env.reset(options={"reset_mask": ended})
        return batch, rewards, ended, infos.get(MASK), info

    mode = AutoresetMode((env.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP))
    batch, infos = env.reset(seed=request.seed)
    yield from _instances(env, request, batch, infos.get(MASK), step, mode is AutoresetMode.NEXT_STEP)


def _stable_baselines(env: Any, request: _EvaluationRequest) -> _Episodes:
    def step(actions: Any) -> tuple[Any, Any, Any, Any, Callable[[int], Any]]:
        batch, rewards, ended, infos = env.step(actions)
        return batch, rewards, np.asarray(ended), masks(), infos.__getitem__

    def masks() -> Any:
        try:
            return env.env_method("action_masks")
        except AttributeError:
            return None

    if request.seed is not None:
        env.seed(request.seed)
    yield from _instances(env, request, env.reset(), masks(), step, False)


def _instances(
    env: Any, request: _EvaluationRequest, batch: Any, masks: Any, step: Any, resets_later: bool
) -> _Episodes:
    """Yield the episodes of the environment's instances; each instance plays an equal share."""
    from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

    n = env.num_envs
    observation_space = getattr(env, "single_observation_space", env.observation_space)
    action_space = getattr(env, "single_action_space", env.action_space)
    shares = [(request.episodes + i) // n for i in range(n)]
    agents, waiting = [_Agent(request) for _ in range(n)], [False] * n
    while True:
        rows = list(iterate(batch_space(observation_space, n), batch))
        actions = tuple(agent.act(rows[i], None if masks is None else masks[i]) for i, agent in enumerate(agents))
        buffer: Any = create_empty_array(action_space, n)
        batch, rewards, ended, masks, info = step(concatenate(action_space, actions, buffer))
        for i, agent in enumerate(agents):
            if waiting[i]:  # this step was the reset, which ignored the action
                waiting[i] = False
                agent.begin()
                continue
            agent.take(rewards[i])
            if ended[i]:
                if shares[i]:
                    shares[i] -= 1
                    yield agent.end(info(i))
                agent.begin()
                waiting[i] = resets_later


_KINDS: Sequence[tuple[Callable[[Any], bool], _Kind]] = (
    (is_vec_env, _stable_baselines),
    (lambda env: offers(env, "num_envs", "single_action_space", "step"), _vectorised),
    (lambda env: api_of(env) is not None, _multi_agent),
    (lambda env: offers(env, "action_space", "step", "reset"), _single),
)
"""For each kind of environment, the function that recognises it, and its generator. The first match counts."""


def _kind_of(env: Any) -> _Kind | None:
    if isinstance(env, type):
        return None
    return next((kind for fits, kind in _KINDS if fits(env)), None)
