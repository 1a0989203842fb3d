"""ML-Agents' low-level interface for scripts: one Unity program, step by step and without asyncio.

    env = UnityEnvironment("Builds/3DBall")
    env.reset()
    (name,) = env.behavior_specs
    decisions, endings = env.get_steps(name)
    env.set_actions(name, env.behavior_specs[name].action_spec.random_action(len(decisions)))
    env.step()
    env.close()

The pipeline uses `headrace.stages.environments.engines.unity` instead, which steps several programs at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.config import EnvSettings
from headrace.config.listen import LOCALHOST
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.rows import GameRows
from headrace.stages.environments.engines.unity.columns import BehaviorReader, action_protos
from headrace.stages.environments.engines.unity.errors import (
    UnityActionException,
    UnityEnvironmentException,
    as_low_level,
)
from headrace.stages.environments.engines.unity.game import EDITOR_PORT, UnityBuild, UnityGame
from headrace.stages.environments.engines.unity.side_channels import SideChannel, SideChannels
from headrace.stages.environments.engines.unity.specs import (
    ActionSpec,
    ActionTuple,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)

BASE_PORT = EnvSettings().base_port
"""Default port of executables."""
_EDITOR_FAREWELL_S = 5.0
"""Seconds to wait for the Editor, which is never killed, to finish its step and hear the goodbye."""
Result = TypeVar("Result")


@dataclass
class _BehaviorSteps:
    """A behaviour, with the current steps of its agents."""

    spec: BehaviorSpec
    decisions: DecisionSteps
    endings: TerminalSteps
    actions: ActionTuple | None = None
    """The actions set for the next step; None if none are set."""


class UnityEnvironment:
    """One Unity program; the constructor starts it, or waits until Play is pressed in the Editor.

    Args:
        file_name: the executable, with or without its extension; None for the Editor.
        worker_id: added to the port, so several programs can run concurrently.
        base_port: first port of executables; None for 5005, 0 for any free one. The Editor always uses 5004.
        seed: the seed of Unity's random numbers.
        no_graphics: run without a window.
        no_graphics_monitor: as `no_graphics`, except for worker 0.
        timeout_wait: seconds to wait for the start, and for each exchange.
        additional_args: additional arguments for the executable.
        side_channels: instances of Headrace's or ML-Agents' own classes.
        log_folder: the folder for Unity's log.
        num_areas: number of copies of the training area that Unity makes.
        listen: the addresses to listen on: `localhost`, another address of this machine in addition, or `all`. Unless
            this is `localhost`, other machines can end the environment or answer in Unity's place.
        max_message_mib: largest message from or to Unity, in MiB.

    Attributes:
        side_channels: the side channels, keyed by class name.

    Raises:
        UnityEnvironmentException: if Unity can't be started, or its version is not compatible.
        UnityWorkerInUseException: if the port is taken.
        UnityTimeOutException: if Unity does not connect.
    """

    BASE_ENVIRONMENT_PORT = BASE_PORT
    DEFAULT_EDITOR_PORT = EDITOR_PORT
    """The Editor's port, named as in ML-Agents' class."""

    def __init__(
        self,
        file_name: str | None = None,
        worker_id: int = 0,
        base_port: int | None = None,
        seed: int = 0,
        no_graphics: bool = False,
        no_graphics_monitor: bool = False,
        timeout_wait: int = 60,
        additional_args: Sequence[str] | None = None,
        side_channels: Sequence[SideChannel] | None = None,
        log_folder: str | None = None,
        num_areas: int = 1,
        listen: str = LOCALHOST,
        max_message_mib: int = EnvSettings().max_message_mib,
    ) -> None:
        if file_name is None and worker_id != 0:
            raise UnityEnvironmentException(
                f"worker_id is {worker_id}, but there is only one Unity Editor; pass file_name, or leave worker_id at 0"
            )
        build = None
        if file_name is not None:
            build = UnityBuild(
                file_name,
                tuple(additional_args or ()),
                Path(log_folder) / f"Player-{worker_id}.log" if log_folder is not None else None,
                no_graphics=no_graphics or (no_graphics_monitor and worker_id > 0),
            )
        self._patience_s = _EDITOR_FAREWELL_S if build is None else None
        self._name = f"Unity worker {worker_id}"
        self._behaviors: dict[str, _BehaviorSteps] = {}
        self._begun = self._closed = False
        self._loop_thread = _LoopThread()
        try:
            with as_low_level():
                port = self.DEFAULT_EDITOR_PORT
                if build is not None:
                    port = 0 if base_port == 0 else (BASE_PORT if base_port is None else base_port) + worker_id
                channels = SideChannels(side_channels or (), self._name)
                self.side_channels = channels.by_class
                settings = GameSettings(worker_id, port, seed, timeout_wait, max_message_mib)
                self._game = UnityGame(settings, build, num_areas, lambda: channels, listen)
                self._loop_thread.call(self._game.start())
        except BaseException:
            self._loop_thread.close()
            raise

    @property
    def behavior_specs(self) -> Mapping[str, BehaviorSpec]:
        """The behaviours known so far, keyed by full name (`Name?team=0`); empty before the first reset."""
        return {name: behavior.spec for name, behavior in self._behaviors.items()}

    @property
    def academy_capabilities(self) -> Any:
        """The capabilities of the connected Unity, as flags of a `UnityRLCapabilitiesProto`."""
        return self._game.greeting.capabilities

    def reset(self) -> None:
        """Reset all agents. Raises the same errors as `step`."""
        self._receive(self._game.request_reset())
        self._begun = True

    def step(self) -> None:
        """Let the agents take their actions (zeros by default), and wait for new decision requests or endings.

        The first step is a reset.

        Raises:
            UnityCommunicationException: if Unity failed, or broke the protocol.
            UnityCommunicatorStoppedException: if Unity ended normally.
            UnityTimeOutException: if Unity did not answer in time.
            UnityEnvironmentException: if the environment was closed.
        """
        if not self._begun:
            self.reset()
            return
        protos = {}
        for name, behavior in self._behaviors.items():
            if count := len(behavior.decisions):
                actions = behavior.actions or behavior.spec.action_spec.empty_action(count)
                protos[name] = action_protos(self._game.specs[name], actions.continuous, actions.discrete)
        self._receive(self._game.request_step(protos))

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        """Return the agents that need a decision, and those whose episodes have ended since the last step.

        Raises:
            UnityActionException: if the behaviour does not exist.
        """
        behavior = self._behavior(behavior_name)
        return behavior.decisions, behavior.endings

    def set_actions(self, behavior_name: str, action: Any) -> None:
        """Set the actions of a behaviour's agents for the next step.

        Args:
            behavior_name: the behaviour's full name.
            action: an `ActionTuple` with a row for each agent of the DecisionSteps, in their order.

        Raises:
            UnityActionException: if the behaviour does not exist, or the actions have the wrong shape.
        """
        behavior = self._behavior(behavior_name)
        count = len(behavior.decisions)
        if count:
            behavior.actions = behavior.spec.action_spec.checked(action, count, behavior_name)

    def set_action_for_agent(self, behavior_name: str, agent_id: int, action: Any) -> None:
        """Set one agent's action for the next step. The behaviour's agents whose actions are not set get zeros.

        Args:
            behavior_name: the full name of the agent's behaviour.
            agent_id: the id of an agent in the DecisionSteps.
            action: an `ActionTuple` of one row.

        Raises:
            UnityActionException: if the behaviour or agent does not exist, or the action has the wrong shape.
        """
        behavior = self._behavior(behavior_name)
        row = behavior.decisions.agent_id_to_index.get(agent_id)
        if row is None:
            raise UnityActionException(f"{behavior_name}: agent {agent_id} does not request a decision")
        checked = behavior.spec.action_spec.checked(action, 1, behavior_name)
        if behavior.actions is None:
            behavior.actions = behavior.spec.action_spec.empty_action(len(behavior.decisions))
        behavior.actions.continuous[row] = checked.continuous[0]
        behavior.actions.discrete[row] = checked.discrete[0]

    def close(self) -> None:
        """End the Unity program; closing twice is allowed."""
        if not self._closed:
            self._closed = True
            try:
                self._loop_thread.call(self._game.close(self._patience_s))
            finally:
                self._loop_thread.close()

    def _behavior(self, name: str) -> _BehaviorSteps:
        if name not in self._behaviors:
            names = ", ".join(self._behaviors) or "none before the first reset"
            raise UnityActionException(f"unknown behaviour {name!r}; the behaviours are: {names}")
        return self._behaviors[name]

    def _receive(self, exchange: Coroutine[Any, Any, Any]) -> None:
        if self._closed:
            exchange.close()
            raise UnityEnvironmentException(f"{self._name} was closed")
        with as_low_level():
            rows = self._game.read_rows(self._loop_thread.call(exchange))
        for name in filter(self._game.readers.get, self._game.brains):
            spec = self._behaviors[name].spec if name in self._behaviors else _spec(self._game.readers[name])
            steps = DecisionSteps.empty(spec), TerminalSteps.empty(spec)
            self._behaviors[name] = _BehaviorSteps(spec, *(_steps(rows[name], spec) if name in rows else steps))


class _LoopThread:
    """An event loop in a thread, for callers without one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="unity", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the thread's loop; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread. Call this only when no coroutine is running."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _spec(reader: BehaviorReader) -> BehaviorSpec:
    observations = [
        ObservationSpec(
            spec.shape,
            tuple(map(DimensionProperty, properties)),
            ObservationType.GOAL_SIGNAL if spec.goal else ObservationType.DEFAULT,
            spec.name,
        )
        for spec, properties in zip(reader.spec.observations, reader.dimension_properties, strict=True)
    ]
    actions = reader.spec.actions
    return BehaviorSpec(observations, ActionSpec(actions.continuous_size, actions.discrete_branches))


def _steps(rows: GameRows, spec: BehaviorSpec) -> tuple[DecisionSteps, TerminalSteps]:
    asking, over = slice(rows.ended, None), slice(rows.ended)
    observations = [_as_floats(column) for column in rows.observations]
    masks = None
    if rows.action_masks is not None:
        ends = np.cumsum(spec.action_spec.discrete_branches)[:-1]
        masks = np.split(~rows.action_masks, ends, axis=1)
    decisions = DecisionSteps(
        [column[asking] for column in observations],
        rows.rewards[asking],
        rows.ids[asking],
        masks,
        rows.group_ids[asking],
        rows.group_rewards[asking],
    )
    endings = TerminalSteps(
        [column[over] for column in observations],
        rows.rewards[over],
        rows.interrupted,
        rows.ids[over],
        rows.group_ids[over],
        rows.group_rewards[over],
    )
    return decisions, endings


def _as_floats(column: NDArray[Any]) -> NDArray[np.float32]:
    """Return observations as floats; image bytes are scaled to the range from 0 to 1."""
    return column.astype(np.float32) / np.float32(255) if column.dtype == np.uint8 else column
