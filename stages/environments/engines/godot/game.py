"""One Godot game, and the group of several: its build, the order of the addon's messages, and the agents' rows.

`messages` converts the content of messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import RunConfig
from headrace.config.environment import GodotSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.stages.environments.engines.errors import GameBroken, GameRefused, MessageError
from headrace.stages.environments.engines.game import Game, GameAnswer, GameSettings, Wording, game_settings
from headrace.stages.environments.engines.godot.messages import (
    CLOSE,
    ENV_INFO,
    HANDSHAKE,
    LAST,
    NO_MASKS,
    NO_WINDOW,
    RESET,
    TRUNCATED,
    AgentColumns,
    Announcement,
    WrongColumn,
    action_message,
    assign_agents,
    behaviors_of_agents,
    call_of,
    is_picture,
    read_announcement,
    read_message,
)
from headrace.stages.environments.engines.group import RUN_LOGS, GameGroup, make_game_group
from headrace.stages.environments.engines.process import Build, find_executable
from headrace.stages.environments.engines.rows import GameRows, TrackedRows
from headrace.stages.environments.engines.transport import TcpTransport, Transport
from headrace.stages.environments.episode_infos import EpisodeInfos
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import StatisticValues
from headrace.stages.environments.spaces.masks import MASK

log = logging.getLogger(__name__)

DEFAULT_PORT = 11008
"""The addon's port if no `--port` is given, as in the editor."""
_SYNC_NODE = "a Sync node with Control Mode 'Training'"
_WORDING = Wording(
    game="Godot worker",
    unstarted="Godot's editor",
    invitation=f"Start training by pressing Play in Godot's editor, in a scene with {_SYNC_NODE}; restart a game that "
    "is already running, since it tries to connect only once, a second after its start.",
    needs=f"does its main scene have {_SYNC_NODE}",
    argument="--port",
    stranger="Is the program on this port really a game with the Godot RL Agents addon?",
    paused="its scene is paused, or an error in its scripts prevents an answer",
    taken_port="The editor always uses this port, so end the program that listens there, most likely another training "
    "run; or export the game and train with --env, on a port chosen by --base-port",
)
_WITHOUT_WINDOW = ("--disable-render-loop", "--headless")
_FIXED_FPS = "--fixed-fps"
_SEED = 0x7FFFFFFF
_LONG = 10_000
"""Number of decisions without `done` after which a warning is logged for the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GodotBuild(Build):
    """A Godot build and the options to start it with."""

    headless: bool = True
    """True to run without a window, and so without camera images."""
    speedup: float | None = 1.0
    """Multiple of the game's normal speed, set by its physics rate and time scale; None for the scene's own value."""
    fixed_fps: int | None = None
    """Frames per second of game time, run as fast as the machine allows; None for real time."""
    action_repeat: int | None = None
    """Physics frames between decisions; None for the scene's own value."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Initial environment parameters, passed as arguments."""

    def command(self, port: int, seed: int) -> list[str]:
        """Return the executable and the engine's, addon's and user's arguments. Raises the same errors as `Build`."""
        command = [str(find_executable(Path(self.path))), f"--port={port}", f"--env_seed={seed & _SEED}"]
        if self.headless:
            command += _WITHOUT_WINDOW
        if self.fixed_fps is not None:
            command += [_FIXED_FPS, str(self.fixed_fps)]
        if self.action_repeat is not None:
            command.append(f"--action_repeat={self.action_repeat}")
        if self.speedup is not None:
            command.append(f"--speedup={self.speedup:g}")
        command += [f"--{name}={value:g}" for name, value in self.parameters.items()]
        return [*command, *self.arguments]


class _AgentData:
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
        self.decisions = np.zeros(len(self.ids), np.int64)
        """[n] number of decisions since each agent was last done."""
        self.data = _AgentData((), 0)


class GodotGame(Game):
    """One Godot game: a build, or the editor, in which the user presses Play.

    All agents act in each step. When an agent is done, the accompanying observation is the first of its next episode,
    because the addon's agents reset themselves. The previous observation then serves as the episode's final
    observation, unless the game sends the real one.

    Args:
        settings: the game's settings. Port 0 is allowed only if a build is given.
        build: the build to start; None for the editor.
        roles: returns each agent's behaviour id and group, given an announcement (`behaviors_of_agents`). `begin` needs
            it.
        pictures: see `environment.pictures`.
        infos: `environment.info_keys`.
        parameters: the environment parameters in the game's form; None if the run has none.

    Attributes:
        announcement: the addon's announcement; available once the game is started.
    """

    announcement: Announcement

    def __init__(
        self,
        settings: GameSettings,
        build: GodotBuild | None,
        roles: Callable[[Announcement, str], Sequence[tuple[str, int]]] | None = None,
        pictures: str = "auto",
        infos: Sequence[str] = (),
        parameters: ParameterCalls | None = None,
    ) -> None:
        super().__init__(settings, build, _WORDING)
        self._godot_build = build
        self._roles = roles
        self._pictures = pictures
        self._infos = EpisodeInfos(infos, self.label)
        self._parameters = parameters or ParameterCalls(0, None, {}, self.label)
        self._blind = False
        """True if the agents observe images, but the game renders none."""
        self._agents = 0
        self._behaviors: dict[str, _Behavior] = {}
        self._warned = self._has_lost_call = False

    async def start(self) -> None:
        """See `Game`."""
        parameters = self._parameters.at_start()
        if self._godot_build is not None:
            self._build = replace(self._godot_build, parameters=parameters)
        await super().start()

    def _make_transport(self) -> Transport:
        return TcpTransport(self.port, self._settings.max_message_mib * 2**20)

    async def _announce(self) -> None:
        assert self._transport is not None, "made at the start"
        self._transport.send(HANDSHAKE)
        message = await self._ask(ENV_INFO, "env_info", "has connected, but has not announced its agents")
        try:
            self.announcement = announcement = read_announcement(message)
        except MessageError as error:
            raise self._broken(str(error)) from None
        headless = self._godot_build is not None and self._godot_build.headless
        self._blind = headless and any(
            map(is_picture, chain.from_iterable(a.observations for a in announcement.agents))
        )
        log.info("Connected to %s: %d agents.", self.name, len(announcement.agents))
        if self._roles is not None:
            self._assign_agents(self._roles(announcement, self.label))

    def _assign_agents(self, roles: Sequence[tuple[str, int]]) -> None:
        self._agents, self._behaviors = len(self.announcement.agents), {}
        try:
            assigned = assign_agents(self.announcement, roles, self._pictures, self.label)
        except GameRefused as error:
            raise GameRefused(f"{error}{self._log_tail()}", error.key) from None
        for behavior_id, (spec, agents, group) in assigned.items():
            self.specs[behavior_id] = spec
            self._behaviors[behavior_id] = _Behavior(AgentColumns(spec, agents), group)

    def _read(self, content: bytes, kind: str) -> Any:
        message = read_message(content)
        if message["type"] != kind:
            raise MessageError(f"answered with a message of type {message['type']!r}; expected {kind!r}")
        return message

    def _say_goodbye(self) -> None:
        assert self._transport is not None, "made at the start"
        self._transport.send(CLOSE)

    def _suspicion(self) -> str:
        return f"; its agents observe images, and {NO_WINDOW}" if self._blind else ""

    async def request_reset(self) -> Any:
        """Reset all agents; return the answer. Raises the same errors as `request_step`."""
        return await self._ask(RESET, "reset", "has not answered a reset request")

    async def request_step(self, message: bytes) -> Any:
        """Send the agents' actions, a message from `action_message`; return the answer.

        Raises:
            GameBroken: if the game died, did not answer, dropped the connection, or broke the protocol.
            GameEnded: if the game has closed normally.
        """
        return await self._ask(message, "step", "hasn't finished its step")

    async def call(self, method: str) -> list[Any]:
        """Call a method on all agents; return their results. Raises the same errors as `request_step`."""
        message = await self._ask(call_of(method), "call", f"has not answered a call of {method!r}")
        returned = message.get("returns")
        if not isinstance(returned, list) and not self._has_lost_call:
            self._has_lost_call = True
            log.warning(
                "%s: the game answers null to the call of %r (environment.calls): agents keep the old value. The addon "
                "stops at the first agent that lacks the method; define it for all agents, even if they do not train%s",
                *(self.label, method, self._log_tail()),
            )
        return returned if isinstance(returned, list) else []

    async def _reset(self) -> GameAnswer:
        await self._send_parameters()
        return self._begun(await self.request_reset())

    async def step(self, actions: Mapping[str, ActionBatch]) -> GameAnswer:
        """Let all agents act, and wait for the answer. Raises the same errors as `Game.begin`."""
        texts: list[bytes] = [b""] * self._agents
        for behavior_id, behavior in self._behaviors.items():
            written = behavior.columns.actions(actions[behavior_id])
            if len(self._behaviors) == 1:
                texts = written
            else:
                for place, text in zip(behavior.columns.agents.tolist(), written, strict=True):
                    texts[place] = text
        await self._send_parameters()
        return self._stepped(await self.request_step(action_message(texts)))

    async def _send_parameters(self) -> None:
        """Send all changed environment parameters to the game."""
        for method in self._parameters.calls():
            await self.call(method)

    def _begun(self, message: Mapping[str, Any]) -> GameAnswer:
        observed = self._list(message, "obs")
        for behavior_id, behavior in self._behaviors.items():
            with self._named(behavior_id):
                behavior.data = _AgentData(behavior.columns.observations(observed), len(behavior.ids))
            behavior.decisions[:] = 0
        return self._as_rows({})

    def _stepped(self, message: Mapping[str, Any]) -> GameAnswer:
        observed, rewarded, done = (self._list(message, key) for key in ("obs", "reward", "done"))
        infos = self._list(message, "info") if message.get("info") is not None else None
        if infos is not None and any(isinstance(info, Mapping) and MASK in info for info in infos):
            raise GameRefused(f"{self.label}: sent {MASK!r} in an info: {NO_MASKS}")
        of_episodes: dict[str, list[Mapping[str, Any]]] = {}
        for behavior_id, behavior in self._behaviors.items():
            with self._named(behavior_id):
                columns, before = behavior.columns, behavior.data
                data = behavior.data = _AgentData(columns.observations(observed), len(behavior.ids))
                data.rewards = columns.rewards(rewarded)
                data.ended = columns.done(done).nonzero()[0]
                if len(data.ended):
                    of_ended = columns.infos(infos, data.ended)
                    data.truncated = np.array([bool(info.get(TRUNCATED)) for info in of_ended])
                    data.last = self._last(behavior, before.observations, of_ended)
                    of_episodes.setdefault(columns.spec.name, []).extend(of_ended)
            self._warn_of_no_end(behavior_id, behavior)
        return self._as_rows({name: self._infos.of_episodes(ended) for name, ended in of_episodes.items()})

    def _as_rows(self, statistics: Mapping[str, Mapping[str, StatisticValues]]) -> GameAnswer:
        """Return all behaviours' data as rows."""
        totals: dict[int, float] = {}
        for behavior in self._behaviors.values():
            if behavior.group:
                totals[behavior.group] = totals.get(behavior.group, 0.0) + float(behavior.data.rewards.sum())
        rows = {
            behavior_id: self._rows(behavior_id, behavior, totals.get(behavior.group, 0.0))
            for behavior_id, behavior in self._behaviors.items()
        }
        return GameAnswer(rows, behavior_statistics=statistics)

    def _rows(self, behavior_id: str, behavior: _Behavior, total: float) -> TrackedRows:
        """Return all agents' rows, endings first; `total` is the reward of the behaviour's group, if it has one."""
        ids, data = behavior.ids, behavior.data
        ended, rewards, observations = data.ended, data.rewards, data.observations
        if len(ended):
            ids, rewards = np.concatenate((ids[ended], ids)), np.concatenate((rewards[ended], rewards))
            observations = tuple(np.concatenate(pair) for pair in zip(data.last, observations, strict=True))
        shared = total - rewards if behavior.group else np.zeros(len(ids))
        columns = GameRows(
            ids=ids,
            rewards=rewards,
            ended=len(ended),
            interrupted=data.truncated,
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
        ended = behavior.data.ended
        last = tuple(observation[ended] for observation in before)
        with_last = [place for place, info in enumerate(infos) if info.get(LAST) is not None]
        if with_last:
            agents = AgentColumns(behavior.columns.spec, behavior.columns.agents[ended[with_last]])
            by_agent: list[Any] = [None] * self._agents
            for place in with_last:
                by_agent[int(behavior.columns.agents[ended[place]])] = infos[place][LAST]
            try:
                final = agents.observations(by_agent)
            except WrongColumn as error:
                raise WrongColumn(f"{error}, in the {LAST!r} of its info") from None
            for column, values in zip(last, final, strict=True):
                column[with_last] = values
        return last

    def _warn_of_no_end(self, behavior_id: str, behavior: _Behavior) -> None:
        """Count each agent's decisions since its last episode ended, and warn once if there are too many."""
        behavior.decisions += 1
        behavior.decisions[behavior.data.ended] = 0
        if self._warned or not (behavior.decisions >= _LONG).any():
            return
        self._warned = True
        agent = int(behavior.ids[int(behavior.decisions.argmax())])
        log.warning(
            "%s, behaviour %r: agent %d has not been done for %d decisions. An agent that only resets itself does not "
            "end its episode, so its returns are unknown and its trajectories continue across resets. Set done = true "
            "at the end of each episode (reset_after does not), or set environment.max_episode_steps",
            self.label,
            behavior_id,
            agent,
            _LONG,
        )

    def _list(self, message: Mapping[str, Any], key: str) -> list[Any]:
        """Return a list from the message, after checking that it has one entry for each agent."""
        values = message.get(key)
        if not isinstance(values, list) or len(values) != self._agents:
            what = f"{len(values)} entries" if isinstance(values, list) else repr(values)[:60]
            raise GameBroken(
                f"{self.label}: its message has {what} as {key!r}; expected one for each of the {self._agents} agents "
                "that it has announced; agents can't join or leave a running game"
            )
        return values

    @contextmanager
    def _named(self, behavior_id: str) -> Iterator[None]:
        """Turn a `WrongColumn` into an error that names the game."""
        try:
            yield
        except WrongColumn as error:
            raise GameBroken(f"{self.label}, behaviour {behavior_id!r}, {error}{self._log_tail()}") from None


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
                    self._name,
                    name,
                    value,
                )
        return methods


def make_godot_group(request: EnvironmentRequest) -> GameGroup:
    """Make the group that `environment` and `env_settings` describe; its first reset starts the games.

    Game n gets the run's seed + n. Pressing Stop in the editor does not end a run; pressing Play continues it.
    """
    config, settings = request.config, _settings(request.config)
    roles = partial(behaviors_of_agents, roles=settings.behaviors, unnamed=settings.behavior, listed=config.behaviors)

    def make(index: int, parameters: EpisodeParameters | None) -> GodotGame:
        worker_id = request.first_instance + index
        env_path = config.env_settings.env_path
        game = game_settings(config, worker_id, request.seed)
        if env_path is None:
            game = replace(game, port=game.port or DEFAULT_PORT)
        build = None if env_path is None else _build(request, env_path, worker_id)
        calls = ParameterCalls(index, parameters, settings.calls, f"{_WORDING.game} {worker_id}")
        return GodotGame(game, build, roles, settings.pictures, settings.info_keys, calls)

    return make_game_group(config, settings.num_envs, GodotGame, make)


def _build(request: EnvironmentRequest, path: str, worker_id: int) -> GodotBuild:
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
    )


def _settings(config: RunConfig) -> GodotSettings:
    settings = config.environment
    assert isinstance(settings, GodotSettings), "the table of environment kinds names this model"
    return settings
