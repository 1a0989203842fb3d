"""Small environments with PettingZoo's methods, and nothing of PettingZoo in them: most tests run without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.queues.messages import ActionBatch

SEEN = spaces.Box(-np.inf, np.inf, (2,), np.float32)
THREE = spaces.Discrete(3)


class Crowd:
    """A parallel environment in which a script says who is there when, and who receives what.

    An agent sees (its number in the script, steps since reset). All its observations are the same array, written over
    at each step, as thrifty environments do it.

    Args:
        script: by agent: (first step, last step, reward of each step). Agents whose first step is 0 are there at the
            reset; the others join. After its last step an agent is terminated.
        truncated: agents that are truncated instead.
        silent: true if the dead get nothing more: no observation with their end.
        observation_spaces: by agent, where they are not the usual.
        action_spaces: likewise.
        infos: what every agent gets beside.
    """

    def __init__(
        self,
        script: Mapping[str, tuple[int, int, float]],
        truncated: Sequence[str] = (),
        *,
        silent: bool = False,
        observation_spaces: Mapping[str, Any] | None = None,
        action_spaces: Mapping[str, Any] | None = None,
        infos: Mapping[str, Any] | None = None,
    ) -> None:
        self.script = dict(script)
        self.possible_agents = list(script)
        self.agents: list[str] = []
        self.render_mode = "rgb_array"
        self.seeds: list[int | None] = []
        self.options: list[Any] = []
        self.actions: list[dict[str, Any]] = []
        self.closed = 0
        self._truncated = truncated
        self._silent = silent
        self._observation_spaces = observation_spaces or {}
        self._action_spaces = action_spaces or {}
        self._infos = infos or {}
        self._time = 0
        self._seen = {agent: np.zeros(2, np.float32) for agent in script}

    def observation_space(self, agent: str) -> Any:
        return self._observation_spaces.get(agent, SEEN)

    def action_space(self, agent: str) -> Any:
        return self._action_spaces.get(agent, THREE)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.options.append(options)
        self._time = 0
        self.agents = [agent for agent, (first, _, _) in self.script.items() if first == 0]
        return self.seen_by(self.agents), {agent: dict(self._infos) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert sorted(actions) == sorted(self.agents), "actions of those who are present, and of nobody else"
        self.actions.append(actions)
        self._time += 1
        over = [agent for agent in self.agents if self.script[agent][1] == self._time]
        joining = [agent for agent, (first, _, _) in self.script.items() if first == self._time]
        told = [agent for agent in self.agents if not (self._silent and agent in over)] + joining
        rewards = {agent: self.script[agent][2] for agent in self.agents}
        terminations = {agent: agent in over and agent not in self._truncated for agent in self.agents}
        truncations = {agent: agent in over and agent in self._truncated for agent in self.agents}
        self.agents = [agent for agent in self.agents if agent not in over] + joining
        return self.seen_by(told), rewards, terminations, truncations, {a: dict(self._infos) for a in told}

    def render(self) -> Any:
        return np.full((4, 6, 3), self._time, np.uint8)

    def close(self) -> None:
        self.closed += 1

    def seen_by(self, agents: Sequence[str]) -> dict[str, Any]:
        for agent in agents:
            self._seen[agent][:] = self.possible_agents.index(agent), self._time
        return {agent: self._seen[agent] for agent in agents}


class Counting:
    """An environment that goes by turns: players add 1 or 2 in turn, and the first to reach `target` wins.

    The winner gets 1, the others -1; every move costs all others `tax` at once. A player sees (the count, its seat),
    and may not count beyond the target.

    Args:
        target: to be reached.
        players: how many, called player_0, player_1, …
        tax: what the others of a move pay.
        patience: moves after which the game is cut short; None: none.
        masks: `observation`, `info`, or empty for none.
        stubborn: whether the dead stay after their last step, which breaks the rules.
    """

    def __init__(
        self,
        target: int = 4,
        players: int = 2,
        tax: float = 0.0,
        patience: int | None = None,
        *,
        masks: str = "observation",
        stubborn: bool = False,
    ) -> None:
        self.possible_agents = [f"player_{seat}" for seat in range(players)]
        self.agents: list[str] = []
        self.agent_selection = ""
        self.infos: dict[str, dict[str, Any]] = {}
        self.render_mode = None
        self._target = target
        self._tax = tax
        self._patience = patience
        self._masks = masks
        self._stubborn = stubborn
        self.options: list[Any] = []
        self._count = self._moves = 0
        self._pay: dict[str, float] = {}
        self._over = self._cut = False

    def observation_space(self, agent: str) -> Any:
        if self._masks != "observation":
            return SEEN
        return spaces.Dict({"observation": SEEN, "action_mask": spaces.Box(0, 1, (2,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agents[0]
        self.options.append(options)
        self._count = self._moves = 0
        self._over = self._cut = False
        self._pay = dict.fromkeys(self.agents, 0.0)
        self.inform()

    def observe(self, agent: str) -> Any:
        seen = np.array([self._count, self.possible_agents.index(agent)], np.float32)
        return {"observation": seen, "action_mask": self._mask(agent)} if self._masks == "observation" else seen

    def last(self, observe: bool = True) -> Any:
        agent = self.agent_selection
        return self.observe(agent), self._pay[agent], self._over, self._cut, self.infos[agent]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self._over or self._cut:
            assert action is None, "the dead step with None"
            if not self._stubborn:
                self.agents.remove(agent)
                self.agent_selection = self.agents[0] if self.agents else ""
            return
        assert self._mask(agent)[action], "played what the mask forbids"
        self._count += int(action) + 1
        self._moves += 1
        self._pay[agent] = 0.0
        self._over = self._count == self._target
        self._cut = not self._over and self._moves == self._patience
        for other in self.agents:
            self._pay[other] += (1.0 if self._over else 0.0) if other == agent else -self._tax - (1.0 * self._over)
        seat = self.possible_agents.index(agent)
        self.agent_selection = self.possible_agents[(seat + 1) % len(self.possible_agents)]
        self.inform()

    def close(self) -> None:
        pass

    def inform(self) -> None:
        told = (lambda agent: {"action_mask": self._mask(agent)}) if self._masks == "info" else (lambda agent: {})
        self.infos = {agent: told(agent) for agent in self.agents}

    def _mask(self, agent: str) -> Any:
        if agent != self.agent_selection:
            return np.zeros(2, np.int8)
        return np.array([1, self._count + 2 <= self._target], np.int8)


class Favour:
    """A game by turns of two mates: what `giver` may do costs it 0.2 and brings `taker` 1, who can do nothing.

    Each sees who it is: 1 is the giver, -1 the taker.
    """

    def __init__(self, turns: int = 4) -> None:
        self.possible_agents = ["giver", "taker"]
        self.agents: list[str] = []
        self.agent_selection = ""
        self._turns = turns
        self._moves = 0
        self._pay: dict[str, float] = {}

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection, self._moves = list(self.possible_agents), "giver", 0
        self._pay = dict.fromkeys(self.agents, 0.0)

    def observe(self, agent: str) -> Any:
        return np.array([1.0 if agent == "giver" else -1.0], np.float32)

    def last(self, observe: bool = True) -> Any:
        agent = self.agent_selection
        return self.observe(agent), self._pay[agent], self._moves == 2 * self._turns, False, {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self._moves == 2 * self._turns:
            self.agents.remove(agent)
            self.agent_selection = self.agents[0] if self.agents else ""
            return
        self._pay[agent] = 0.0
        if agent == "giver" and action:
            self._pay = {"giver": -0.2, "taker": self._pay["taker"] + 1.0}
        self._moves += 1
        self.agent_selection = "taker" if agent == "giver" else "giver"

    def close(self) -> None:
        pass


def some(result, group):
    """An action for everybody who was asked: the row's number, modulo the choices."""
    batches = {}
    for behavior_id, steps in result.steps.items():
        spec, count = group.behavior_specs[behavior_id].actions, len(steps.agent_ids) - steps.ended
        choices = np.arange(count)[:, None] % np.array(spec.discrete_branches or (1,))
        batches[behavior_id] = ActionBatch(
            np.zeros((count, spec.continuous_size), np.float32),
            choices[:, : len(spec.discrete_branches)].astype(np.int32),
        )
    return batches


def play(group, ticks, seed=0):
    """The results of a reset and of `ticks` steps."""
    results = [group.reset(seed)]
    for _ in range(ticks):
        results.append(group.step(some(results[-1], group)))
    return results
