"""One Unity, seen from here: started or waited for, asked step by step, and ended.

It speaks the protocol and knows nothing of what is learned: what agents see and do are messages here, columns next door
(`stages.unity.columns`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from stages.unity import handshake, messages
from stages.unity.errors import UnityBroken, UnityDied, UnityEnded, UnityLate, UnityRefused
from stages.unity.executable import Executable, command_line, player_log, tail
from stages.unity.messages import UnityMessageProto
from stages.unity.process import UnityProcess, describe_exit
from stages.unity.server import ConnectionLost, ExchangeServer
from stages.unity.timeouts import ConnectionState, describe_timeout

log = logging.getLogger(__name__)

EDITOR_PORT = 5004
"""Where the Editor calls; it can't be answered another one."""
_REFUSAL_S = 5.0
"""How long a Unity with another version may take to hear that it is refused."""
_LAST_WORDS_S = 2.0
"""How long the end of a process may lag behind the end of its connection."""
_KILL_S = 10.0
"""How long the system may take to end a killed process."""
_EDITOR_FAREWELL_S = 5.0
"""How long the Editor, which nobody kills, may take to its next call, to hear that it is over."""


class Channels(Protocol):
    """The side channels, as far as they are of interest here: frames of bytes to and from Unity."""

    def outgoing(self) -> bytes:
        """What waits to be sent; it is asked for once per order, and sent."""
        ...

    def incoming(self, data: bytes) -> None:
        """Take what Unity sent."""
        ...


class UnityWorker:
    """One Unity: an executable that is started here, or the Editor, whose user presses Play.

    After `start`, `reset` has to come before the first `step`. Each waits until Unity has answered, at most
    `timeout_s`. After a `UnityBroken` the executable has been killed and only `close` is of use. A cancelled `step`
    leaves Unity in the middle of it: only `close` is of use then.

    Args:
        worker_id: counts the workers of a run, from 0; the executable's log is named after it.
        port: where Unity calls; 0 takes any that is free, for executables only.
        executable: what to start; None for the Editor.
        seed: for Unity's random numbers.
        num_areas: how many copies of its training area Unity is asked for.
        timeout_s: for the start, and for each exchange.
        side_channels: what else there is to say, and who listens.
        max_message_bytes: refuse messages of Unity above this; None for any size.

    Attributes:
        greeting: what Unity said of itself; None until it is connected.
        port: where Unity calls; after `start` the real one in place of 0.
        timeout_s: for the next exchange; may be changed between two.
    """

    def __init__(
        self,
        worker_id: int,
        port: int,
        executable: Executable | None,
        seed: int,
        num_areas: int,
        timeout_s: float,
        side_channels: Channels,
        max_message_bytes: int | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.port = port
        self.executable = executable
        self.greeting: handshake.UnityGreeting | None = None
        self._seed = seed
        self._num_areas = num_areas
        self.timeout_s = timeout_s
        self._side_channels = side_channels
        self._max_message_bytes = max_message_bytes
        self._server: ExchangeServer | None = None
        self._process: UnityProcess | None = None
        self._state = ConnectionState.STARTING
        self._released = False
        """Whether everything is released."""
        self._ended = False
        """Whether Unity has said that it is over; nobody listens then, and an executable is about to end by itself."""
        self._unread = False
        """Whether Unity's next call is still to come, as it is after the greeting; later each answer brings it."""

    @property
    def who(self) -> str:
        """Names the worker in messages to people."""
        if self.executable is None:
            return f"the Unity Editor (port {self.port})"
        return f"Unity worker {self.worker_id} ({self.executable.path.name}, port {self.port})"

    @property
    def pid(self) -> int | None:
        """The executable's process id, also after its end; None for the Editor, and before `start`."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Listen, start the executable or wait for the Editor, and greet each other.

        When cancelled, everything is released, as when it fails.

        Raises:
            UnityRefused: if the port is in use, there is no such executable, or it speaks another version.
            UnityBroken: if it ends or is silent before it has connected.
            UnityEnded: if the Editor is stopped meanwhile.
        """
        try:
            await self._connect()
        except BaseException:
            await self._abandon()
            raise

    async def reset(self) -> Any:
        """Let all agents begin anew.

        Returns:
            The `UnityOutputProto` with the first decisions that are asked for; nothing says that agents were cut off.

        Raises:
            UnityBroken: if it ended, was silent, hung up, or spoke nonsense.
            UnityEnded: if the Editor was stopped.
        """
        return await self._exchange(messages.RESET, {})

    async def step(self, actions: Mapping[str, Any]) -> Any:
        """Let agents act, and wait for the next decisions that are asked for.

        Args:
            actions: per behaviour id a `ListAgentActionProto`, in the order of the decisions asked for by the last
                answer; none for behaviours without any.

        Returns:
            The `UnityOutputProto`.

        Raises:
            UnityBroken: if it ended, was silent, hung up, or spoke nonsense.
            UnityEnded: if the Editor was stopped.
        """
        return await self._exchange(messages.STEP, actions)

    async def close(self, patience_s: float | None = None) -> None:
        """End the connection, and the executable: it is asked, given some time, and then killed.

        Closing twice, or what was never started, is allowed.

        Args:
            patience_s: how long it may take to end; None for `timeout_s`.
        """
        patience_s = self.timeout_s if patience_s is None else patience_s
        server, process = self._server, self._process
        if server is None:
            return
        answered = server.send_farewell(_farewell())
        if process is None:
            if self.greeting is not None and not (answered or self._ended or self._released):
                await server.farewell_delivered(_EDITOR_FAREWELL_S)
        elif self.greeting is not None and not self._released and not await process.exited(patience_s):
            log.warning("%s didn't end within %g s of being asked, and is killed", self.who, patience_s)
        await self._abandon()

    async def _connect(self) -> None:
        self._server = ExchangeServer(self.port, self.who, self._cure_for_port())
        self.port = await self._server.start()
        if self.executable is None:
            log.info("Listening on port %d. Start training by pressing the Play button in the Unity Editor.", self.port)
        else:
            if log_file := player_log(self.executable, self.worker_id):
                log_file.parent.mkdir(parents=True, exist_ok=True)
            command = command_line(self.executable, self.port, self.worker_id)
            self._process = await UnityProcess.launch(command, self.executable.show_output, self._on_exit)
        said = (await self._receive()).unity_output
        if not said.HasField("rl_initialization_output"):
            raise self._protocol_error("its first message is no greeting")
        self.greeting = handshake.read_greeting(said.rl_initialization_output)
        await self._greet()
        try:
            handshake.check(self.greeting, self.who)
        except UnityRefused:
            await self._refuse()
            raise
        log.info(
            "Connected to Unity environment with package version %s and communication version %s",
            self.greeting.package_version,
            self.greeting.communication_version,
        )

    async def _greet(self) -> None:
        order = _order()
        order.unity_input.rl_initialization_input.CopyFrom(handshake.our_greeting(self._seed, self._num_areas))
        await self._answer(order.SerializeToString())
        self._unread = True
        self._state = ConnectionState.GREETED

    async def _refuse(self) -> None:
        """Let Unity hear our version, which it shows to its user, and then that it is over."""
        assert self._server is not None
        if not self._server.send_farewell(_farewell()):
            await self._server.farewell_delivered(min(_REFUSAL_S, self.timeout_s))

    async def _exchange(self, command: int, actions: Mapping[str, Any]) -> Any:
        order = _order()
        rl_input = order.unity_input.rl_input
        rl_input.command = command
        for behavior, chosen in actions.items():
            rl_input.agent_actions[behavior].CopyFrom(chosen)
        rl_input.side_channel = self._side_channels.outgoing()
        try:
            if self._unread:
                await self._receive()
                self._unread = False
                self._state = ConnectionState.FIRST_RESET
            await self._answer(order.SerializeToString())
            output = (await self._receive()).unity_output
            if not output.HasField("rl_output"):
                raise self._protocol_error("its message says nothing of its agents")
            self._side_channels.incoming(output.rl_output.side_channel)
        except UnityBroken:
            await self._abandon()
            raise
        self._state = ConnectionState.RUNNING
        return output

    async def _answer(self, response: bytes) -> None:
        try:
            self._listening().answer(response)
        except ConnectionLost:
            raise await self._connection_lost() from None

    async def _receive(self) -> Any:
        """Wait for Unity's next message, and look at its header.

        Raises:
            UnityBroken: as in `step`.
            UnityEnded: if it says that it is over.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                request = await self._listening().receive()
        except TimeoutError:
            raise UnityLate(
                f"{self.who} {describe_timeout(self._state, self.executable is None, self.timeout_s)}{self._log_tail()}"
            ) from None
        except ConnectionLost:
            raise await self._connection_lost() from None
        return await self._parse(request)

    def _listening(self) -> ExchangeServer:
        if self._server is None or self._released or self._ended:
            raise UnityBroken(f"{self.who} isn't connected: it has been closed, has failed, or was never started")
        return self._server

    async def _parse(self, request: bytes) -> Any:
        if self._max_message_bytes is not None and len(request) > self._max_message_bytes:
            raise self._protocol_error(
                f"its message of {len(request):,} bytes is above the limit of {self._max_message_bytes:,}; "
                "raise the limit, or let the scene send fewer or smaller observations"
            )
        try:
            message = UnityMessageProto.FromString(request)
        except DecodeError:
            raise self._protocol_error(f"its {len(request):,} bytes are no message of the protocol") from None
        if message.header.status == messages.CLOSE:
            await self._answer(_farewell())  # its call waits for that
            await self._listening().close()
            self._ended = True
            raise UnityEnded(f"{self.who} has closed the connection")
        if message.header.status != messages.OK:
            raise self._protocol_error(
                f"its message has the status {message.header.status} {message.header.message!r}, expected 200 or 400"
            )
        return message

    def _protocol_error(self, what: str) -> UnityBroken:
        return UnityBroken(
            f"{self.who} doesn't keep to the protocol: {what}. Is it really Unity's package com.unity.ml-agents that "
            f"speaks on this port?{self._log_tail()}"
        )

    async def _connection_lost(self) -> UnityBroken:
        """The connection is gone; where the process follows at once, that says more."""
        if self._process is not None and await self._process.exited(_LAST_WORDS_S):
            assert self._process.returncode is not None
            return self._death(self._process.returncode)
        return UnityBroken(f"{self.who} dropped the connection without a word{self._log_tail()}")

    def _on_exit(self, returncode: int) -> None:
        assert self._server is not None
        self._server.interrupt(self._death(returncode))

    def _death(self, returncode: int) -> UnityBroken:
        connected = "" if self.greeting is not None else " before it had connected"
        return UnityDied(f"{self.who} ended with {describe_exit(returncode)}{connected}{self._log_tail()}")

    def _log_tail(self) -> str:
        if self.executable is None:
            return ""
        said = self.greeting.log_path if self.greeting is not None else ""
        return tail(player_log(self.executable, self.worker_id) or (Path(said) if said else None))

    def _cure_for_port(self) -> str:
        if self.executable is None:
            return (
                "The Editor calls no other port, so end what listens there, most likely another training that waits "
                "for the Editor; or build the scene and train with --env, on a port chosen by --base-port"
            )
        return (
            "End that program, or choose other ports with --base-port (env_settings.base_port); worker n takes "
            "base_port + n, and with base_port 0 each takes one that is free"
        )

    async def _abandon(self) -> None:
        """Release everything at once: kill what still runs, and stop listening."""
        self._released = True
        if self._process is not None:
            self._process.kill()
            await self._process.exited(_KILL_S)
        if self._server is not None:
            self._server.send_farewell(_farewell())
            await self._server.close()


def _order() -> Any:
    order = UnityMessageProto()
    order.header.status = messages.OK
    return order


def _farewell() -> bytes:
    message = UnityMessageProto()
    message.header.status = messages.CLOSE
    return bytes(message.SerializeToString())
