"""Yields what PettingZoo's environment tests find, in addition to a run's own checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from headrace.stages.environments.env_lint import words_of
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.pettingzoo.instances import api_of
from headrace.stages.environments.pettingzoo.making import first_environment
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.environments.spaces.masks import MASK

_CYCLES = 50


def of_pettingzoo(request: EnvironmentRequest) -> Iterator[str]:
    """Yield findings about one environment without wrappers, or nothing for a group that a factory made."""
    env, _, name = first_environment(request)
    if isinstance(env, EnvironmentGroup):
        return
    try:
        import pettingzoo.test as tests  # type: ignore[import-untyped]
    except ImportError:  # pettingzoo.test needs pytest
        return
    parallel = api_of(env) == "parallel"
    test = tests.parallel_api_test if parallel else tests.api_test
    if not _has_other_masks(env, parallel):
        yield from words_of(lambda: test(env, num_cycles=_CYCLES), "PettingZoo's own test (pettingzoo.test)", name)
    with suppress(Exception):
        env.close()


def _has_other_masks(env: Any, parallel: bool) -> bool:
    """Return True if masks have a form that the tests, which act at random, ignore."""
    first = env.reset(seed=0)
    if parallel:
        seen, infos = first
        told = [(agent, seen.get(agent), infos.get(agent)) for agent in env.agents]
    else:
        observation, *_, info = env.last()
        told = [(env.agent_selection, observation, info)]
    for agent, observation, info in told:
        in_info = isinstance(info, Mapping) and MASK in info
        masked = in_info or (isinstance(observation, Mapping) and MASK in observation)
        if masked and ((in_info and parallel) or type(env.action_space(agent)).__name__ != "Discrete"):
            return True
    return False
