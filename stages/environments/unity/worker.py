"""Runs one Unity program: starts it, exchanges messages, and ends it.

This module handles the protocol; `headrace.stages.environments.unity.columns` converts its messages to columns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from headrace.config.listen import LOCALHOST
from headrace.stages.environments.programs.answer_time import AnswerTime
from headrace.stages.environments.programs.process import ProgramProcess, describe_exit, tail
from headrace.stages.environments.programs.worker import ProgramWorker, WorkerSettings, WorkerWording
from headrace.stages.environments.unity import handshake, messages
from headrace.stages.environments.unity.errors import UnityBroken, UnityDied, UnityEnded, UnityLate, UnityRefused
from headrace.stages.environments.unity.executable import Executable
from headrace.stages.environments.unity.handshake import ConnectionState, describe_timeout
from headrace.stages.environments.unity.messages import UnityMessageProto
from headrace.stages.environments.unity.server import ConnectionLost, ExchangeServer, MessageTooLarge

log = logging.getLogger(__name__)

EDITOR_PORT = 5004
"""The fixed port of the Editor."""
_WORDING = WorkerWording(
    program="Unity worker",
    unstarted="the Unity Editor",
    taken_port="The Editor uses no other port, so end the program that listens there, most likely another training "
    "run that waits for the Editor; or build the scene and train with --env, on a port chosen by --base-port",
)
_REFUSAL_S = 5.0
"""Seconds to wait for a Unity program of a different version to receive the refusal."""
_LAST_WORDS_S = 2.0
"""Seconds to wait for the process to exit after its connection has ended."""
_KILL_S = 10.0
"""Seconds to wait for the system to end a killed process."""
_EDITOR_FAREWELL_S = 5.0
"""Seconds to wait for the Editor, which is never killed, to make its next call and receive the farewell."""


class Channels(Protocol):
    """Side channels as bytes to and from Unity."""

    def outgoing(self) -> bytes:
        """Return and clear the queued messages. Called once per exchange."""

    def incoming(self, data: bytes) -> None:
        """Handle messages from Unity."""


class UnityWorker(ProgramWorker):
    """One Unity program: an executable that the worker starts, or the Editor, in which the user presses Play.

    The order of calls is `start`, `reset`, then `step`; each waits for Unity's answer for at most `timeout_s`. After a
    `UnityBroken` (which kills the executable) or a cancelled call only `close` is allowed.

    Args:
        settings: the worker's settings. Port 0 is allowed only if an executable is given.
        executable: the executable; None for the Editor.
        num_areas: number of copies of the training area that Unity makes.
        side_channels: all side channels of the worker.
        listen: see `env_settings.listen`.

    Attributes:
        greeting: Unity's greeting; None until Unity is connected.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        executable: Executable | None,
        num_areas: int,
        side_channels: Channels,
        listen: str = LOCALHOST,
    ) -> None:
        super().__init__(settings, executable, _WORDING)
        self.greeting: handshake.UnityGreeting | None = None
        self._executable = executable
        self._num_areas = num_areas
        self._side_channels = side_channels
        self._listen = listen
        self._server: ExchangeServer | None = None
        self._state = ConnectionState.STARTING
        self._released = False
        """True once the process and the server are released."""
        self._ended = False
        """True once Unity has closed the connection, after which an executable exits."""

    async def start(self) -> None:
        """Listen, start the executable or wait for the Editor, and exchange greetings.

        Releases all resources after a failure or cancellation.

        Raises:
            UnityRefused: if the port is in use, the executable does not exist, or its version is not compatible.
            UnityBroken: if Unity exits, or does not connect in time.
            UnityEnded: if Unity closes normally, as when the Editor is stopped.
        """
        try:
            await self._connect()
        except BaseException:
            await self._abandon()
            raise

    async def reset(self) -> Any:
        """Reset all agents.

        Returns:
            The `UnityOutputProto` with the first decision requests; it has no endings of earlier episodes.

        Raises:
            UnityBroken: if Unity died, did not answer, dropped the connection, or broke the protocol.
            UnityEnded: if Unity has closed normally.
        """
        return await self._exchange(messages.RESET, {})

    async def step(self, actions: Mapping[str, Any]) -> Any:
        """Let agents act, and wait for the next decision requests.

        Args:
            actions: keyed by behaviour id, a `ListAgentActionProto` in the order of the last answer's decision
                requests. Behaviours without requests have no entry.

        Returns:
            The `UnityOutputProto`.

        Raises:
            UnityBroken: if Unity died, did not answer, dropped the connection, or broke the protocol.
            UnityEnded: if Unity has closed normally.
        """
        return await self._exchange(messages.STEP, actions)

    async def close(self, patience_s: float | None = None) -> None:
        """Close the connection and end the executable, which is killed if it takes too long.

        Closing twice, or before `start`, is allowed.

        Args:
            patience_s: seconds for the executable to exit; None for `timeout_s`.
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
            log.warning("%s did not end within %g s after the request; killing it", self.name, patience_s)
        await self._abandon()

    async def _connect(self) -> None:
        self._server = ExchangeServer(
            self.port,
            self.name,
            self._cure_for_port(),
            self._greet,
            handshake.asks_for_orders,
            self._settings.max_message_mib * 2**20,
            self._listen,
        )
        self.port = await self._server.start()
        self._server.name = self.name
        if self._executable is None:
            log.info("Listening on port %d. Start training by pressing the Play button in the Unity Editor.", self.port)
        else:
            if log_file := self._executable.log:
                log_file.parent.mkdir(parents=True, exist_ok=True)
            command = self._executable.command(self.port, self._settings.seed)
            self._process = await ProgramProcess.launch(command, self._executable.show_output, self._on_exit)
        await self._receive()  # the call after the greeting, which `reset` answers
        assert self._server.greeting is not None, "a call arrives only after the greeting"
        self.greeting = handshake.greeting_in(self._server.greeting)
        assert self.greeting is not None, "`_greet` has read it"
        self._state = ConnectionState.FIRST_RESET
        try:
            handshake.check(self.greeting, self.name)
        except UnityRefused:
            await self._refuse()
            raise
        log.info(
            "Connected to Unity environment with package version %s and communication version %s",
            self.greeting.package_version,
            self.greeting.communication_version,
        )

    def _greet(self, request: bytes) -> bytes | None:
        """Return our greeting in answer to Unity's; None if the request is not a greeting."""
        if handshake.greeting_in(request) is None:
            return None
        order = _order()
        order.unity_input.rl_initialization_input.CopyFrom(handshake.our_greeting(self._settings.seed, self._num_areas))
        return bytes(order.SerializeToString())

    async def _refuse(self) -> None:
        """Send our version, which Unity shows to its user, and then the farewell."""
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
            await self._answer(order.SerializeToString())
            output = (await self._receive()).unity_output
            if not output.HasField("rl_output"):
                raise self._protocol_error("its message has no section for agents")
            self._side_channels.incoming(output.rl_output.side_channel)
        except UnityBroken:
            await self._abandon()
            raise
        self._state = ConnectionState.RUNNING
        return output

    async def _answer(self, response: bytes) -> None:
        if len(response) > self._settings.max_message_mib * 2**20:
            raise UnityRefused(
                f"{self.name}: the response to this worker (actions and side-channel messages) has {len(response):,} "
                f"bytes, and the limit is {self._limit()}"
            )
        try:
            self._listening().answer(response)
        except (ConnectionLost, MessageTooLarge) as loss:
            raise await self._connection_lost(loss) from None

    def _limit(self) -> str:
        return f"{self._settings.max_message_mib} MiB, set by env_settings.max_message_mib"

    async def _receive(self) -> Any:
        """Wait for Unity's next message, and check its header.

        Raises:
            UnityBroken: as in `step`.
            UnityEnded: if Unity closes the connection.
        """
        try:
            async with AnswerTime(self.timeout_s):
                request = await self._listening().receive()
        except TimeoutError:
            raise self._late() from None
        except (ConnectionLost, MessageTooLarge) as loss:
            raise await self._connection_lost(loss) from None
        return await self._parse(request)

    def _late(self) -> UnityLate | UnityRefused:
        assert self._server is not None
        if self._state is ConnectionState.STARTING and self._server.greeting is not None:
            self._state = ConnectionState.GREETED
            greeting = handshake.greeting_in(self._server.greeting)
            assert greeting is not None, "`_greet` has read it"
            try:
                handshake.check(greeting, self.name)
            except UnityRefused as refused:
                return refused
        problem = describe_timeout(self._state, self._executable is None, self.timeout_s)
        return UnityLate(f"{self.name} {problem}{self._refusal()}{self._log_tail()}")

    def _refusal(self) -> str:
        """Return the last refusal of a caller if it may explain why Unity is absent; otherwise an empty string."""
        refused = "" if self._server is None or self._state is ConnectionState.RUNNING else self._server.refused
        return f" {refused}" if refused else ""

    def _listening(self) -> ExchangeServer:
        if self._server is None or self._released or self._ended:
            raise UnityBroken(f"{self.name} isn't connected: it has been closed, has failed, or was never started")
        return self._server

    async def _parse(self, request: bytes) -> Any:
        try:
            message = UnityMessageProto.FromString(request)
        except DecodeError:
            raise self._protocol_error(f"its {len(request):,} bytes are not a message of the protocol") from None
        if message.header.status == messages.CLOSE:
            await self._answer(_farewell())  # Unity's call waits for an answer
            await self._listening().close()
            self._ended = True
            raise UnityEnded(f"{self.name} has closed the connection")
        if message.header.status != messages.OK:
            words = f" {message.header.message!r}" if message.header.message else ""
            raise self._protocol_error(f"its message has status {message.header.status}{words}; expected 200 or 400")
        return message

    def _protocol_error(self, what: str) -> UnityBroken:
        return UnityBroken(
            f"{self.name} violates the protocol: {what}. Is the program on this port really Unity with the package "
            f"com.unity.ml-agents?{self._log_tail()}"
        )

    async def _connection_lost(self, loss: Exception) -> UnityBroken:
        """Return the error for a lost connection. If the process then exits, the error describes the exit."""
        if isinstance(loss, MessageTooLarge):
            return UnityBroken(
                f"{self.name} sent a message above the limit of {self._limit()}: raise the limit, or send fewer or "
                f"smaller observations{self._log_tail()}"
            )
        if self._process is not None and await self._process.exited(_LAST_WORDS_S):
            assert self._process.returncode is not None
            return self._death(self._process.returncode)
        return UnityBroken(f"{self.name} dropped the connection without a message{self._log_tail()}")

    def _on_exit(self, returncode: int) -> None:
        assert self._server is not None
        if returncode == 0 and self._server.between_calls:  # the game has quit without the protocol's farewell
            self._ended = True
            self._server.interrupt(UnityEnded(f"{self.name} quit with return code 0"))
        else:
            self._server.interrupt(self._death(returncode))

    def _death(self, returncode: int) -> UnityBroken:
        connected = "" if self.greeting is not None else " before it connected"
        problem = f"{self.name} ended with {describe_exit(returncode)}{connected}"
        refusal = self._refusal()
        return UnityDied(f"{problem}{'.' if refusal else ''}{refusal}{self._log_tail()}")

    def _log_tail(self) -> str:
        if self._executable is None:
            return ""
        own = self.greeting.log_path if self.greeting is not None else ""
        return tail(self._executable.log or (Path(own) if own else None))

    async def _abandon(self) -> None:
        """Release all resources immediately: kill the process, and stop listening."""
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
