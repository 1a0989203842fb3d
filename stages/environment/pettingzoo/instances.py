"""One PettingZoo environment, whichever its API: what its agents saw, and which of them are to act next.

The group sees both APIs alike. After `reset` and after each `step` an instance tells of the agents that
something happened to: endings first, and then those who decide now. In a parallel environment that is everybody; in
one that goes by turns (AEC, agent-environment cycle) it is one agent, with all the rewards since its last turn.

Only the methods of PettingZoo's API are used here, none of its classes, so that any object with them will do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

from stages.error_text import describe_error
from stages.errors import BrokenEnvironmentError


class Sight(NamedTuple):
    """What an agent sees: at its end, or before it decides."""

    agent: str
    observation: Any
    reward: float
    """Since its previous sight."""
    info: Mapping[str, Any]
    terminated: bool
    truncated: bool

    @property
    def ended(self) -> bool:
        """Whether its episode is over."""
        return self.terminated or self.truncated


class Instance(Protocol):
    """An environment that is stepped by the group."""

    env: Any
    by_turns: bool
    """Whether one agent acts after the other."""
    over: bool
    """Whether nobody is left."""
    first_infos: Mapping[str, Mapping[str, Any]]
    """By agent: the infos that the last reset brought."""

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[Sight]:
        """Begin an episode; the environment hears of options only if there are any."""
        ...

    def step(self, actions: Mapping[str, Any]) -> list[Sight]:
        """Go on with the actions of those who were to decide."""
        ...

    def waiting(self) -> Mapping[str, float]:
        """What agents have received since their last sight, as far as it is told before their next one."""
        ...


def api_of(env: Any) -> Literal["parallel", "aec"] | None:
    """Which of PettingZoo's APIs an object has, None for neither."""
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "observation_space", "action_space")):
        return None
    by_turns = all(callable(getattr(env, name, None)) for name in ("last", "observe"))
    return "aec" if by_turns else "parallel"


def instance_of(env: Any, name: str) -> Instance:
    """The environment by the API that it has.

    Args:
        env: a ParallelEnv, an AECEnv, or what has the same methods.
        name: what messages call it.
    """
    return TurnInstance(env, name) if api_of(env) == "aec" else ParallelInstance(env, name)


class ParallelInstance:
    """An environment in which all agents act at once; they may die and join."""

    by_turns = False

    def __init__(self, env: Any, name: str) -> None:
        self.env = env
        self.over = True
        self.first_infos: Mapping[str, Mapping[str, Any]] = {}
        self._name = name
        self._live: list[str] = []
        self._seen: Mapping[str, Any] = {}

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[Sight]:
        """Begin an episode: everybody decides."""
        with _broken(self._name, "reset"):
            self._seen, infos = self.env.reset(**_arguments(seed, options))
            self.first_infos = infos
            self._live = list(self.env.agents)
            self.over = not self._live
            return [Sight(agent, self._seen[agent], 0.0, infos.get(agent, {}), False, False) for agent in self._live]

    def step(self, actions: Mapping[str, Any]) -> list[Sight]:
        """Everybody's endings, then everybody's next decisions."""
        with _broken(self._name, "step"):
            seen, rewards, terminations, truncations, infos = self.env.step(actions)
            left = list(self.env.agents)
        ending, deciding = [], []
        for agent in self._live:
            terminated, truncated = bool(terminations.get(agent)), bool(truncations.get(agent))
            over = terminated or truncated
            if not over and agent not in left:
                raise BrokenEnvironmentError(
                    f"{self._name}: agent '{agent}' is gone from agents, but neither terminated nor truncated"
                )
            if agent in seen:
                observation = seen[agent]
            elif terminated:
                observation = self._seen[agent]  # nothing is made of what came after, but a row needs some
            else:
                raise BrokenEnvironmentError(f"{self._name}: step() gave no observation for agent '{agent}'")
            sight = Sight(
                agent, observation, float(rewards.get(agent, 0.0)), infos.get(agent, {}), terminated, truncated
            )
            if over:
                ending.append(_kept(sight))
            else:
                deciding.append(sight)
        ended = {sight.agent for sight in ending}
        known = {*self._live}
        for agent in left:
            if agent not in known:
                with _broken(self._name, "step"):
                    deciding.append(Sight(agent, seen[agent], 0.0, infos.get(agent, {}), False, False))
        self._seen = seen
        self._live = [agent for agent in left if agent not in ended]
        self.over = not self._live
        return ending + deciding

    def waiting(self) -> Mapping[str, float]:
        """Nothing: everybody has a sight at each step."""
        return {}


class TurnInstance:
    """An environment in which one agent acts after the other (AEC)."""

    by_turns = True

    def __init__(self, env: Any, name: str) -> None:
        self.env = env
        self.over = True
        self.first_infos: Mapping[str, Mapping[str, Any]] = {}
        self._name = name

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[Sight]:
        """Begin an episode: whoever is first decides."""
        with _broken(self._name, "reset"):
            self.env.reset(**_arguments(seed, options))
            self.first_infos = dict(getattr(self.env, "infos", {}))
            return self._up_to_next_turn()

    def step(self, actions: Mapping[str, Any]) -> list[Sight]:
        """The endings that this move led to, and whoever is next."""
        (action,) = actions.values()
        with _broken(self._name, "step"):
            self.env.step(action)
            return self._up_to_next_turn()

    def waiting(self) -> Mapping[str, float]:
        """What `last()` would tell of each agent if it were its turn, where the environment has PettingZoo's books.

        The name is private, but it is the one that PettingZoo's wrappers let through as well.
        """
        with _broken(self._name, "step"):
            received = getattr(self.env, "_cumulative_rewards", None)
            if not isinstance(received, Mapping):
                return {}
            return {agent: float(received[agent]) for agent in self.env.agents if agent in received}

    def _up_to_next_turn(self) -> list[Sight]:
        """Let the dead leave, as PettingZoo wants it: each is selected once more, and steps with None."""
        sights: list[Sight] = []
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, info = self.env.last()
            sight = Sight(agent, observation, float(reward), info, bool(terminated), bool(truncated))
            if not sight.ended:
                sights.append(sight)
                break
            if any(other.agent == agent for other in sights):
                raise BrokenEnvironmentError(
                    f"{self._name}: agent '{agent}' was stepped with None at its end, and is still selected"
                )
            sights.append(_kept(sight))
            self.env.step(None)
        self.over = not self.env.agents
        return sights


def _arguments(seed: int, options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"seed": seed, "options": dict(options)} if options else {"seed": seed}


def _kept(sight: Sight) -> Sight:
    """The sight with an observation of its own: the environment goes on before it is made a row."""
    return sight._replace(observation=copy.deepcopy(sight.observation))


@contextmanager
def _broken(name: str, call: str) -> Iterator[None]:
    try:
        yield
    except BrokenEnvironmentError:
        raise
    except Exception as error:
        raise BrokenEnvironmentError(f"{name}: its {call}() raised {describe_error(error)}") from error
