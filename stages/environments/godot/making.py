"""Makes a group of Godot games from the YAML, with their ports, seeds and roles, and checks that the build exists."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import RunConfig
from headrace.config.environment import GodotSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.stages.activity import preparing
from headrace.stages.environments.episode_infos import EpisodeInfos
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.godot.announcement import NO_MASKS, Announcement, assign_agents, behaviors_of_agents
from headrace.stages.environments.godot.messages import LAST, TRUNCATED, AgentColumns, WrongColumn, action_message
from headrace.stages.environments.godot.worker import DEFAULT_PORT, ENGINE, GodotBuild, GodotWorker
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.errors import ProgramBroken, ProgramRefused
from headrace.stages.environments.programs.group import RUN_LOGS, ProgramGroup, make_program_group
from headrace.stages.environments.programs.process import find_executable
from headrace.stages.environments.programs.program import Program, ProgramAnswer
from headrace.stages.environments.programs.rows import InstanceRows, ProgramRows
from headrace.stages.environments.programs.worker import worker_settings
from headrace.stages.environments.protocol import Measured
from headrace.stages.environments.spaces.masks import MASK

log = logging.getLogger(__name__)


_LONG = 10_000
"""Number of decisions without `done` after which a warning is logged for the agent."""


class _LastHeard:
    """The latest data [n] of a behaviour's agents, and the final data [ended] of the agents whose episodes ended."""

    def __init__(self, observations: tuple[Array, ...], count: int) -> None:
        self.observations = observations
        self.rewards = np.zeros(count, np.float32)
        self.ended: NDArray[np.intp] = np.zeros(0, np.intp)
        self.truncated = np.zeros(0, np.bool_)
        self.last: tuple[Array, ...] = ()


class _Behavior:
    """The agents of one behaviour id, and their state between messages.

    Args:
        columns: reads and writes the agents' parts of messages.
        group: the agents' group, or 0 if there is no group.
    """

    def __init__(self, columns: AgentColumns, group: int) -> None:
        self.columns = columns
        self.group = group
        self.ids = columns.agents.astype(np.int32)
        self.undone = np.zeros(len(self.ids), np.int64)
        """[n] number of decisions since each agent was last done."""
        self.heard = _LastHeard((), 0)


class GodotInstance(Program[GodotWorker]):
    """One game, which can be restarted after a failure.

    All agents act in each step. When an agent is done, the accompanying observation is the first of its next episode,
    because the addon's agents reset themselves. The previous observation then serves as the episode's final
    observation, unless the game sends the real one.

    Args:
        worker_id: the game's number in the run, used in messages.
        connect: makes a connection, given the initial environment parameters and whether there was an earlier
            connection.
        roles: returns each agent's behaviour id and group, given an announcement (`behaviors_of_agents`).
        pictures: see `environment.pictures`.
        infos: `environment.info_keys`.
        parameters: the environment parameters in the game's form.
    """

    def __init__(
        self,
        worker_id: int,
        connect: Callable[[Mapping[str, float], bool], GodotWorker],
        roles: Callable[[Announcement, str], Sequence[tuple[str, int]]],
        pictures: str,
        infos: Sequence[str],
        parameters: ParameterCalls,
    ) -> None:
        super().__init__(f"Godot worker {worker_id}")
        self._connect = connect
        self._roles = roles
        self._pictures = pictures
        self._infos = EpisodeInfos(infos, self.name)
        self._parameters = parameters
        self._agents = 0
        self._behaviors: dict[str, _Behavior] = {}
        self._warned = False

    async def _start(self) -> None:
        self._connection = self._connect(self._parameters.at_start(), self.connected)
        announcement = await self._connection.start()
        self._behaviors = {}
        for behavior_id, (spec, agents, group) in assign_agents(
            announcement, self._roles(announcement, self.name), self._pictures, self.name
        ).items():
            self.specs[behavior_id] = spec
            self._behaviors[behavior_id] = _Behavior(AgentColumns(spec, agents), group)
        self._agents = len(announcement.agents)

    async def _reset(self) -> ProgramAnswer:
        connection = await self._informed()
        return self._begun(await connection.reset())

    async def step(self, actions: Mapping[str, ActionBatch]) -> ProgramAnswer:
        """Let all agents act, and wait for the answer. Raises the same errors as `Program.begin`."""
        texts: list[bytes] = [b""] * self._agents
        for behavior_id, behavior in self._behaviors.items():
            written = behavior.columns.actions(actions[behavior_id])
            if len(self._behaviors) == 1:
                texts = written
            else:
                for place, text in zip(behavior.columns.agents.tolist(), written, strict=True):
                    texts[place] = text
        connection = await self._informed()
        return self._stepped(await connection.step(action_message(texts)))

    async def _informed(self) -> GodotWorker:
        """Send all changed environment parameters to the game, then return the connection."""
        for method in self._parameters.calls():
            await self.connection.call(method)
        return self.connection

    def _begun(self, message: Mapping[str, Any]) -> ProgramAnswer:
        observed = self._list(message, "obs")
        for behavior_id, behavior in self._behaviors.items():
            with self._named(behavior_id):
                behavior.heard = _LastHeard(behavior.columns.observations(observed), len(behavior.ids))
            behavior.undone[:] = 0
        return self._answer({})

    def _stepped(self, message: Mapping[str, Any]) -> ProgramAnswer:
        observed, rewarded, done = (self._list(message, key) for key in ("obs", "reward", "done"))
        infos = self._list(message, "info") if message.get("info") is not None else None
        if infos is not None and any(isinstance(info, Mapping) and MASK in info for info in infos):
            raise ProgramRefused(f"{self.name}: sent {MASK!r} in an info: {NO_MASKS}")
        of_episodes: dict[str, list[Mapping[str, Any]]] = {}
        for behavior_id, behavior in self._behaviors.items():
            with self._named(behavior_id):
                columns, before = behavior.columns, behavior.heard
                heard = behavior.heard = _LastHeard(columns.observations(observed), len(behavior.ids))
                heard.rewards = columns.rewards(rewarded)
                heard.ended = columns.done(done).nonzero()[0]
                if len(heard.ended):
                    of_ended = columns.infos(infos, heard.ended)
                    heard.truncated = np.array([bool(info.get(TRUNCATED)) for info in of_ended])
                    heard.last = self._last(behavior, before.observations, of_ended)
                    of_episodes.setdefault(columns.spec.name, []).extend(of_ended)
            self._warn_of_no_end(behavior_id, behavior)
        return self._answer({name: self._infos.of_episodes(ended) for name, ended in of_episodes.items()})

    def _answer(self, statistics: Mapping[str, Mapping[str, Measured]]) -> ProgramAnswer:
        """Return all behaviours' data as rows."""
        totals: dict[int, float] = {}
        for behavior in self._behaviors.values():
            if behavior.group:
                totals[behavior.group] = totals.get(behavior.group, 0.0) + float(behavior.heard.rewards.sum())
        rows = {
            behavior_id: self._rows(behavior_id, behavior, totals.get(behavior.group, 0.0))
            for behavior_id, behavior in self._behaviors.items()
        }
        return ProgramAnswer(rows, behavior_statistics=statistics)

    def _rows(self, behavior_id: str, behavior: _Behavior, total: float) -> InstanceRows:
        """Return all agents' rows, endings first; `total` is the reward of the behaviour's group, if it has one."""
        ids, heard = behavior.ids, behavior.heard
        ended, rewards, observations = heard.ended, heard.rewards, heard.observations
        if len(ended):
            ids, rewards = np.concatenate((ids[ended], ids)), np.concatenate((rewards[ended], rewards))
            observations = tuple(np.concatenate(pair) for pair in zip(heard.last, observations, strict=True))
        shared = total - rewards if behavior.group else np.zeros(len(ids))
        columns = ProgramRows(
            ids=ids,
            rewards=rewards,
            ended=len(ended),
            interrupted=heard.truncated,
            observations=observations,
            action_masks=None,
            group_ids=np.full(len(ids), behavior.group, np.int32),
            group_rewards=shared.astype(np.float32),
        )
        return self._episodes.of(behavior_id, columns, self._parameters.generation)

    def _last(
        self, behavior: _Behavior, before: tuple[Array, ...], infos: Sequence[Mapping[str, Any]]
    ) -> tuple[Array, ...]:
        """Return ended episodes' final observations. If the game sent none, use those of the last decision."""
        ended = behavior.heard.ended
        last = tuple(observation[ended] for observation in before)
        with_last = [place for place, info in enumerate(infos) if info.get(LAST) is not None]
        if with_last:
            agents = AgentColumns(behavior.columns.spec, behavior.columns.agents[ended[with_last]])
            by_agent: list[Any] = [None] * self._agents
            for place in with_last:
                by_agent[int(behavior.columns.agents[ended[place]])] = infos[place][LAST]
            try:
                found = agents.observations(by_agent)
            except WrongColumn as error:
                raise WrongColumn(f"{error}, in the {LAST!r} of its info") from None
            for column, values in zip(last, found, strict=True):
                column[with_last] = values
        return last

    def _warn_of_no_end(self, behavior_id: str, behavior: _Behavior) -> None:
        """Count each agent's decisions since its last episode ended, and warn once if there are too many."""
        behavior.undone += 1
        behavior.undone[behavior.heard.ended] = 0
        if self._warned or not (behavior.undone >= _LONG).any():
            return
        self._warned = True
        agent = int(behavior.ids[int(behavior.undone.argmax())])
        log.warning(
            "%s, behaviour %r: agent %d has not been done for %d decisions. An agent that only resets itself does not "
            "end its episode, so its returns are unknown and its trajectories continue across resets. Set done = true "
            "at the end of each episode (reset_after does not), or set environment.max_episode_steps",
            *(self.name, behavior_id, agent, _LONG),
        )

    def _list(self, message: Mapping[str, Any], key: str) -> list[Any]:
        """Return a list from the message, after checking that it has one entry for each agent."""
        found = message.get(key)
        if not isinstance(found, list) or len(found) != self._agents:
            what = f"{len(found)} entries" if isinstance(found, list) else repr(found)[:60]
            raise ProgramBroken(
                f"{self.name}: its message has {what} as {key!r}; expected one for each of the {self._agents} agents "
                "that it has announced; agents can't join or leave a running game"
            )
        return found

    @contextmanager
    def _named(self, behavior_id: str) -> Iterator[None]:
        """Turn a `WrongColumn` into an error that names the game."""
        try:
            yield
        except WrongColumn as error:
            raise ProgramBroken(f"{self.name}, behaviour {behavior_id!r}, {error}") from None


# A build gets its initial environment parameters as arguments, and later ones through calls to the game's methods.


class ParameterCalls:
    """Tracks the environment parameters that one game has received.

    The addon can't pass values to a running game, but can call its agents' methods. So the settings may name a method
    for a parameter's values, such as `set_lesson_{value}`.

    Args:
        instance: number of the game in its group.
        parameters: the run's parameters; None if the run has none.
        calls: `environment.calls`: the method for each parameter.
        name: the game's name, used in messages.

    Attributes:
        generation: the generation of the parameters that the game knows.
    """

    def __init__(
        self, instance: int, parameters: EpisodeParameters | None, calls: Mapping[str, str], name: str
    ) -> None:
        self.generation = 0
        self._instance = instance
        self._parameters = parameters
        self._calls = calls
        self._name = name
        self._known: dict[str, float] = {}
        self._warned: set[str] = set()

    def at_start(self) -> Mapping[str, float]:
        """Return the values at the game's start."""
        if self._parameters is None:
            return {}
        self.generation = self._parameters.generation
        self._known = self._parameters.options(self._instance)
        return self._known

    def calls(self) -> list[str]:
        """Return the methods to call for the values that have changed since the last call."""
        if self._parameters is None or self._parameters.generation == self.generation:
            return []
        self.generation = self._parameters.generation
        before, self._known = self._known, self._parameters.options(self._instance)
        methods = []
        for name, value in self._known.items():
            if value == before.get(name):
                continue
            if name in self._calls:
                methods.append(
                    self._calls[name].replace("{value}", f"{value:g}".replace(".", "_").replace("-", "minus_"))
                )
            elif name not in self._warned:
                self._warned.add(name)
                log.warning(
                    "%s: the environment parameter %r is now %g, but the game keeps its initial value, because "
                    "environment.calls names no method for the parameter",
                    *(self._name, name, value),
                )
        return methods


def make_godot_group(request: EnvironmentRequest) -> ProgramGroup:
    """Make the group that `environment` and `env_settings` describe; its first reset starts the games.

    Worker n gets the run's seed + n. Pressing Stop in the editor does not end a run; pressing Play continues it.
    """
    config, settings = request.config, _settings(request.config)
    roles = partial(behaviors_of_agents, roles=settings.behaviors, unnamed=settings.behavior, listed=config.behaviors)

    def make(index: int, parameters: EpisodeParameters | None) -> GodotInstance:
        worker_id = request.first_instance + index
        calls = ParameterCalls(index, parameters, settings.calls, f"Godot worker {worker_id}")
        connect = partial(_connect, request, worker_id)
        return GodotInstance(worker_id, connect, roles, settings.pictures, settings.info_keys, calls)

    return make_program_group(config, settings.num_envs, make, waits_for_restart=True)


@preparing()
def _connect(request: EnvironmentRequest, worker_id: int, parameters: Mapping[str, float], again: bool) -> GodotWorker:
    settings = worker_settings(request.config, worker_id, request.seed, again)
    if request.config.env_settings.env_path is None:
        return GodotWorker(replace(settings, port=settings.port or DEFAULT_PORT), None)
    return GodotWorker(settings, _build(request, request.config.env_settings.env_path, worker_id, parameters))


def _build(request: EnvironmentRequest, path: str, worker_id: int, parameters: Mapping[str, float]) -> GodotBuild:
    config, engine, settings = request.config, request.config.engine_settings, _settings(request.config)
    log_file = None
    if request.run_folder is not None and not config.debug:
        log_file = request.run_folder.absolute() / RUN_LOGS / f"Godot-{worker_id}.log"
    return GodotBuild(
        path,
        config.env_settings.env_args or (),
        log_file,
        config.debug,
        headless=engine.no_graphics or (engine.no_graphics_monitor and worker_id > 0),
        speedup=engine.time_scale,
        fixed_fps=settings.fixed_fps,
        action_repeat=None if settings.action_repeat is None else settings.action_repeat.steps,
        parameters=parameters,
    )


def _settings(config: RunConfig) -> GodotSettings:
    settings = config.environment
    assert isinstance(settings, GodotSettings), "the table of environment kinds names this model"
    return settings


def check_build(config: RunConfig) -> None:
    """If a build is given, check that it exists.

    Raises:
        ProgramRefused: if the build does not exist.
    """
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path), ENGINE)
