"""The interface of Godot RL Agents' Python side for scripts: one game, step by step and without asyncio.

    env = GodotEnv("builds/ball.x86_64", speedup=8)
    observations, infos = env.reset()
    observations, rewards, terminated, truncated, infos = env.step(actions)
    env.close()

The pipeline does not use it: there, `headrace.stages.environments.godot` steps several games at once.
"""

from __future__ import annotations

import atexit
import json
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.stages.environments.godot.announcement import (
    CHANNELS,
    AgentSpaces,
    BadAnnouncement,
    is_picture,
    read_announcement,
)
from headrace.stages.environments.godot.blocking import BlockingLink, GodotEnvError
from headrace.stages.environments.godot.gymnasium_spaces import action_space, flat_space, observation_space, split
from headrace.stages.environments.godot.messages import (
    CLOSE,
    ENV_INFO,
    HANDSHAKE,
    OF_OBSERVATIONS,
    RESET,
    WireError,
    call_of,
    not_a_number,
    read_message,
    read_picture,
)
from headrace.stages.environments.godot.worker import GodotBuild
from headrace.stages.errors import StageError

Step = tuple[list[dict[str, Any]], list[float], list[bool], list[bool], list[dict[str, Any]]]
"""Of each agent: observations by key, reward, whether its episode has ended (twice), infos."""

_PATIENCE_S = 2.0
"""Time that a build may take to end after `close`."""


class GodotEnv:
    """One game made with Godot, with the constructor and methods of `godot_rl.core.godot_env.GodotEnv`.

    What differs: actions keep the game's order of keys, cameras' pictures have their pixels in the right places,
    `infos` of `reset` are the game's, and a game that hangs, closes or sends what is no number raises a
    `GodotEnvError` that says so. As there, an end counts as terminated and truncated at once; `infos` have what the
    game knows better.

    Args:
        env_path: the exported game, with or without its extension; None to wait for the editor's Play.
        port: the port that the game calls.
        show_window: False to run without a window, and so without pictures of cameras.
        seed: for the game's random numbers.
        framerate: frames per second of game time, however long they take (`--fixed-fps`); None: in real time.
        action_repeat: physics frames between decisions; None: as the scene says.
        speedup: times as fast as the game is meant to be; None: as the scene says.
        convert_action_space: True to give actions as one array [agents, width], see `flat_space`.
        **arguments: passed on to the game as `--key=value`.

    Attributes:
        num_envs: number of agents.
        agent_policy_names: of each agent.
        observation_spaces, action_spaces: of each agent, by key.
        observation_space, action_space: of the first agent; the latter as `step` takes it.

    Raises:
        GodotEnvError: if there is no such game, it does not connect in time, or announces what can't be read.
    """

    MAJOR_VERSION = "0"
    MINOR_VERSION = "7"
    DEFAULT_PORT = 11008
    DEFAULT_TIMEOUT = 60
    """Seconds for the connection, and for each answer."""

    def __init__(
        self,
        env_path: str | Path | None = None,
        port: int = DEFAULT_PORT,
        show_window: bool = False,
        seed: int = 0,
        framerate: int | None = None,
        action_repeat: int | None = None,
        speedup: int | float | None = None,
        convert_action_space: bool = False,
        **arguments: Any,
    ) -> None:
        self.port = port
        command = None
        if env_path is None or env_path == "debug":
            sys.stderr.write(f"No game is given: press Play in Godot's editor; waiting on port {port}.\n")
        else:
            options = tuple(f"--{key}={value}" for key, value in arguments.items())
            build = GodotBuild(
                env_path,
                options,
                show_output=True,
                headless=not show_window,
                speedup=speedup,
                fixed_fps=framerate,
                action_repeat=action_repeat,
            )
            try:
                command = build.command(port, seed)
            except StageError as error:
                raise GodotEnvError(str(error)) from None
        self._link = BlockingLink(command, port, self.DEFAULT_TIMEOUT)
        self.proc = self._link.process
        atexit.register(_close_at_exit, weakref.ref(self))
        try:
            self._link.send(HANDSHAKE)
            self._announce(self._ask(ENV_INFO, "env_info"))
            self._converts = convert_action_space
            first = self.action_spaces[0]
            self.tuple_action_spaces = [spaces.Tuple(list(each.spaces.values())) for each in self.action_spaces]
            self.action_space: spaces.Space[Any] = (
                flat_space(first) if convert_action_space else self.tuple_action_spaces[0]
            )
        except BaseException:
            self._link.close()
            raise

    def reset(self, seed: int | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Ask the game for a reset; returns observations and infos of each agent. The protocol takes no seed.

        Raises:
            GodotEnvError: if the game does not answer as it should.
        """
        message = self._ask(RESET, "reset")
        return self._observations(message), self._infos(message)

    def step(self, action: Any, order_ij: bool = False) -> Step:
        """Let all agents act.

        Args:
            action: by key in the game's order, and for each key by agent; or one array, if the action space is
                converted.
            order_ij: True if agents come first, for each of which there are its actions in that order, or by key as a
                sample of its own in `action_spaces`.

        Returns:
            for each agent: observations by key, reward, whether its episode has ended (twice), infos.

        Raises:
            ValueError: if the actions do not fit the action spaces.
            GodotEnvError: if the game does not answer as it should.
        """
        return self._stepped(self._link.exchange(self._message(action, order_ij)))

    def step_send(self, action: Any, order_ij: bool = False) -> None:
        """Send actions, as `step`, without waiting for the answer."""
        self._link.send(self._message(action, order_ij))

    def step_recv(self) -> Step:
        """Wait for the answer to `step_send`; returns and raises as `step`."""
        return self._stepped(self._link.receive())

    def _stepped(self, content: bytes | bytearray) -> Step:
        message = self._read(content, "step")
        done = list(map(bool, self._per_agent(message, "done")))
        rewards = self._per_agent(message, "reward")
        return self._observations(message), rewards, done, done.copy(), self._infos(message)

    def call(self, method: str) -> list[Any]:
        """Call a method, without arguments, of all agents; returns what each returned."""
        returned = self._ask(call_of(method), "call").get("returns")
        return returned if isinstance(returned, list) else []

    def close(self) -> None:
        """Ask the game to quit, and end it if it doesn't; closing twice is allowed."""
        with suppress(GodotEnvError):  # it has ended
            self._link.send(CLOSE)
        self._link.close(_PATIENCE_S)

    def _announce(self, message: Mapping[str, Any]) -> None:
        try:
            announcement = read_announcement(message)
            self.action_spaces = [action_space(agent.actions) for agent in announcement.agents]
            self.observation_spaces = [observation_space(agent.observations) for agent in announcement.agents]
        except BadAnnouncement as error:
            raise GodotEnvError(f"the game {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise GodotEnvError(f"the game announces a space that can't be read: {error!r}") from error
        self.num_envs = len(announcement.agents)
        self.observation_space = self.observation_spaces[0]
        self.agent_policy_names = [agent.policy for agent in announcement.agents]
        self._acting = _of_equal_actions(announcement.agents)
        self._pictures = [
            (place, key, space.shape)
            for place, each in enumerate(self.observation_spaces)
            for key, space in each.spaces.items()
            if is_picture(key) and space.shape is not None
        ]

    def _ask(self, content: bytes, kind: str) -> dict[str, Any]:
        return self._read(self._link.exchange(content), kind)

    def _message(self, action: Any, order_ij: bool) -> bytes:
        """The message with the actions of all agents, in ASCII, as Godot reads one byte a character."""
        if self._converts:
            action, order_ij = split(np.asarray(action), self.action_spaces[0]), False
        agents = self.num_envs
        if len(self._acting) == 1:
            maps = self._acting[0].write(action, order_ij, agents)
        else:
            maps = [{}] * agents
            for acting in self._acting:
                for place, each in zip(acting.places, acting.write(action, order_ij, agents), strict=True):
                    maps[place] = each
        content = orjson.dumps({"type": "action", "action": maps})
        if b"null" in content and (b":null" in content or b"[null" in content or b",null" in content):
            raise ValueError("actions: a number is not finite")
        return content if content.isascii() else json.dumps({"type": "action", "action": maps}).encode()

    def _read(self, content: bytes | bytearray, kind: str) -> dict[str, Any]:
        try:
            message = orjson.loads(content)
            plain = isinstance(message, dict) and b"null" not in content
        except orjson.JSONDecodeError:
            plain = False
        if not plain:
            message = self._doubtful(bytes(content))
        if message.get("type") != kind:
            self._link.close()
            found = message.get("type")
            raise GodotEnvError(f"the game has answered with a message of type {found!r}, expected {kind!r}")
        return cast("dict[str, Any]", message)

    def _doubtful(self, content: bytes) -> dict[str, Any]:
        """A message that may be none, or have words in place of numbers."""
        try:
            message = read_message(content)
        except WireError as error:
            self._link.close()
            raise GodotEnvError(f"the game {error}") from None
        self._refuse_words(message)
        return message

    def _refuse_words(self, message: Mapping[str, Any]) -> None:
        """Raise if a reward or a number of an observation is none."""
        for agent, reward in enumerate(message.get("reward") or ()):
            if not isinstance(reward, int | float):
                raise GodotEnvError(f"agent {agent} has the reward {not_a_number(reward)}, expected a finite number")
        for agent, observed in enumerate(message.get("obs") or ()):
            for key, values in observed.items() if isinstance(observed, Mapping) else ():
                for index, value in enumerate(values if isinstance(values, list) else [values]):
                    if value is None or (isinstance(value, str) and not is_picture(key)):
                        raise GodotEnvError(
                            f"agent {agent} has {not_a_number(value)} at index {index} of the observation {key!r}, "
                            f"expected finite numbers; {OF_OBSERVATIONS}"
                        )

    def _per_agent(self, message: Mapping[str, Any], key: str) -> list[Any]:
        values = message.get(key)
        if not isinstance(values, list) or len(values) != self.num_envs:
            found = f"{len(values)} entries" if isinstance(values, list) else repr(values)
            raise GodotEnvError(
                f"the game has sent {found} as {key!r}, expected one for each of {self.num_envs} agents"
            )
        return values

    def _observations(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        observed = self._per_agent(message, "obs")
        for place, key, shape in self._pictures:
            try:
                observed[place][key] = _picture(observed[place][key], shape)
            except (KeyError, TypeError, ValueError) as error:
                raise GodotEnvError(
                    f"agent {place} has no picture of the announced size {shape} as {key!r}: {error}"
                ) from None
        return observed

    def _infos(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        if message.get("info") is None:
            return [{} for _ in range(self.num_envs)]
        return self._per_agent(message, "info")


class _ActingAgents:
    """Agents of equal action spaces, and what their actions are in a message."""

    def __init__(self, places: list[int], actions: Mapping[str, Any]) -> None:
        self.places = places
        self._names = list(actions)
        self._sizes = [
            0 if space["action_type"] == "discrete" else int(space["size"]) for space in actions.values()
        ]  # 0: a choice, one number

    def write(self, action: Any, order_ij: bool, agents: int) -> list[dict[str, Any]]:
        """The agents' actions by key, of those of all `agents` as [key][agent] or [agent][key]."""
        places, names = self.places, self._names
        columns = []
        for index, size in enumerate(self._sizes):
            try:
                if order_ij:
                    at = names[index] if isinstance(action[places[0]], Mapping) else index
                    values = [action[place][at] for place in places]
                else:
                    values = action[index]
                    if len(places) != agents:
                        values = [values[place] for place in places]
            except (IndexError, KeyError):
                expected = f"those of {len(names)} keys and {agents} agents"
                raise ValueError(f"actions: none for the key {names[index]!r}; expected {expected}") from None
            columns.append(self._plain(values if isinstance(values, np.ndarray) else np.asarray(values), index, size))
        if len(names) == 1:
            (name,), (column,) = names, columns
            return [{name: value} for value in column]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _plain(self, values: NDArray[Any], index: int, size: int) -> list[Any]:
        """One key's values as lists of numbers, or as numbers."""
        count = len(self.places)
        if size:
            if values.shape == (count, size):
                return list(values.tolist())
        elif values.size == count:
            whole = values.reshape(-1)
            return list((whole if whole.dtype.kind in "iu" else whole.astype(np.int64)).tolist())
        expected = f"{size} numbers" if size else "one whole number"
        raise ValueError(
            f"actions: those of the key {self._names[index]!r} have the shape {values.shape}, expected {expected} for "
            f"each of {count} agents"
        )


def _of_equal_actions(agents: Sequence[AgentSpaces]) -> list[_ActingAgents]:
    places: dict[str, list[int]] = {}
    for place, agent in enumerate(agents):
        places.setdefault(json.dumps(agent.actions), []).append(place)
    return [_ActingAgents(own, agents[own[0]].actions) for own in places.values()]


def _picture(text: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """A picture in the announced order of axes; cameras send the channels last, whatever they announce."""
    if len(shape) == 3 and shape[0] in CHANNELS:
        return np.moveaxis(read_picture(text, (*shape[1:], shape[0]), channels_last=True), -1, 0)
    return read_picture(text, shape, channels_last=len(shape) == 3 and shape[2] in CHANNELS)


def _close_at_exit(env: weakref.ref[GodotEnv]) -> None:
    alive = env()
    if alive is not None:
        alive.close()
