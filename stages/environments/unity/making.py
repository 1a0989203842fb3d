"""Makes a group of Unity programs from the YAML, with ports, seeds and side channels, and checks the executable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from headrace.config import RunConfig
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.group import RUN_LOGS, ProgramGroup, make_program_group
from headrace.stages.environments.programs.process import find_executable
from headrace.stages.environments.programs.program import Program, ProgramAnswer, merged_statistics
from headrace.stages.environments.programs.rows import InstanceRows
from headrace.stages.environments.programs.worker import worker_settings
from headrace.stages.environments.unity.actions import action_protos
from headrace.stages.environments.unity.columns import BehaviorReader
from headrace.stages.environments.unity.errors import UnityBroken
from headrace.stages.environments.unity.executable import Executable
from headrace.stages.environments.unity.side_channels.standard import SideChannelBridge
from headrace.stages.errors import LoadError, blaming, describe_error, type_of
from headrace.stages.loading import load_callable

log = logging.getLogger(__name__)


class Worker(Protocol):
    """A connection to a Unity program, such as `UnityWorker`; each call waits for an answer."""

    async def start(self) -> None:
        """Connect to Unity."""

    async def reset(self) -> Any:
        """Reset all agents; return a `UnityOutputProto`."""

    async def step(self, actions: Mapping[str, Any]) -> Any:
        """Let agents act; return a `UnityOutputProto`."""

    async def close(self, patience_s: float | None = None) -> None:
        """Close the connection in any state.

        If Unity has not exited after `patience_s` (by default the time limit of an exchange), it is killed.
        """


class UnityInstance(Program[Worker]):
    """One Unity program, which can be restarted after a failure.

    Args:
        worker_id: the program's number in the run, used in messages.
        connect: makes a connection and its side channels. It is called for each start.
        without_graphics: True if the program runs without graphics, in which case image observations cause a warning.
    """

    def __init__(
        self, worker_id: int, connect: Callable[[], tuple[Worker, SideChannelBridge]], without_graphics: bool = False
    ) -> None:
        super().__init__(f"Unity worker {worker_id}")
        self._connect = connect
        self._without_graphics = without_graphics
        self._bridge: SideChannelBridge | None = None
        self._brains: dict[str, Any] = {}
        self._readers: dict[str, BehaviorReader] = {}

    async def _start(self) -> None:
        self._connection, self._bridge = self._connect()
        self._brains, self._readers = {}, {}
        await self._connection.start()

    async def _reset(self) -> ProgramAnswer:
        return await self._answer(await self._updated_worker().reset())

    async def step(self, actions: Mapping[str, ActionBatch]) -> ProgramAnswer:
        """Let agents act, and wait for an answer with at least one row. Raises the same errors as `begin`."""
        protos = {
            behavior_id: action_protos(self.specs[behavior_id], batch.continuous, batch.discrete)
            for behavior_id, batch in actions.items()
        }
        return await self._answer(await self._updated_worker().step(protos))

    def _updated_worker(self) -> Worker:
        assert self._bridge is not None
        self._bridge.update()
        return self.connection

    async def _answer(self, output: Any) -> ProgramAnswer:
        assert self._bridge is not None
        rows, statistics = self._read(output), [self._bridge.statistics()]
        while not rows:
            output = await self._updated_worker().step({})
            rows = self._read(output)
            statistics.append(self._bridge.statistics())
        return ProgramAnswer(rows, statistics[0] if len(statistics) == 1 else merged_statistics(statistics))

    def _read(self, output: Any) -> dict[str, InstanceRows]:
        for brain in output.rl_initialization_output.brain_parameters:
            self._brains[brain.brain_name] = brain
        by_behavior = output.rl_output.agentInfos
        rows = {}
        for behavior_id in sorted(by_behavior):  # the map in a message is unordered
            infos = by_behavior[behavior_id].value
            if infos:
                rows[behavior_id] = self._rows(behavior_id, infos)
        return rows

    def _rows(self, behavior_id: str, infos: Any) -> InstanceRows:
        assert self._bridge is not None
        reader = self._readers.get(behavior_id)
        if reader is None:
            reader = self._readers[behavior_id] = self._new_reader(behavior_id, infos[0])
        return self._episodes.of(behavior_id, reader.read(infos), self._bridge.generation)

    def _new_reader(self, behavior_id: str, first: Any) -> BehaviorReader:
        brain = self._brains.get(behavior_id)
        if brain is None:
            known = ", ".join(sorted(self._brains)) or "none"
            raise UnityBroken(
                f"{self.name} sends agents of a behaviour {behavior_id!r} that it has not announced (announced: "
                f"{known}); check that its package com.unity.ml-agents is complete, with all files from the same "
                "version"
            )
        reader = BehaviorReader(brain, first, self.name)
        if self._without_graphics and behavior_id not in self.specs:
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
                *(self.name, spec.behavior_id, ", ".join(pictures)),
            )


_OF_CHANNELS = ("channel_id", "message_queue", "on_message_received")
"""Attributes that every side channel has, whatever its class."""


def make_unity_group(request: EnvironmentRequest) -> ProgramGroup:
    """Make the group that `env_settings` describes; its first reset starts the programs.

    Worker n gets the run's seed + n.

    Raises:
        LoadError: if a side channel can't be loaded.
    """
    config = request.config
    settings = config.env_settings
    channels = [channel_maker(config, index) for index in range(len(settings.side_channels))]

    def make(index: int, parameters: EpisodeParameters | None) -> UnityInstance:
        worker_id = request.replica * settings.num_envs + index
        connect = partial(_connect, request, worker_id, channels, parameters)
        return UnityInstance(worker_id, connect, without_graphics=worker_id == first_without_graphics(config))

    return make_program_group(config, settings.num_envs, make, waits_for_restart=False)


@preparing()
def _connect(
    request: EnvironmentRequest,
    worker_id: int,
    channels: list[Callable[[], Any]],
    parameters: EpisodeParameters | None,
) -> tuple[Worker, SideChannelBridge]:
    from headrace.stages.environments.unity.worker import EDITOR_PORT, UnityWorker  # imports gRPC, which no check needs

    config, env, seed = request.config, request.config.env_settings, request.seed
    bridge = SideChannelBridge(config.engine_settings, parameters, worker_id, seed, [make() for make in channels])
    settings = worker_settings(config, worker_id, seed, patient=False)
    settings = replace(
        settings,
        port=EDITOR_PORT if env.env_path is None else settings.port,
        seed=settings.seed & 0x7FFFFFFF,  # Unity's seeds are int32
    )
    executable = _executable(config, worker_id, request.run_folder)
    worker = UnityWorker(settings, executable, env.num_areas, bridge.channels, env.listen)
    return worker, bridge


def first_without_graphics(config: RunConfig) -> int | None:
    """Return the number of the first worker without graphics, which alone logs a warning. None if all have graphics."""
    if config.env_settings.env_path is None:
        return None
    return 0 if config.engine_settings.no_graphics else 1 if config.engine_settings.no_graphics_monitor else None


def _executable(config: RunConfig, worker_id: int, run_folder: Path | None) -> Executable | None:
    settings, engine = config.env_settings, config.engine_settings
    if settings.env_path is None:
        return None
    return Executable(
        settings.env_path,
        settings.env_args or (),
        run_folder / RUN_LOGS / f"Player-{worker_id}.log" if run_folder is not None else None,
        config.debug,
        no_graphics=engine.no_graphics or (engine.no_graphics_monitor and worker_id > 0),
    )


def check_executable(config: RunConfig) -> None:
    """If an executable is given, check that it exists.

    Raises:
        ProgramRefused: if the executable does not exist.
    """
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path), "Unity")


def named_channels(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield functions that import the side channels; each raises a LoadError if the import fails."""
    for index in range(len(config.env_settings.side_channels)):
        yield partial(_find_channel, config, index)


def channel_maker(config: RunConfig, index: int) -> Callable[[], Any]:
    """Return a function that makes a side channel of the user's class.

    Raises:
        LoadError: if the named object can't be found or is not a class.
    """
    what = f"side channel {config.env_settings.side_channels[index]!r}"
    found = _find_channel(config, index)

    def make() -> Any:
        try:
            channel = found()
        except Exception as error:
            raise LoadError(f"{what}: creating it failed: {describe_error(error)}") from error
        missing = [name for name in _OF_CHANNELS if not hasattr(channel, name)]
        if missing:
            raise LoadError(
                f"{what}: {type_of(channel)} is not a side channel: it has no {', '.join(missing)}; derive it from "
                "headrace.unity.SideChannel"
            )
        return channel

    return make


def _find_channel(config: RunConfig, index: int) -> Callable[[], Any]:
    reference = config.env_settings.side_channels[index]
    with blaming("env_settings", "side_channels", index):
        return load_callable(reference, config.source_folder, "side channel", "a class")
