"""Steps of ML-Agents' low-level interface, as a test writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.stages.environments.engines.unity.specs import (
    ActionSpec,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)

NAME = "Walker?team=0"


def spec(*shapes: tuple[int, ...], continuous: int = 0, branches: tuple[int, ...] = ()) -> BehaviorSpec:
    """A behaviour with sensors of these shapes."""
    sensors = [
        ObservationSpec(shape, (DimensionProperty.NONE,) * len(shape), ObservationType.DEFAULT, f"sensor {index}")
        for index, shape in enumerate(shapes or ((1,),))
    ]
    return BehaviorSpec(sensors, ActionSpec(continuous, branches))


def _columns(agents: Mapping[int, Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """What agents see: of each a number, which fills all its sensors."""
    seen = np.array([*agents.values()], np.float32)
    return [np.broadcast_to(seen.reshape(-1, *[1] * len(shape)), (len(seen), *shape)).copy() for shape in shapes]


class Scene:
    """A program of the low-level interface that says what its test wrote.

    Args:
        specs: of the behaviours that are known from the first reset on.
        script: what follows resets and steps, each `says(…)` or a dict of such by behaviour.
    """

    side_channels: Mapping[str, Any] = {}

    def __init__(self, specs: BehaviorSpec | Mapping[str, BehaviorSpec], *script: Any) -> None:
        self._specs = specs if not isinstance(specs, BehaviorSpec) else {NAME: specs}
        self._script = iter(script)
        self._said: Mapping[str, Any] = {}
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}
        self.acted: list[tuple[str, list[Any], list[Any]]] = []
        self.orders: list[str] = []
        self.closed = 0

    def reset(self) -> None:
        self.orders.append("reset")
        self.behavior_specs = self._specs
        self._go()

    def step(self) -> None:
        self.orders.append("step")
        self._go()

    def get_steps(self, name: str) -> tuple[DecisionSteps, TerminalSteps]:
        said = self._said.get(name, says())
        return said(self._specs[name])

    def set_actions(self, name: str, actions: Any) -> None:
        self.acted.append((name, actions.continuous.tolist(), actions.discrete.tolist()))

    def close(self) -> None:
        self.closed += 1

    def _go(self) -> None:
        said = next(self._script)
        self._said = said if isinstance(said, Mapping) else {NAME: said}


def says(
    asking: Mapping[int, float] | None = None,
    ended: Mapping[int, float] | None = None,
    reward: float = 0.0,
    interrupted: bool = False,
    forbidden: Sequence[Sequence[bool]] | None = None,
    group: int = 0,
) -> Any:
    """What agents say by their numbers: what those see that ask for decisions, and those whose episodes have ended.

    Args:
        asking, ended: the agents, and a number that each sees.
        reward: of each.
        interrupted: of each end.
        forbidden: of each branch, which choices are, for all that ask.
        group: of each; its reward is ten times the agent's.
    """
    asking, ended = asking or {}, ended or {}

    def of(spec: BehaviorSpec) -> tuple[DecisionSteps, TerminalSteps]:
        shapes = [each.shape for each in spec.observation_specs]
        masks = forbidden or [[False] * count for count in spec.action_spec.discrete_branches]
        return (
            DecisionSteps(
                _columns(asking, shapes),
                np.full(len(asking), reward, np.float32),
                np.array([*asking], np.int32),
                [np.tile(np.array(mask, np.bool_), (len(asking), 1)) for mask in masks] or None,
                np.full(len(asking), group, np.int32),
                np.full(len(asking), 10 * reward, np.float32),
            ),
            TerminalSteps(
                _columns(ended, shapes),
                np.full(len(ended), reward, np.float32),
                np.full(len(ended), interrupted),
                np.array([*ended], np.int32),
                np.full(len(ended), group, np.int32),
                np.full(len(ended), 10 * reward, np.float32),
            ),
        )

    return of
