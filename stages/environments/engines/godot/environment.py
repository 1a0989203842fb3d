"""An interface for scripts, the same as in the Python package Godot RL Agents: one game, stepped without asyncio.

    env = GodotEnv("builds/ball.x86_64", speedup=8)
    observations, infos = env.reset()
    observations, rewards, terminated, truncated, infos = env.step(actions)
    env.close()

Each request blocks until the game's answer arrives. The pipeline uses `game` and `engines/transport.py` instead, which
wait for several games at a time.
"""

from __future__ import annotations

import atexit
import json
import select
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.process_tree import ProcessTree
from headrace.stages.environments.engines.errors import MessageError
from headrace.stages.environments.engines.godot.game import GodotBuild
from headrace.stages.environments.engines.godot.messages import (
    CHANNELS,
    CLOSE,
    ENV_INFO,
    HANDSHAKE,
    RESET,
    TRUNCATED,
    AgentColumns,
    AgentSpaces,
    WrongColumn,
    behavior_spec,
    call_of,
    info_of,
    is_picture,
    read_announcement,
    read_message,
    read_picture,
    truth,
)
from headrace.stages.environments.engines.process import describe_exit, find_executable
from headrace.stages.environments.engines.transport import ADDRESS, HEADER
from headrace.stages.errors import StageError

_CHUNK = 256 * 1024
_MOST_BYTES = 2**30
"""Maximum size of an answer in bytes. The addon never announces a greater length."""
_POLL_S = 0.05
_LAST_WORDS_S = 2.0
"""Seconds to wait for the game's process to exit after its connection has closed."""
_CLOSED = "the environment is closed, or its game has failed; create a new one"
_UNANSWERED = "the game has not answered the last request yet: call step_recv before you send anything else"
_UNASKED = "the game sent a message that was not requested"


class GodotEnvError(ConnectionError):
    """The game can't be started, does not answer, has closed, or sends invalid data."""


class BlockingLink:
    """The connection that a game opens, and the game's process if `command` starts it.

    Args:
        command: the program and its arguments; None if the user starts the game.
        port: the port to listen on.
        timeout_s: seconds to wait for the connection, and for each answer.

    Raises:
        GodotEnvError: if the port is taken, or the game does not connect in time.
    """

    def __init__(self, command: list[str] | None, port: int, timeout_s: float) -> None:
        self.process: ProcessTree | None = None
        self._port = port
        self._timeout_s = timeout_s
        self._buffer = bytearray(_CHUNK)
        self._have = 0
        """Number of bytes of an incomplete answer received so far. Between calls, it is above 0 only after an
        interrupt."""
        self._is_unanswered = False
        """True while a request is unanswered."""
        self._socket: socket.socket | None = None
        try:
            server = socket.create_server((ADDRESS, port), backlog=1)
        except OSError as error:
            raise GodotEnvError(
                f"can't listen on port {port}: {error.strerror}; end the program that uses it, or pass another port="
            ) from error
        with server:
            if command is not None:
                try:
                    self.process = ProcessTree(command, shows=True, stdin=subprocess.DEVNULL)
                except OSError as error:
                    raise GodotEnvError(f"{command[0]} can't be started: {error.strerror}") from error
            try:
                self._socket = self._accepted(server)
            except BaseException:
                self.close()
                raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit_waiting(self._socket, timeout_s)
        if sys.platform != "win32":
            self._arrived = select.poll()
            self._arrived.register(self._socket, select.POLLIN)

    def exchange(self, content: bytes) -> bytes | bytearray:
        """Send a message and return the answer. Raises the same errors as `send` and `receive`."""
        self.send(content)
        return self.receive()

    @property
    def connection(self) -> socket.socket:
        """The open connection.

        Raises:
            GodotEnvError: if the connection is closed.
        """
        if self._socket is None:
            raise GodotEnvError(_CLOSED)
        return self._socket

    def send(self, content: bytes, is_answered: bool = True) -> None:
        """Send a message; `is_answered` is True if the game will answer it.

        Raises:
            GodotEnvError: if the game is gone, or has not answered the last message.
        """
        if self._socket is None:
            raise GodotEnvError(_CLOSED)
        if self._is_unanswered:
            raise GodotEnvError(_UNANSWERED)
        if self._unasked():
            self.close()
            raise GodotEnvError(_UNASKED)
        try:
            self._is_unanswered = is_answered
            self._socket.sendall(HEADER.pack(len(content)) + content)
        except OSError:
            raise self._gone() from None

    def say_goodbye(self, content: bytes, patience_s: float) -> None:
        """Wait for a pending answer, then send a last message. Raises the same errors as `send` and `receive`."""
        if self._is_unanswered and self._socket is not None:
            _limit_waiting(self._socket, patience_s)
            self.receive()
        self.send(content, is_answered=False)

    def receive(self) -> bytes | bytearray:
        """Wait for a message.

        Raises:
            GodotEnvError: if no message arrives in time, or the game is gone.
        """
        if self._socket is None:
            raise GodotEnvError(_CLOSED)
        if not self._is_unanswered:
            raise GodotEnvError("the game has no request to answer: call step_send before step_recv")
        while self._have < (wanted := self._wanted()):
            self._have += self._read(self._have)
        have, self._have, self._is_unanswered = self._have, 0, False
        if have > wanted:
            self.close()
            raise GodotEnvError(_UNASKED)
        return self._buffer[HEADER.size : wanted]

    def close(self, patience_s: float = 0.0) -> None:
        """Close the connection; kill the process if it does not exit within `patience_s`. Closing twice is allowed."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
            self.process.kill_all()
            self.process.wait()

    def _unasked(self) -> bool:
        """Return True if an unrequested message has arrived, which would shift all later answers by one."""
        assert self._socket is not None
        if sys.platform == "win32":
            readable = bool(select.select([self._socket], [], [], 0)[0])
        else:
            readable = bool(self._arrived.poll(0))
        try:
            return readable and self._socket.recv(1, socket.MSG_PEEK) != b""
        except OSError:
            return False  # the game is gone; `receive` reports this

    def _accepted(self, server: socket.socket) -> socket.socket:
        server.settimeout(_POLL_S)
        latest = time.monotonic() + self._timeout_s
        while True:
            with suppress(TimeoutError):
                return server.accept()[0]
            code = None if self.process is None else self.process.poll()
            if code is not None:
                raise GodotEnvError(f"the game ended with {describe_exit(code)} before it connected")
            if time.monotonic() > latest:
                cure = (
                    "press Play in Godot's editor"
                    if self.process is None
                    else "does it read the port from its arguments?"
                )
                raise GodotEnvError(
                    f"no game connected to port {self._port} within {self._timeout_s:g} s; its main scene needs a Sync "
                    f"node with Control Mode 'Training'; {cure}"
                )

    def _read(self, have: int) -> int:
        assert self._socket is not None
        try:
            count = self._socket.recv_into(memoryview(self._buffer)[have:] if have else self._buffer)
        except (TimeoutError, BlockingIOError):
            self.close()
            raise GodotEnvError(
                f"the game has not answered within {self._timeout_s:g} s: it hangs, or an error in its scripts "
                "prevents an answer; GodotEnv.DEFAULT_TIMEOUT sets the limit"
            ) from None
        except OSError:
            count = 0
        if not count:
            raise self._gone()
        return count

    def _wanted(self) -> int:
        """Return the number of bytes in the answer, as far as it is known, and enlarge the buffer to hold them."""
        if self._have < HEADER.size:
            return HEADER.size
        (size,) = HEADER.unpack_from(self._buffer)
        if size > _MOST_BYTES:
            self.close()
            raise GodotEnvError(f"the game sent an invalid message: its length would be {size:,} bytes")
        if len(self._buffer) < HEADER.size + size + 1:  # one extra byte, to detect unrequested data
            self._buffer += bytes(HEADER.size + size + 1 - len(self._buffer))
        return int(HEADER.size + size)

    def _gone(self) -> GodotEnvError:
        code = None
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(_LAST_WORDS_S)
        self.close()
        how = "" if code is None else f"; it ended with {describe_exit(code)}"
        return GodotEnvError(f"the game has closed the connection{how}")


def _limit_waiting(connection: socket.socket, timeout_s: float) -> None:
    """Make the operating system time out reads, because Python's own timeout costs a second system call per read."""
    if sys.platform == "win32":
        connection.settimeout(timeout_s)
        return
    connection.setblocking(True)
    whole = int(timeout_s)
    limit = struct.pack("@ll", whole, int((timeout_s - whole) * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    # The addon sends a message's length separately: a wake-up for that would be wasted.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, HEADER.size + 1)


class ActingAgents:
    """Converts the actions of agents with equal action spaces to a message."""

    def __init__(self, places: list[int], actions: Mapping[str, Any]) -> None:
        self.places = places
        self._names = list(actions)
        self._sizes = [
            0 if space["action_type"] == "discrete" else int(space["size"]) for space in actions.values()
        ]  # 0 for a discrete action, which is one number

    def write(self, action: Any, order_ij: bool, agents: int) -> list[dict[str, Any]]:
        """Return each agent's actions by key, given all agents' actions as `[key][agent]` or `[agent][key]`."""
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
                expected = f"actions for {len(names)} keys and {agents} agents"
                raise ValueError(f"actions: no actions for the key {names[index]!r}; expected {expected}") from None
            columns.append(self._plain(values if isinstance(values, np.ndarray) else np.asarray(values), index, size))
        if len(names) == 1:
            (name,), (column,) = names, columns
            return [{name: value} for value in column]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _plain(self, values: NDArray[Any], index: int, size: int) -> list[Any]:
        """Return each agent's value for one key: a list of numbers, or an integer for a discrete action."""
        count = len(self.places)
        if size:
            if values.shape == (count, size):
                return list(values.tolist())
        elif values.size == count:
            whole = values.reshape(-1)
            return list((whole if whole.dtype.kind in "iu" else whole.astype(np.int64)).tolist())
        expected = f"{size} numbers" if size else "one whole number"
        raise ValueError(
            f"actions: for the key {self._names[index]!r}, the shape is {values.shape}; expected {expected} for each "
            f"of {count} agents"
        )


def of_equal_actions(agents: Sequence[AgentSpaces]) -> list[ActingAgents]:
    """Return a game's agents, grouped by action space."""
    places: dict[str, list[int]] = {}
    for place, agent in enumerate(agents):
        places.setdefault(json.dumps(agent.actions), []).append(place)
    return [ActingAgents(group, agents[group[0]].actions) for group in places.values()]


def action_space(announced: Mapping[str, Any]) -> spaces.Dict:
    """Return the space of one agent's actions by key, in the game's order."""
    return _in_order(
        {
            key: spaces.Discrete(int(space["size"]))
            if space["action_type"] == "discrete"
            else spaces.Box(-1.0, 1.0, (int(space["size"]),))
            for key, space in announced.items()
        }
    )


def observation_space(announced: Mapping[str, Any]) -> spaces.Dict:
    """Return the space of one agent's observations, by key and with bounds; images are bytes, axes as announced."""
    return _in_order({key: _observation(key, observation) for key, observation in announced.items()})


def flat_space(space: spaces.Dict) -> spaces.Space[Any]:
    """Return the single space that stands for all actions: MultiDiscrete if all are discrete, otherwise one Box.

    Raises:
        NotImplementedError: if an action with more than two choices is combined with continuous actions.
    """
    parts = space.spaces
    if all(isinstance(part, spaces.Discrete) for part in parts.values()):
        return spaces.MultiDiscrete([_choices(part) for part in parts.values()])
    for key, part in parts.items():
        if _choices(part) > 2:
            raise NotImplementedError(
                f"the action {key!r} has {_choices(part)} choices and is combined with continuous actions, which a "
                "single Box can't hold; leave convert_action_space false, or train with environment.kind: godot"
            )
    return spaces.Box(-1.0, 1.0, (sum(_width(part) for part in parts.values()),))


class ActionSpaceProcessor:
    """Converts a learner's actions to actions by key, like the class in `godot_rl.core.utils`.

    Args:
        action_space: the action space, a Dict of each key's space.
        convert: True if learners pass one array, see `flat_space`.

    Attributes:
        action_space: the space of the learner's actions.
    """

    def __init__(self, action_space: spaces.Dict, convert: bool) -> None:
        self._original = action_space
        self._convert = convert
        self.action_space = flat_space(action_space) if convert else spaces.Tuple(list(action_space.spaces.values()))

    def to_original_dist(self, action: Any) -> Any:
        """Return actions [agents, width] split by key; return actions in other forms unchanged."""
        return split(np.asarray(action), self._original) if self._convert else action


def split(actions: NDArray[Any], space: spaces.Dict) -> list[NDArray[Any]]:
    """Split flat actions [agents, width] by key. A float above 0 selects a discrete action's second choice."""
    parts = []
    begin = 0
    for part in space.spaces.values():
        if isinstance(part, spaces.Discrete):
            column = actions[:, begin]
            parts.append(column if np.issubdtype(actions.dtype, np.integer) else (column > 0).astype(np.int64))
        else:
            parts.append(actions[:, begin : begin + _width(part)])
        begin += _width(part)
    return parts


def _observation(key: str, announced: Any) -> spaces.Space[Any]:
    if announced["space"] == "discrete":
        return spaces.Discrete(int(announced["size"]))
    shape = tuple(int(length) for length in announced["size"])
    if is_picture(key):
        return spaces.Box(0, 255, shape, np.uint8)
    try:
        low, high = (np.full(shape, announced.get(*bound), np.float32) for bound in (("low", -1), ("high", 1)))
        return spaces.Box(low, high, shape, np.float32)
    except (TypeError, ValueError, AssertionError) as error:
        raise GodotEnvError(f"the game announces the observation {key!r} as {announced!r}: {error}") from None


def _in_order(parts: dict[str, spaces.Space[Any]]) -> spaces.Dict:
    """Return a Dict space that keeps the order of the keys. Given a plain dict, Gymnasium would sort them."""
    return spaces.Dict(list(parts.items()))


def _choices(part: spaces.Space[Any]) -> int:
    return int(part.n) if isinstance(part, spaces.Discrete) else 0


def _width(part: spaces.Space[Any]) -> int:
    return int(np.prod(part.shape)) if isinstance(part, spaces.Box) else 1


Step = tuple[list[dict[str, Any]], list[float], list[bool], list[bool], list[dict[str, Any]]]
"""Lists with one entry for each agent: observations by key, rewards, terminated flags, truncated flags, infos."""

_PATIENCE_S = 2.0
"""Seconds that `close` waits for a build to answer, and then for it to exit."""
_INTERNAL = {
    *("_send_as_json", "_get_json_dict", "_get_data", "_get_obs", "_send_string", "_send_action", "_clear_socket"),
    *("_start_server", "_launch_env", "_handshake", "_get_env_info", "_process_obs", "_decode_2d_obs_from_string"),
    *("_close", "_set_platform_suffix"),
}
"""Private names in Godot RL Agents' class that some scripts override."""


class GodotEnv:
    """One game made with Godot, with the constructor and methods of `godot_rl.core.godot_env.GodotEnv`.

    Differences: actions keep the game's order of keys, camera images have correct pixels, and `reset` returns the
    game's own infos. An episode is truncated instead of terminated if the game's info has `TimeLimit.truncated`. A game
    that hangs, closes, or sends values other than numbers raises a `GodotEnvError` that explains the cause.

    Args:
        env_path: the exported game, with or without its extension; None to wait until Play is pressed in the editor.
        port: the port that the game connects to.
        show_window: False to run without a window, and so without camera images.
        seed: the seed for the game's random numbers.
        framerate: frames per second of game time, however long they take (`--fixed-fps`); None for real time.
        action_repeat: physics frames between decisions; None for the scene's own value.
        speedup: multiple of the game's normal speed; None for the scene's own value.
        convert_action_space: True to pass actions as one array [agents, width], see `flat_space`.
        **arguments: passed to the game as `--key=value`.

    Attributes:
        num_envs: number of agents.
        agent_policy_names: each agent's policy name.
        observation_spaces, action_spaces: each agent's spaces, keyed as in the game.
        observation_space, action_space: the first agent's spaces; `action_space` is in the form that `step` takes.
        action_space_processor: converts an array from `action_space` to actions by key.
        tuple_action_spaces: each agent's action spaces, without the keys.
        proc: the game's process; None for the editor.

    Raises:
        GodotEnvError: if the game does not exist, does not connect in time, or announces something unreadable.
    """

    MAJOR_VERSION = "0"
    MINOR_VERSION = "7"
    DEFAULT_PORT = 11008
    DEFAULT_TIMEOUT = 60
    """Seconds to wait for the connection, and for each answer."""
    ENDS_ARE_TERMINATED = False
    """True to mark truncated episodes as terminated too, for callers that read only the terminated flag, such as Godot
    RL Agents' wrapper for Stable-Baselines3."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in _INTERNAL & set(vars(cls)):
            raise TypeError(
                f"{cls.__name__}.{name} would never be called, because it is internal to Godot RL Agents' class: "
                "override reset, step, step_send, step_recv, call or close, or derive from that class itself"
            )

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
            sys.stderr.write(f"No executable was passed: press Play in Godot's editor; waiting on port {port}.\n")
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
        self._readers: list[AgentColumns] = []
        self._link = BlockingLink(command, port, self.DEFAULT_TIMEOUT)
        self.proc = self._link.process
        atexit.register(_close_at_exit, weakref.ref(self))
        try:
            self._link.send(HANDSHAKE, is_answered=False)
            self._announce(self._ask(ENV_INFO, "env_info"))
            self._converts = convert_action_space
            self.tuple_action_spaces = [spaces.Tuple(list(space.spaces.values())) for space in self.action_spaces]
            self.action_space_processor = ActionSpaceProcessor(self.action_spaces[0], convert_action_space)
            self.action_space: spaces.Space[Any] = self.action_space_processor.action_space
        except BaseException:
            self._link.close()
            raise

    def reset(self, seed: int | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Reset the game; return each agent's observations and infos. `seed` has no effect: the protocol can't send it.

        Raises:
            GodotEnvError: if the answer is invalid, or agents observe something that they have not announced.
        """
        try:
            message = self._ask(RESET, "reset")
            self._check(message)  # only here: at each step, the check would take as long as the step
            return self._observations(message), self._infos(message)
        except WrongColumn as error:
            raise GodotEnvError(f"the game, {error}") from None

    def step(self, action: Any, order_ij: bool = False) -> Step:
        """Let all agents act.

        Args:
            action: the actions as `[key][agent]`, with the keys in the game's order, or one array if the action space
                is converted.
            order_ij: True for `[agent][key]`: each agent's actions are a list in the game's order, or a dict like a
                sample of the agent's space in `action_spaces`.

        Returns:
            lists with one entry for each agent: observations by key, rewards, terminated flags, truncated flags, infos.

        Raises:
            ValueError: if the actions do not fit the action spaces.
            GodotEnvError: if the answer is invalid.
        """
        return self._stepped(self._link.exchange(self._message(action, order_ij)))

    def step_send(self, action: Any, order_ij: bool = False) -> None:
        """Send actions like `step`, but do not wait for the answer."""
        self._link.send(self._message(action, order_ij))

    def step_recv(self) -> Step:
        """Wait for the answer to `step_send`. Returns and raises the same as `step`."""
        return self._stepped(self._link.receive())

    def _stepped(self, content: bytes | bytearray) -> Step:
        try:
            message = self._read(content, "step")
            rewards, infos = self._per_agent(message, "reward"), self._infos(message)
            terminated = [truth(agent, "done", done) for agent, done in enumerate(self._per_agent(message, "done"))]
            truncated = [False] * self.num_envs
            for agent, done in enumerate(terminated):
                if done:
                    cut = truncated[agent] = truth(agent, TRUNCATED, infos[agent].get(TRUNCATED, False))
                    terminated[agent] = not cut or self.ENDS_ARE_TERMINATED
        except WrongColumn as error:
            raise GodotEnvError(f"the game, {error}") from None
        return self._observations(message), rewards, terminated, truncated, infos

    def call(self, method: str) -> list[Any]:
        """Call a method without arguments on all agents; return their results."""
        returned = self._ask(call_of(method), "call").get("returns")
        return returned if isinstance(returned, list) else []

    def close(self) -> None:
        """Wait for a pending answer, make the game exit, and kill it if it does not exit; closing twice is allowed."""
        with suppress(GodotEnvError):  # the game has exited
            self._link.say_goodbye(CLOSE, _PATIENCE_S)
        self._link.close(_PATIENCE_S)

    @property
    def connection(self) -> socket.socket:
        """The socket that is connected to the game.

        Raises:
            GodotEnvError: if the environment is closed, or its game has failed.
        """
        return self._link.connection

    def from_numpy(self, action: Any, order_ij: bool = False) -> list[dict[str, Any]]:
        """Return each agent's actions as a dict, as messages contain them.

        Args:
            action: the actions as `[key][agent]`, with the keys in the game's order.
            order_ij: see `step`.

        Raises:
            ValueError: if the actions do not fit the action spaces.
        """
        agents = self.num_envs
        if len(self._acting) == 1:
            return self._acting[0].write(action, order_ij, agents)
        maps: list[dict[str, Any]] = [{}] * agents
        for acting in self._acting:
            for place, actions in zip(acting.places, acting.write(action, order_ij, agents), strict=True):
                maps[place] = actions
        return maps

    def check_platform(self, filename: str | Path) -> None:
        """Check that a build of the game exists for this operating system.

        Raises:
            GodotEnvError: if no build exists.
        """
        try:
            find_executable(Path(filename))
        except StageError as error:
            raise GodotEnvError(str(error)) from None

    def _announce(self, message: Mapping[str, Any]) -> None:
        try:
            announcement = read_announcement(message)
            self._readers = [
                AgentColumns(
                    behavior_spec(agent.policy, agent, announcement.ordered, "auto", f"the game, agent {place}"),
                    np.array([place]),
                )
                for place, agent in enumerate(announcement.agents)
            ]
        except MessageError as error:
            raise GodotEnvError(f"the game {error}") from None
        except StageError as error:
            raise GodotEnvError(str(error)) from None
        self.action_spaces = [action_space(agent.actions) for agent in announcement.agents]
        self.observation_spaces = [observation_space(agent.observations) for agent in announcement.agents]
        for keys in {tuple(agent.actions) for agent in announcement.agents}:
            if [*keys] != sorted(keys):
                sys.stderr.write(
                    f"Actions are in the game's order: {', '.join(keys)}; godot-rl up to 0.8.2 sorts them.\n"
                )
        self.num_envs = len(announcement.agents)
        self.observation_space = self.observation_spaces[0]
        self.agent_policy_names = [agent.policy for agent in announcement.agents]
        self._acting: list[ActingAgents] = of_equal_actions(announcement.agents)
        self._pictures = [
            (place, key, space.shape)
            for place, space_of_agent in enumerate(self.observation_spaces)
            for key, space in space_of_agent.spaces.items()
            if is_picture(key) and space.shape is not None
        ]

    def _ask(self, content: bytes, kind: str) -> dict[str, Any]:
        return self._read(self._link.exchange(content), kind)

    def _message(self, action: Any, order_ij: bool) -> bytes:
        """Return the message with all agents' actions, in ASCII because Godot reads one byte per character."""
        action = self.action_space_processor.to_original_dist(action)
        maps = self.from_numpy(action, order_ij and not self._converts)
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
            answered = message.get("type")
            raise GodotEnvError(f"the game answered with a message of type {answered!r}; expected {kind!r}")
        return cast("dict[str, Any]", message)

    def _doubtful(self, content: bytes) -> dict[str, Any]:
        """Read a message that may be invalid, or may contain words instead of numbers."""
        try:
            message = read_message(content)
        except MessageError as error:
            self._link.close()
            raise GodotEnvError(f"the game {error}") from None
        self._check(message)
        return message

    def _check(self, message: Mapping[str, Any]) -> None:
        """Check that the observations and rewards in a message are what the game has announced."""
        for reader in self._readers:
            if "obs" in message:
                reader.observations(self._per_agent(message, "obs"))
            if "reward" in message:
                reader.rewards(self._per_agent(message, "reward"))

    def _per_agent(self, message: Mapping[str, Any], key: str) -> list[Any]:
        values = message.get(key)
        if not isinstance(values, list) or len(values) != self.num_envs:
            received = f"{len(values)} entries" if isinstance(values, list) else repr(values)
            raise GodotEnvError(f"the game sent {received} as {key!r}; expected one for each of {self.num_envs} agents")
        return values

    def _observations(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        observed = self._per_agent(message, "obs")
        for place, key, shape in self._pictures:
            try:
                observed[place][key] = _picture(observed[place][key], shape)
            except (KeyError, TypeError, ValueError) as error:
                raise GodotEnvError(
                    f"agent {place} has no image of the announced shape {shape} as {key!r}: {error}"
                ) from None
        return observed

    def _infos(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        if message.get("info") is None:
            return [{} for _ in range(self.num_envs)]
        return [info_of(agent, info) for agent, info in enumerate(self._per_agent(message, "info"))]


def _picture(text: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an image in the announced order of axes. In messages, the channels always come last."""
    if len(shape) == 3 and shape[0] in CHANNELS:
        return np.moveaxis(read_picture(text, (*shape[1:], shape[0]), channels_last=True), -1, 0)
    return read_picture(text, shape, channels_last=len(shape) == 3 and shape[2] in CHANNELS)


def _close_at_exit(env: weakref.ref[GodotEnv]) -> None:
    alive = env()
    if alive is not None:
        alive.close()
