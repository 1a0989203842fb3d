"""The trial of a PettingZoo environment: what it returns against its spaces, and PettingZoo's own tests."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from headrace.config import RunConfig
from headrace.stages.environments.pettingzoo.instances import api_of
from headrace.stages.environments.pettingzoo.making import first_environment
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.environments.trial import (
    STEPS,
    Observer,
    Remark,
    checker_remarks,
    each_once,
    group_remarks,
    passed_on,
    reward_remarks,
    takes_seed,
    without_windows,
)
from headrace.stages.errors import StageError, describe_error

_CYCLES = 50
"""Cycles of PettingZoo's own test."""


def try_pettingzoo(config: RunConfig) -> Iterator[Remark]:
    """Yield what is wrong with the environments of a configuration."""
    request = without_windows(config)
    try:
        env, _, name = first_environment(request)
    except StageError as error:
        yield Remark(str(error), key=error.key)
        return
    serious = False
    if api_of(env) is not None and not isinstance(env, EnvironmentGroup):
        serious = yield from passed_on(each_once(_of_env(env, name)))
        if not serious:
            yield from checker_remarks(lambda: _field_test(env), "PettingZoo's own test (pettingzoo.test)", name)
    with suppress(Exception):
        env.close()
    if not serious:
        yield from group_remarks(request)


def _field_test(env: Any) -> None:
    tests = importlib.import_module("pettingzoo.test")
    test = tests.parallel_api_test if api_of(env) == "parallel" else tests.api_test
    test(env, num_cycles=_CYCLES)


def _of_env(env: Any, name: str) -> Iterator[Remark]:
    if not takes_seed(env.reset):
        yield Remark(
            f"{name}: its reset{inspect.signature(env.reset)} takes no seed; write `def reset(self, seed=None, "
            "options=None)`"
        )
        return
    try:
        if api_of(env) == "parallel":
            yield from _parallel(env, name)
        else:
            yield from _by_turns(env, name)
    except Exception as error:
        yield Remark(f"{name}: playing it with random actions raised {describe_error(error)}; expected {_EXPECTED}")


_EXPECTED = "a whole episode with actions of its own action spaces"


def _sampler(env: Any) -> Any:
    spaces: dict[str, Any] = {}

    def sample(agent: str, info: Any) -> Any:
        if agent not in spaces:
            spaces[agent] = copy.deepcopy(env.action_space(agent))
            spaces[agent].seed(0)
        mask = info.get("action_mask") if isinstance(info, Mapping) else None
        return spaces[agent].sample() if mask is None else spaces[agent].sample(mask)

    return sample


def _masked(observation: Any, info: Any) -> Any:
    """The info, with the mask that some environments put into the observation instead."""
    if isinstance(observation, Mapping) and "action_mask" in observation:
        return {"action_mask": observation["action_mask"]}
    return info


def _parallel(env: Any, name: str) -> Iterator[Remark]:
    observer, sample = Observer(name), _sampler(env)
    result = env.reset(seed=0)
    if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(each, Mapping) for each in result):
        yield Remark(
            f"{name}: its reset() returned a {type(result).__name__}; expected two dicts, observations and infos"
        )
        return
    seen, infos = result
    for _ in range(STEPS):
        if not env.agents:
            seen, infos = env.reset()
        of_agents = (_seen(env, agent, seen, observer, name) for agent in env.agents)
        if (yield from passed_on(chain.from_iterable(of_agents))):
            return
        result = env.step({agent: sample(agent, _masked(seen[agent], infos.get(agent, {}))) for agent in env.agents})
        if not isinstance(result, tuple) or len(result) != 5:
            count = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
            yield Remark(
                f"{name}: its step() returned {count}; expected five dicts by agent: observations, rewards, "
                "terminations, truncations, infos"
            )
            return
        seen, rewards, _, _, infos = result
        for reward in rewards.values():
            yield from reward_remarks(reward, name)


def _seen(env: Any, agent: str, seen: Mapping[str, Any], observer: Observer, name: str) -> Iterator[Remark]:
    if agent not in seen:
        yield Remark(f"{name}: agent {agent!r} is in agents, but has no observation; there are: {', '.join(seen)}")
        return
    yield from observer.compare(env.observation_space(agent), seen[agent], f"{agent}'s reset() or step")


def _by_turns(env: Any, name: str) -> Iterator[Remark]:
    observer, sample = Observer(name), _sampler(env)
    env.reset(seed=0)
    for _ in range(STEPS):
        if not env.agents:
            env.reset()
        agent = env.agent_selection
        result = env.last()
        if not isinstance(result, tuple) or len(result) != 5:
            yield Remark(
                f"{name}: its last() did not return five values; expected observation, reward, "
                "terminated, truncated, info"
            )
            return
        observation, reward, terminated, truncated, info = result
        if terminated or truncated:
            env.step(None)
            continue
        remarks = observer.compare(env.observation_space(agent), observation, f"{agent}'s observe")
        if (yield from passed_on([*remarks, *reward_remarks(reward, name)])):
            return
        env.step(sample(agent, _masked(observation, info)))
