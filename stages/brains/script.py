"""Scripted brains: a class of the user's with one method, or the scripted player of a built-in game."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.brains import SCRIPTED_PLAYERS
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains.protocol import BrainRequest, Memoryless
from headrace.stages.error_text import describe_error
from headrace.stages.errors import LoadError, StageError, blaming
from headrace.stages.plugins import check_arguments, construct, find_class
from headrace.stages.policy.protocol import Decision, Recall

SCRIPTED = "scripted"
"""The `use` that stands for the scripted player of the built-in game that is played."""


class ScriptBrain(Memoryless):
    """Asks a script.

    Args:
        script: called with the observations, one array [d, *shape] per observation spec, and with the action masks
            [d, sum of branches] where the behaviour has such; returns an `ActionBatch`.
        spec: the behaviour. Of a learned action repeat the script needs to know nothing: it is asked at each
            environment step, and its masks have no choices for it.
        name: of the script, for messages.
    """

    def __init__(self, script: Callable[..., Any], spec: BehaviorSpec, name: str) -> None:
        self._script = script
        self._spec = spec
        self._name = name

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Ask for the actions of d agents.

        Raises:
            StageError: if the script raises, or returns anything but actions for these agents.
        """
        count, actions = len(observations[0]), self._spec.actions
        repeats = self._spec.action_repeat == "learned"
        branches = len(actions.discrete_branches)
        if not count:
            nothing = np.zeros((0, actions.continuous_size), np.float32), np.zeros((0, branches), np.int32)
            return Decision(ActionBatch(*nothing), {})
        shapes = (count, actions.continuous_size), (count, branches - repeats)
        width = actions.mask_size - (actions.discrete_branches[-1] if repeats else 0)
        try:
            made = self._script(observations, *(() if masks is None else (masks[:, :width],)))
        except Exception as error:
            raise StageError(f"{self._name} raised {describe_error(error)}") from error
        self._check(made, shapes)
        return Decision(ActionBatch(made.continuous, np.pad(made.discrete, ((0, 0), (0, 1)))) if repeats else made, {})

    def _check(self, made: Any, shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
        if isinstance(made, ActionBatch) and (made.continuous.shape, made.discrete.shape) == shapes:
            return
        given = made
        if isinstance(made, ActionBatch):
            given = f"one of continuous {list(made.continuous.shape)} and discrete {list(made.discrete.shape)}"
        raise StageError(
            f"{self._name} returned {given!s} for {shapes[0][0]} agents of {self._spec.behavior_id}; expected an "
            f"ActionBatch of continuous {list(shapes[0])} and discrete {list(shapes[1])}"
        )


def make_script(request: BrainRequest) -> ScriptBrain | None:
    """Make the brain.

    Raises:
        LoadError: if there is no such script, it has no `__call__`, does not take its arguments, or raises.
    """
    spec, where = request.spec, request.where
    with blaming(*request.key):
        found = [(use, find_class(where, use, folder)) for use, folder in _references(request)]
        for use, made in found:
            if not any("__call__" in base.__dict__ for base in made.__mro__):
                raise LoadError(
                    f"{where}: {use} is no player: it has no method "
                    "__call__(self, observations), or __call__(self, observations, masks) where actions are masked"
                )
    use, made = found[0 if spec is None else min(spec.team, len(found) - 1)]
    with blaming(*request.given_key):
        arguments = check_arguments(where, use, made, request.given, {"spec": spec, "seed": request.seed})
    if spec is None:
        return None
    with blaming(*request.key):
        return ScriptBrain(construct(where, use, made, arguments), spec, f"{where}: {use}")


def _references(request: BrainRequest) -> list[tuple[str, Path | None]]:
    """Return the `module:Class` of the script, or of each team's, and where the module may lie."""
    if request.use != SCRIPTED:
        return [(request.use, request.folder)]
    if request.game is None or request.game not in SCRIPTED_PLAYERS:
        raise LoadError(
            f"{request.where}: 'scripted' is the scripted player of a built-in game ({', '.join(SCRIPTED_PLAYERS)}), "
            "and another environment is played; name a class of your own, such as 'my_players:MyPlayer'"
        )
    return [(use, None) for use in SCRIPTED_PLAYERS[request.game]]
