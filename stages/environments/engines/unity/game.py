"""One Unity program, and the group of several: its executable, the exchange of messages, and the agents' rows.

`exchange` has the transport, `messages` the greetings, and `columns` reads agents.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from google.protobuf.message import DecodeError

from headrace.config import RunConfig
from headrace.config.listen import LOCALHOST
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameLate, GameRefused, MessageError
from headrace.stages.environments.engines.game import (
    Game,
    GameAnswer,
    GameSettings,
    Wording,
    game_settings,
    merged_statistics,
)
from headrace.stages.environments.engines.group import RUN_LOGS, GameGroup, make_game_group
from headrace.stages.environments.engines.process import Build, find_executable
from headrace.stages.environments.engines.rows import GameRows
from headrace.stages.environments.engines.transport import Transport
from headrace.stages.environments.engines.unity import messages
from headrace.stages.environments.engines.unity.columns import BehaviorReader, action_protos
from headrace.stages.environments.engines.unity.messages import UnityMessageProto
from headrace.stages.environments.engines.unity.side_channels import SideChannelBridge, SideChannels
from headrace.stages.environments.engines.unity.versions import COMMUNICATION_VERSION, PACKAGE_VERSION
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.errors import LoadError, StageError, blaming, describe_error
from headrace.stages.loading import load_callable

if TYPE_CHECKING:
    from headrace.stages.environments.engines.unity.exchange import GrpcTransport

log = logging.getLogger(__name__)

EDITOR_PORT = 5004
"""The fixed port of the Editor."""
_WORDING = Wording(
    game="Unity worker",
    unstarted="the Unity Editor",
    taken_port="The Editor uses no other port, so end the program that listens there, most likely another training "
    "run that waits for the Editor; or build the scene and train with --env, on a port chosen by --base-port",
    invitation="Start training by pressing the Play button in the Unity Editor, with a scene that has an agent; "
    "restart a scene that is already playing.",
    needs="does its scene have an agent (without one it does not connect), is its package com.unity.ml-agents 1.0 or "
    "newer",
    argument="--mlagents-port",
    stranger="Is the program on this port really Unity with the package com.unity.ml-agents?",
    paused="or its agents no longer request decisions; the cause may be a paused Editor, an infinite loop or an open "
    "dialog",
)
_NO_AGENT = (
    "check that the scene has an active agent, with a Decision Requester or a script that calls RequestDecision, and "
    "with Behavior Type 'Default' in its Behavior Parameters"
)
_LOG_FLAG = "-logfile"


@dataclass(frozen=True, slots=True)
class UnityBuild(Build):
    """A Unity executable. It writes its log itself; without a `log_file`, to Unity's default location."""

    no_graphics: bool = False
    """True to run without rendering, and so without camera observations."""

    def command(self, port: int, seed: int) -> list[str]:
        """Return the executable, ML-Agents' standard arguments, then the user's. Raises the same errors as `Build`.

        The seed is not an argument, because it is sent in the handshake.
        """
        command = [str(find_executable(Path(self.path)))]
        if self.no_graphics:
            command += ["-nographics", "-batchmode"]
        command += ["--mlagents-port", str(port)]
        if self.log_file is not None and not any(argument.lower() == _LOG_FLAG for argument in self.arguments):
            command += ["-logFile", str(self.log_file.absolute())]
        return [*command, *self.arguments]

    @property
    def log(self) -> Path | None:
        """The log file named on the command line; None if there is none, or if it is standard output."""
        after = iter(self.arguments)
        for argument in after:
            if argument.lower() == _LOG_FLAG:
                value = next(after, "-")
                return None if value == "-" else Path(value)
        return None if self.log_file is None else self.log_file.absolute()

    @property
    def output_file(self) -> Path | None:
        """None, because Unity writes its log itself."""
        return None


class UnityGame(Game):
    """One Unity program: an executable, or the Editor, in which the user presses Play.

    Args:
        settings: the game's settings. Port 0 is allowed only if a build is given.
        build: the executable; None for the Editor.
        num_areas: number of copies of the training area that Unity makes.
        make_channels: makes all side channels, at each start. `reset` and `step` need a `SideChannelBridge`.
        listen: see `env_settings.listen`.
        warns_of_black_images: True to log a warning about image observations, because there are no graphics.

    Attributes:
        greeting: Unity's greeting, a `UnityRLInitializationOutputProto`; None until Unity is connected.
        brains: the `BrainParametersProto` of the behaviours so far, keyed by behaviour id, in Unity's order.
        readers: the readers of the behaviours that have had agents, keyed by behaviour id.
    """

    waits_for_restart: ClassVar[bool] = False
    says_goodbye: ClassVar[bool] = True

    def __init__(
        self,
        settings: GameSettings,
        build: UnityBuild | None,
        num_areas: int,
        make_channels: Callable[[], SideChannels],
        listen: str = LOCALHOST,
        warns_of_black_images: bool = False,
    ) -> None:
        super().__init__(settings, build, _WORDING)
        self.greeting: Any = None
        self._num_areas = num_areas
        self._make_channels = make_channels
        self._listen = listen
        self._warns_of_black_images = warns_of_black_images
        self._channels: SideChannels
        self._grpc: GrpcTransport
        self._has_acted = False
        """True once an agent has requested a decision."""
        self.brains: dict[str, Any] = {}
        self.readers: dict[str, BehaviorReader] = {}

    async def start(self) -> None:
        """See `Game`."""
        self.greeting, self._has_acted = None, False
        self.brains, self.readers = {}, {}
        await super().start()

    def _make_transport(self) -> Transport:
        from headrace.stages.environments.engines.unity.exchange import (
            GrpcTransport,  # imports gRPC, which no check needs
        )

        self._channels = self._make_channels()
        max_bytes = self._settings.max_message_mib * 2**20
        self._grpc = GrpcTransport(self.port, max_bytes, self._greet, messages.asks_for_orders, self._listen)
        return self._grpc

    def _greet(self, request: bytes) -> bytes | None:
        """Return our greeting in answer to Unity's; None if the request is not a greeting."""
        if messages.greeting_in(request) is None:
            return None
        order = _order()
        order.unity_input.rl_initialization_input.CopyFrom(messages.our_greeting(self._settings.seed, self._num_areas))
        return bytes(order.SerializeToString())

    async def _announce(self) -> None:
        try:
            await self._answer(
                "request",
                "has connected, but hasn't requested its first command",
                "its log says why; most likely it rejects these versions: "
                f"{COMMUNICATION_VERSION} of the protocol and {PACKAGE_VERSION} of the package",
            )
        except GameLate:
            self._read_greeting()  # an incompatible Unity falls silent
            raise
        greeting = self._read_greeting()
        log.info(
            "Connected to Unity environment with package version %s and communication version %s",
            greeting.package_version,
            greeting.communication_version,
        )

    def _read_greeting(self) -> Any:
        """Return the greeting, once it is checked.

        Raises:
            GameRefused: if its version is not compatible.
        """
        assert self._grpc.greeting is not None, "the transport connects by a greeting"
        self.greeting = messages.greeting_in(self._grpc.greeting)
        assert self.greeting is not None, "`_greet` has read it"
        messages.check(self.greeting, self.name)
        return self.greeting

    def _read(self, content: bytes, kind: str) -> Any:
        try:
            message = UnityMessageProto.FromString(content)
        except DecodeError:
            raise self._violation(f"its {len(content):,} bytes are not a message of the protocol") from None
        if message.header.status == messages.CLOSE:
            self._say_goodbye()  # at once: Unity's call blocks its main thread
            raise GameEnded(f"{self.name} has closed the connection")
        if message.header.status != messages.OK:
            words = f" {message.header.message!r}" if message.header.message else ""
            raise self._violation(f"its message has status {message.header.status}{words}; expected 200 or 400")
        if kind == "agents" and not message.unity_output.HasField("rl_output"):
            raise self._violation("its message has no section for agents")
        return message.unity_output

    def _violation(self, what: str) -> MessageError:
        return MessageError(f"violates the protocol: {what}. {self._wording.stranger}")

    def _say_goodbye(self) -> None:
        self._grpc.send_farewell(_farewell())

    async def _release(self) -> None:
        if self._transport is not None:
            self._say_goodbye()
        await super()._release()

    def _suspicion(self) -> str:
        """Return the last refusal of a caller if it may explain why Unity is absent; otherwise an empty string."""
        return "" if self._has_acted or not self._grpc.refused else f". {self._grpc.refused}"

    def _log(self) -> Path | None:
        stated = self.greeting.log_path if self.greeting is not None else ""
        return super()._log() or (Path(stated) if stated else None)

    async def request_reset(self) -> Any:
        """Reset all agents.

        Returns:
            The `UnityOutputProto` with the first decision requests; it has no endings of earlier episodes.

        Raises:
            GameBroken: if Unity died, did not answer, dropped the connection, or broke the protocol.
            GameEnded: if Unity has closed normally.
            GameRefused: if the request is larger than the limit.
        """
        return await self._exchange(messages.RESET, {})

    async def request_step(self, actions: Mapping[str, Any]) -> Any:
        """Let agents act, and wait for the next decision requests. Raises the same errors as `request_reset`.

        Args:
            actions: keyed by behaviour id, a `ListAgentActionProto` in the order of the last answer's decision
                requests. Behaviours without requests have no entry.

        Returns:
            The `UnityOutputProto`.
        """
        return await self._exchange(messages.STEP, actions)

    async def _exchange(self, command: int, actions: Mapping[str, Any]) -> Any:
        order = _order()
        rl_input = order.unity_input.rl_input
        rl_input.command = command
        for behavior, chosen in actions.items():
            rl_input.agent_actions[behavior].CopyFrom(chosen)
        rl_input.side_channel = self._channels.outgoing()
        request = order.SerializeToString()
        if len(request) > self._settings.max_message_mib * 2**20:
            raise GameRefused(
                f"{self.name}: the request to this worker (actions and side-channel messages) has {len(request):,} "
                f"bytes, and the limit is {self._limit()}"
            )
        late, why = "hasn't finished its step", ""
        if not self._has_acted:
            late, why = "is connected, but no agent has requested a decision", _NO_AGENT
        output = await self._ask(request, "agents", late, why)
        try:
            self._channels.incoming(output.rl_output.side_channel)
        except GameBroken:
            await self._release()
            raise
        self._has_acted = True
        return output

    async def _reset(self) -> GameAnswer:
        return await self._answer_of(await self.request_reset())

    async def step(self, actions: Mapping[str, ActionBatch]) -> GameAnswer:
        """See `Game`."""
        protos = {
            behavior_id: action_protos(self.specs[behavior_id], batch.continuous, batch.discrete)
            for behavior_id, batch in actions.items()
        }
        return await self._answer_of(await self.request_step(protos))

    async def _answer_of(self, output: Any) -> GameAnswer:
        """Read messages until one has rows; return the rows, with the statistics of all these messages."""
        assert isinstance(self._channels, SideChannelBridge), "`make_channels` makes one for a group"
        statistics = []
        while True:
            rows = {
                behavior_id: self._episodes.of(behavior_id, columns, self._channels.generation)
                for behavior_id, columns in self.read_rows(output).items()
            }
            statistics.append(self._channels.statistics())
            if rows:
                return GameAnswer(rows, statistics[0] if len(statistics) == 1 else merged_statistics(statistics))
            output = await self.request_step({})

    def read_rows(self, output: Any) -> dict[str, GameRows]:
        """Read the agents in Unity's answer, keyed by behaviour id, without the behaviours that have no agents.

        Raises:
            GameBroken: if a behaviour is not announced, or its agents can't be read.
            GameRefused: if a behaviour is not supported.
        """
        for brain in output.rl_initialization_output.brain_parameters:
            self.brains[brain.brain_name] = brain
        by_behavior = output.rl_output.agentInfos
        rows = {}
        for behavior_id in sorted(by_behavior):  # the map in a message is unordered
            if infos := by_behavior[behavior_id].value:
                reader = self.readers.get(behavior_id) or self._new_reader(behavior_id, infos[0])
                rows[behavior_id] = reader.read(infos)
        return rows

    def _new_reader(self, behavior_id: str, first: Any) -> BehaviorReader:
        brain = self.brains.get(behavior_id)
        if brain is None:
            announced = ", ".join(sorted(self.brains)) or "none"
            raise GameBroken(
                f"{self.label} sends agents of a behaviour {behavior_id!r} that it has not announced (announced: "
                f"{announced}); check that its package com.unity.ml-agents is complete, with all files from the same "
                "version"
            )
        package = "" if self.greeting is None else self.greeting.package_version
        reader = self.readers[behavior_id] = BehaviorReader(brain, first, self.label, package)
        if self._warns_of_black_images and behavior_id not in self.specs:
            self._warn_of_black_images(reader.spec)
        self.specs[behavior_id] = reader.spec
        return reader

    def _warn_of_black_images(self, spec: BehaviorSpec) -> None:
        pictures = [observation.name for observation in spec.observations if OBSERVATION_KINDS[observation.kind].pixels]
        if pictures:
            log.warning(
                "%s, behaviour %r, observes images (%s), and without graphics, Unity's cameras render only black. "
                "Unless the images come from other sensors, leave --no-graphics out; without a display, run the "
                "command with xvfb-run",
                self.label,
                spec.behavior_id,
                ", ".join(pictures),
            )


def _order() -> Any:
    order = UnityMessageProto()
    order.header.status = messages.OK
    return order


def _farewell() -> bytes:
    message = UnityMessageProto()
    message.header.status = messages.CLOSE
    return bytes(message.SerializeToString())


# The group that the YAML describes.


def make_unity_group(request: EnvironmentRequest) -> GameGroup:
    """Make the group that `env_settings` describes; its first reset starts the games.

    Game n gets the run's seed + n.

    Raises:
        LoadError: if a side channel can't be loaded.
    """
    config = request.config
    settings = config.env_settings
    channels = [find() for find in named_channels(config)]

    def make(index: int, parameters: EpisodeParameters | None) -> UnityGame:
        return _make_game(request, request.replica * settings.num_envs + index, channels, parameters)

    return make_game_group(config, settings.num_envs, UnityGame, make)


def _make_game(
    request: EnvironmentRequest,
    worker_id: int,
    channels: list[Callable[[], Any]],
    parameters: EpisodeParameters | None,
) -> UnityGame:
    config, seed = request.config, request.seed
    env, engine = config.env_settings, config.engine_settings

    def make_channels() -> SideChannelBridge:
        try:
            return SideChannelBridge(engine, parameters, worker_id, seed, [make() for make in channels])
        except StageError:
            raise
        except Exception as error:
            raise LoadError(
                f"env_settings.side_channels: making them failed: {describe_error(error)}; derive each class from "
                "headrace.unity.SideChannel, with a constructor without arguments"
            ) from error

    settings = game_settings(config, worker_id, seed)
    settings = replace(
        settings,
        port=EDITOR_PORT if env.env_path is None else settings.port,
        seed=settings.seed & 0x7FFFFFFF,  # Unity's seeds are int32
    )
    build = None
    if env.env_path is not None:
        folder = request.run_folder
        log_file = None if folder is None else folder / RUN_LOGS / f"Player-{worker_id}.log"
        no_graphics = engine.no_graphics or (engine.no_graphics_monitor and worker_id > 0)
        build = UnityBuild(env.env_path, env.env_args or (), log_file, config.debug, no_graphics=no_graphics)
    first_without_graphics = 0 if engine.no_graphics else 1
    warns = build is not None and build.no_graphics and worker_id == first_without_graphics
    return UnityGame(settings, build, env.num_areas, make_channels, env.listen, warns)


def named_channels(config: RunConfig) -> list[Callable[[], Any]]:
    """Return functions that import the side channels' classes; each raises a LoadError if the import fails."""

    def find(index: int, reference: str) -> Callable[[], Any]:
        with blaming("env_settings", "side_channels", index):
            return load_callable(reference, config.source_folder, "side channel", "a class")

    return [partial(find, index, reference) for index, reference in enumerate(config.env_settings.side_channels)]
