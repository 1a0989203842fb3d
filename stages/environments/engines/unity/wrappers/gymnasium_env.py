"""A Unity program with one agent as a Gymnasium environment, under ML-Agents' name for this class.

Both wrappers convert a behaviour's observation and action specs to Gymnasium's spaces, and actions back, as here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from headrace.stages.environments.engines.unity.errors import UnityActionException, UnityException
from headrace.stages.environments.engines.unity.specs import ActionTuple
from headrace.stages.environments.spaces.masks import MASK

Mask = Any
"""A mask in the form that `space.sample` takes: int8 [choices], 1 = allowed. With several branches, the mask is a tuple
of these arrays. With both choices and continuous actions, it is `(None, mask)`."""


class ActionMap:
    """Converts a behaviour's actions from Gymnasium's form to Unity's, and masks from Unity's form to Gymnasium's.

    Args:
        spec: the behaviour's `ActionSpec`.
        name: the behaviour's name, used in messages.
        flatten: True to make one branch with a choice for each combination, if all actions are discrete.
        seed: the seed for the space's samples.

    Attributes:
        space: a Box for continuous actions, Discrete for one branch of choices, MultiDiscrete for several. With both
            kinds of actions, a Tuple of a Box and a Discrete or MultiDiscrete.

    Raises:
        UnityActionException: if there are no actions.
    """

    def __init__(self, spec: Any, name: str, flatten: bool = False, seed: int | None = None) -> None:
        self._branches = tuple(map(int, spec.discrete_branches))
        self._width = int(spec.continuous_size)
        self._flat = flatten and len(self._branches) > 1 and not self._width
        if not self._width and not self._branches:
            raise UnityActionException(f"{name}: it has no actions")
        choices: Space[Any] = spaces.MultiDiscrete(list(self._branches))
        if self._flat or len(self._branches) == 1:
            choices = spaces.Discrete(math.prod(self._branches))
        numbers = spaces.Box(-1.0, 1.0, (self._width,), np.float32)
        parts: list[Space[Any]] = [numbers] * bool(self._width) + [choices] * bool(self._branches)
        self.space = parts[0] if len(parts) == 1 else spaces.Tuple(parts)
        if seed is not None:
            self.space.seed(seed)

    @property
    def mask_space(self) -> Space[Any] | None:
        """The space of masks; None if there are continuous actions, which have no masks."""
        if self._width:
            return None
        if isinstance(self.space, spaces.Discrete):
            return spaces.MultiBinary(int(self.space.n))
        return spaces.Tuple([spaces.MultiBinary(count) for count in self._branches])

    def read(self, chosen: Sequence[Any], who: Sequence[str]) -> ActionTuple:
        """Convert actions of several agents.

        Args:
            chosen: a value of the space for each agent.
            who: the agents' names, used in messages.

        Raises:
            UnityActionException: if an action is not in the space.
        """
        try:
            return self._converted(chosen)
        except (TypeError, ValueError):
            agent, wrong = next(pair for pair in zip(who, chosen, strict=True) if not self._fits(pair[1]))
            raise UnityActionException(f"{agent}: got action {wrong!r}; expected one of {self.space}") from None

    def _fits(self, action: Any) -> bool:
        try:
            self._converted([action])
        except (TypeError, ValueError):
            return False
        return True

    def _converted(self, chosen: Sequence[Any]) -> ActionTuple:
        numbers, choices = chosen, chosen
        if self._width and self._branches:
            numbers, choices = zip(*((numbers, choices) for numbers, choices in chosen), strict=True)
        continuous = self._numbers(numbers) if self._width else None
        return ActionTuple(continuous, self._choices(choices) if self._branches else None)

    def _numbers(self, values: Sequence[Any]) -> NDArray[np.float32]:
        numbers = _rows(values)
        if numbers.shape[1] != self._width:
            raise ValueError
        return numbers.astype(np.float32)

    def _choices(self, values: Sequence[Any]) -> NDArray[np.int32]:
        rows = _rows(values)
        choices = rows.astype(np.int64)
        sizes = (math.prod(self._branches),) if self._flat else self._branches
        if choices.shape[1] != len(sizes) or (choices != rows).any() or ((choices < 0) | (choices >= sizes)).any():
            raise ValueError
        if self._flat:
            choices = np.stack(np.unravel_index(choices[:, 0], self._branches), 1)
        return choices.astype(np.int32)

    def mask(self, forbidden: Sequence[NDArray[np.bool_]] | None) -> Mask | None:
        """Return the mask for `space.sample`, from one agent's mask in a DecisionStep; None without discrete actions.

        Args:
            forbidden: [choices] of each branch, true = forbidden; None if all are allowed.
        """
        if not self._branches:
            return None
        if forbidden is None:
            forbidden = [np.zeros(count, np.bool_) for count in self._branches]
        branches = [np.logical_not(branch).astype(np.int8) for branch in forbidden]
        allowed: Mask = tuple(branches) if len(branches) > 1 else branches[0]
        if self._flat:
            return reduce(np.multiply.outer, branches).reshape(-1)
        return (None, allowed) if self._width else allowed


def _rows(values: Sequence[Any]) -> NDArray[Any]:
    """Stack several agents' actions, one per row. Raises ValueError if a value is not a finite number."""
    rows = np.stack([np.asarray(value).reshape(-1) for value in values])
    if rows.dtype.kind not in "biuf" or not np.isfinite(rows).all():
        raise ValueError
    return rows


def unlimited(shape: Sequence[int]) -> spaces.Box:
    """Return an unbounded Box of this shape."""
    return spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)


log = logging.getLogger(__name__)

_COLOURS = (1, 3)
"""Channel counts of images that can be shown."""


class UnityGymException(UnityException):
    """The program is not an environment with a single agent, or was stepped after the end of its episode."""


class UnityToGymWrapper(gymnasium.Env[Any, Any]):
    """One agent of a Unity program, with the constructor of ML-Agents' class of this name and Gymnasium's current API.

    The observation is the first image, as float32 from 0 to 1 in Unity's order of axes. If there are no images, it is
    all vectors joined. `info["step"]` holds the low-level interface's steps. With discrete actions, the info also has
    an `action_mask`, in the form that the action space's `sample` takes. For an agent in a group, it has the
    `group_reward`. Episodes that Unity interrupts count as truncated.

    Args:
        unity_env: the program, through its low-level interface (`UnityEnvironment`); it is closed with the environment.
        uint8_visual: return images as bytes from 0 to 255.
        flatten_branched: if all actions are discrete, turn several branches into one Discrete space, with a choice for
            each combination.
        allow_multiple_obs: return a tuple of all images, all lists of entities, and all vectors joined.
        action_space_seed: seed for samples of the action space.

    Attributes:
        name: the behaviour's name.
        group_spec: the behaviour's spec.
        visual_obs: the first image of the last observation; None without images.
        game_over: True from the end of an episode to the next reset.

    Raises:
        UnityGymException: if there are several behaviours or agents, or no observations.
        UnityActionException: if there are no actions.
    """

    def __init__(
        self,
        unity_env: Any,
        uint8_visual: bool = False,
        flatten_branched: bool = False,
        allow_multiple_obs: bool = False,
        action_space_seed: int | None = None,
    ) -> None:
        self._env = unity_env
        self._agent: int | None = None
        self._warned: set[str] = set()
        self.name = ""
        self.game_over = False
        self.visual_obs: NDArray[Any] | None = None
        self._env.reset()
        self._first_decision()
        self.group_spec = self._env.behavior_specs[self.name]
        actions = self.group_spec.action_spec
        self.action_size = actions.continuous_size or actions.discrete_size
        self._actions = ActionMap(actions, self.name, flatten_branched, action_space_seed)
        self.action_space = self._actions.space
        self._mask = self._actions.mask(None)
        self._shapes = [tuple(observed.shape) for observed in self.group_spec.observation_specs]
        self._pictures, self._sets, self._vectors = (
            [index for index, shape in enumerate(self._shapes) if len(shape) == rank] for rank in (3, 2, 1)
        )
        self._bytes = uint8_visual
        self._several = allow_multiple_obs
        self.observation_space = self._observation_space()
        # Unity keeps its seed, so Gymnasium's checker must not compare episodes.
        self.spec = EnvSpec("UnityToGymWrapper", nondeterministic=True)
        has_picture = bool(self._pictures) and self._shapes[self._pictures[0]][0] in _COLOURS
        self.metadata = {"render_modes": ["rgb_array"] if has_picture else []}
        self.render_mode = "rgb_array" if has_picture else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the program. `seed` has no effect: the program's random numbers follow the seed given at its start."""
        super().reset(seed=seed)
        if seed is not None:
            self._warn(
                "reset(seed=…) has no effect in Unity, which keeps the seed with which UnityEnvironment started it"
            )
        self._env.reset()
        decisions = self._first_decision()
        self.game_over = False
        return self._seen(decisions)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Let the agent act, and wait until it needs its next decision, or its episode ends.

        Raises:
            UnityGymException: if the episode has ended, or there is more than one agent.
            UnityActionException: if the action is not in the space.
        """
        if self.game_over:
            raise UnityGymException(f"{self.name}: the episode has ended: call reset() before the next step()")
        self._env.set_actions(self.name, self._actions.read([action], [self.name]))
        self._env.step()
        decisions, endings = self._said(endings_too=True)
        self.game_over = len(endings) > 0
        steps = endings if self.game_over else decisions
        if steps.agent_id[0] != self._agent:
            raise self._not_one(f"agent {steps.agent_id[0]} in addition to agent {self._agent}")
        observation, info = self._seen(steps)
        truncated = self.game_over and bool(endings.interrupted[0])
        return observation, float(steps.reward[0]), self.game_over and not truncated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask of allowed choices, all branches concatenated, as sb3-contrib's MaskablePPO expects it.

        Raises:
            UnityGymException: if some actions are continuous.
        """
        if self._actions.mask_space is None:
            raise UnityGymException(f"{self.name}: masks are not available, because not all its actions are discrete")
        return np.concatenate(self._mask if isinstance(self._mask, tuple) else [self._mask]).astype(np.bool_)

    def render(self) -> Any:
        """Return the first image of the last observation as bytes [height, width, 3]; None if no image can be shown."""
        if self.visual_obs is None or self.render_mode is None:
            return None
        picture = np.moveaxis(self.visual_obs if self._bytes else _as_bytes(self.visual_obs), 0, -1)
        return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))

    def close(self) -> None:
        """End the program."""
        self._env.close()

    def _first_decision(self) -> Any:
        decisions, _ = self._said(endings_too=False)
        self._agent = int(decisions.agent_id[0])
        return decisions

    def _said(self, endings_too: bool) -> tuple[Any, Any]:
        """Return the agent's decision and terminal steps; wait for a decision or, with `endings_too`, an ending."""
        while True:
            names = list(self._env.behavior_specs)
            if len(names) > 1:
                raise self._not_one(f"the behaviours {', '.join(names)}")
            if names:
                self.name = names[0]
                decisions, endings = self._env.get_steps(self.name)
                if (many := max(len(decisions), len(endings))) > 1:
                    raise self._not_one(f"{many} agents")
                if len(decisions) or (endings_too and len(endings)):
                    return decisions, endings
            self._env.step()

    def _not_one(self, contents: str) -> UnityGymException:
        where = f"{self.name}: " if self.name else ""
        return UnityGymException(
            f"{where}this program has {contents}, but a Gymnasium environment can have only one agent: use "
            "UnityParallelEnv or UnityAECEnv, or give the scene one agent"
        )

    def _observation_space(self) -> Space[Any]:
        most, kind = (255, np.uint8) if self._bytes else (1, np.float32)
        parts: list[Space[Any]] = [spaces.Box(0, most, self._shapes[index], kind) for index in self._pictures]
        parts += [unlimited(self._shapes[index]) for index in self._sets]
        if self._vectors:
            parts.append(unlimited((sum(self._shapes[index][0] for index in self._vectors),)))
        if not parts:
            raise UnityGymException(
                f"{self.name}: it has no observations: give it a sensor with one, two or three dimensions"
            )
        if self._several:
            return spaces.Tuple(parts)
        if len(parts) > 1:
            self._warn("it has several observations, and only one is returned: set allow_multiple_obs=True to get all")
        return parts[self._one]

    @property
    def _one(self) -> int:
        """Index of the only observation that is returned: the first image, or the vectors if there are no images."""
        return 0 if self._pictures else -1

    def _seen(self, steps: Any) -> tuple[Any, dict[str, Any]]:
        """Return the agent's observation and info."""
        values = [column[0] for column in steps.obs]
        pictures = [_as_bytes(values[index]) if self._bytes else values[index] for index in self._pictures]
        if pictures:
            self.visual_obs = pictures[0]
        parts = pictures + [values[index] for index in self._sets]
        if self._vectors:
            parts.append(np.concatenate([values[index] for index in self._vectors]))
        info: dict[str, Any] = {"step": steps}
        if hasattr(steps, "action_mask"):
            forbidden = None if steps.action_mask is None else [branch[0] for branch in steps.action_mask]
            self._mask = self._actions.mask(forbidden)
            if self._mask is not None:
                info[MASK] = self._mask
        if steps.group_id[0]:
            info["group_reward"] = float(steps.group_reward[0])
        return tuple(parts) if self._several else parts[self._one], info

    def _warn(self, what: str) -> None:
        """Log a warning once."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s: %s.", self.name, what)


def _as_bytes(picture: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert an image with numbers from 0 to 1 to bytes."""
    scaled: NDArray[np.uint8] = np.rint(np.clip(picture, 0.0, 1.0) * 255).astype(np.uint8)
    return scaled
