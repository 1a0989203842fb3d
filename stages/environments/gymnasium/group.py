"""Gymnasium environments as an environment group: single environments, or a vector environment of any kind.

The group drives `SingleEnvs` or a `gymnasium.vector.VectorEnv`, and checks the values that they return. All three
autoreset modes of vector environments produce the same rows (https://farama.org/Vector-Autoreset-Mode):

- SAME_STEP, as single environments: the tick in which an episode ends contains the ending row and the next episode's
  first row.
- DISABLED: the same, but the group itself resets the instances, through the `reset_mask` option.
- NEXT_STEP: the tick contains only the ending row, and the next tick contains the first row. In between, the
  environment ignores the instance's action, so the group requests no decision and produces no transition.

`singles` makes the environments, and `stages/environments/spaces/` converts spaces to columns. Both need gymnasium;
`making` imports them when it makes a group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from headrace.config import ObservationSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.checks import (
    described,
    flags_column,
    observation_problem,
    raise_broken,
    rewards_column,
    stack,
)
from headrace.stages.environments.episode_infos import EpisodeInfos
from headrace.stages.environments.gymnasium.singles import Envs, ParameterisedEnv, SingleEnvs
from headrace.stages.environments.parameters import EpisodeParameters, Floats
from headrace.stages.environments.protocol import AgentSteps, StepResult
from headrace.stages.environments.rendering import picture_of
from headrace.stages.environments.spaces.columns import SpaceColumns
from headrace.stages.environments.spaces.masks import MASK, Masks
from headrace.stages.environments.spaces.observations import check_names, take_rows
from headrace.stages.errors import BrokenEnvironmentError, StageError, describe_fault

log = logging.getLogger(__name__)

_NOTHING = np.empty(0, np.bool_)


class VectorTick(NamedTuple):
    """The checked result of one step or reset of all instances; its arrays are copies."""

    observations: tuple[Array, ...]
    rewards: NDArray[np.float32]
    """[n] all zeros after a reset."""
    terminated: NDArray[np.bool_]
    """[n]; empty after a reset, as is `truncated`."""
    truncated: NDArray[np.bool_]
    infos: Mapping[str, Any]
    mask: Any
    """The action masks in the observations. None if the observations contain no masks."""


class GymnasiumGroup:
    """Gymnasium environments as an EnvironmentGroup: one agent per instance, one behaviour.

    The agent id is the instance's index. The spec is known only after the first reset. If the observation space has no
    action masks, the reset's infos show whether masks exist (`infos["action_mask"]`, as in Taxi).

    Args:
        envs: single environments, or a vector environment in any autoreset mode. This group closes them.
        behavior: the behaviour id of all agents.
        name: the environment's name, used in messages.
        observations: kinds of observations whose spaces are ambiguous, keyed by name (`environment.observations`).
        info_keys: `environment.info_keys`.
        exact, clips: see `SpaceColumns`.

    Raises:
        StageError: if a space is not supported, the settings do not fit it, or the autoreset mode is unknown.
    """

    def __init__(
        self,
        envs: Envs,
        behavior: str,
        name: str,
        observations: Mapping[str, ObservationSettings] | None = None,
        info_keys: Sequence[str] = (),
        exact: bool = False,
        clips: bool = False,
    ) -> None:
        self.num_envs: int = envs.num_envs
        self.limits_episodes = False
        """True if each environment was made with the settings' time limit."""
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}
        self._envs = envs
        self._behavior = behavior
        self._name = name
        self._closed = False
        try:
            self._mode = _autoreset_mode(envs, name)
            spaces = envs.single_observation_space, envs.single_action_space
            self._spaces = SpaceColumns(*spaces, name, observations, exact, clips)
            check_names(observations or {}, self._spaces.parts, name)
            self._actions = self._spaces.actions(self.num_envs)
        except StageError:
            self.close()
            raise
        self._parameters: EpisodeParameters | None = None
        """Source of parameters for resetting an entire vector environment; None if single environments get the
        parameters, or if there are no parameters."""
        self._drawn: dict[str, Floats] = {}
        self._episode_infos = EpisodeInfos(info_keys, name)
        self._agent_ids = np.arange(self.num_envs, dtype=np.int64)
        self._env_ids = np.arange(self.num_envs, dtype=np.int32)
        self._episode_ids = np.full(self.num_envs, -1, dtype=np.int64)
        self._restarting: NDArray[np.bool_] | None = None
        """[n] in NEXT_STEP mode, true for the instances that the next step resets. None if it resets no instance."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Pass each episode's parameters to the environments, as options of `reset`.

        Single environments get numbers with every reset. Any other vector environment gets arrays [n] when the group
        resets it: at each episode's end if its autoreset mode is DISABLED (instances that are not reset get their
        previous values), otherwise only when all instances are reset. `AsyncVectorEnv` gets no parameters.
        """
        envs = self._envs if isinstance(self._envs, SingleEnvs) else self._envs.unwrapped
        if isinstance(envs, SingleEnvs | SyncVectorEnv):
            envs.envs = [ParameterisedEnv(env, partial(parameters.options, i)) for i, env in enumerate(envs.envs)]
            return
        if isinstance(envs, AsyncVectorEnv):
            log.warning(
                "environment_parameters: %s runs in separate processes (AsyncVectorEnv), which don't receive the "
                "parameters, so they have no effect; use vectorization_mode: sync (actors already run in separate "
                "processes)",
                self._name,
            )
            return
        self._parameters = parameters
        if self._mode is not AutoresetMode.DISABLED:
            log.warning(
                "environment_parameters: %s starts episodes itself (autoreset mode %s), so it receives the parameters "
                "only when all instances are reset, as with a lesson's require_reset: true; with autoreset mode "
                "DISABLED, or as single environments, it receives them at every episode",
                self._name,
                self._mode.name,
            )

    def reset(self, seed: int | None = None) -> StepResult:
        """Reset all instances.

        Args:
            seed: instance i is seeded with seed + i, unless a vectorised implementation seeds its instances itself;
                None to continue the random sequence.

        Raises:
            BrokenEnvironmentError: if the environment raises, or returns values that do not fit its spaces.
        """
        first, spaces = self._reset(None, None if seed is None else int(seed)), self._spaces
        if not self.behavior_specs:
            spaces.masks.expect(first.infos)
            self.behavior_specs = {self._behavior: spaces.spec(self._behavior)}
        # A seed restarts the random sequence, so a resumed run ends in the state of an uninterrupted one
        # (docs/decisions/050).
        self._episode_ids = self._episode_ids + 1 if seed is None else np.zeros(self.num_envs, np.int64)
        self._restarting = None
        return self._all_decide(first)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all instances by one tick.

        Raises:
            BrokenEnvironmentError: if the environment raises, or breaks the rules of its autoreset mode.
        """
        restarting = self._restarting
        batch = actions[self._behavior]
        if restarting is not None:
            deciding, decided, batch = ~restarting, batch, self._idle_actions()
            batch.continuous[deciding] = decided.continuous
            batch.discrete[deciding] = decided.discrete
        tick = self._step(batch)
        if restarting is not None:
            self._restarting = None
            self._check_restarted(tick, restarting)
            tick.rewards[restarting] = 0.0
        if np.count_nonzero(tick.terminated) or np.count_nonzero(tick.truncated):
            return self._some_end(tick)
        return self._all_decide(tick)

    @property
    def single(self) -> Any:
        """The first single environment, with its wrappers; None if the implementation is vectorised."""
        return self._envs.envs[0] if isinstance(self._envs, SingleEnvs | SyncVectorEnv) else None

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """Return an RGB image [height, width, 3] of one instance.

        Raises:
            StageError, BrokenEnvironmentError: in the same cases as `picture_of`.
        """
        envs = self._envs
        if isinstance(envs, SingleEnvs | SyncVectorEnv):
            return picture_of(envs.envs[env_id], envs.envs[env_id].render, self._name)
        return picture_of(envs, lambda: cast("Any", envs.render())[env_id], self._name)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The environment's metadata, such as `render_fps`."""
        return self._envs.metadata or {}

    def close(self) -> None:
        """Close the environments; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        try:
            self._envs.close()
        except Exception as error:
            raise_broken(error, self._name, "close")

    def _all_decide(self, tick: VectorTick) -> StepResult:
        """Return the rows of a tick without endings. In this common case, the same id arrays are reused."""
        return StepResult(
            {
                self._behavior: AgentSteps(
                    self._agent_ids,
                    self._env_ids,
                    self._episode_ids,
                    tick.observations,
                    tick.rewards,
                    0,
                    _NOTHING,
                    _NOTHING,
                    self._masks(tick, None),
                )
            }
        )

    def _some_end(self, tick: VectorTick) -> StepResult:
        over = tick.terminated | tick.truncated
        ended = over.nonzero()[0]
        deciding, observations = self._agent_ids, tick.observations
        same_step = self._mode is AutoresetMode.SAME_STEP
        last = self._final_observations(tick, ended) if same_step else tuple([o[ended] for o in observations])
        if same_step:
            masks = self._masks(tick, None)
        elif self._mode is AutoresetMode.DISABLED:
            masks = self._masks(tick, ~over)  # before a reset, which may overwrite the arrays
            new = self._reset(over)
            for observation, first in zip(observations, new.observations, strict=True):
                observation[ended] = first[ended]
            first_masks = self._masks(new, over)
            if masks is not None and first_masks is not None:
                masks[ended] = first_masks[ended]
        elif len(ended) < self.num_envs:
            deciding = np.flatnonzero(~over)
            self._restarting = over
            masks = self._masks(tick, ~over)
        else:  # no instance decides: restart now, so each tick has a decision
            again = self._step(self._idle_actions())
            self._check_restarted(again, over)
            observations, masks = again.observations, self._masks(again, None)
        return self._rows(tick, over, ended, deciding, last, observations, masks)

    def _rows(
        self,
        tick: VectorTick,
        over: NDArray[np.bool_],
        ended: NDArray[np.intp],
        deciding: NDArray[Any],
        last: tuple[Array, ...],
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
    ) -> StepResult:
        rows = np.concatenate((ended, deciding))  # an agent's id is the index of its instance
        rewards, all_decide = tick.rewards[rows], len(deciding) == self.num_envs
        if all_decide:
            rewards[ended + len(ended)] = 0.0
        finished, self._episode_ids = self._episode_ids, self._episode_ids + over
        now = slice(None) if all_decide else deciding
        steps = AgentSteps(
            agent_ids=rows,
            env_ids=rows.astype(np.int32),
            episode_ids=np.concatenate((finished[ended], self._episode_ids[now])),
            observations=tuple(
                [np.concatenate((final, next_[now])) for final, next_ in zip(last, observations, strict=True)]
            ),
            rewards=rewards,
            ended=len(ended),
            terminated=tick.terminated[ended],
            truncated=tick.truncated[ended],
            action_masks=masks[deciding] if masks is not None else None,
        )
        # In SAME_STEP mode, the other infos belong to the next episode's first step.
        infos = tick.infos.get("final_info") if self._mode is AutoresetMode.SAME_STEP else tick.infos
        return StepResult({self._behavior: steps}, statistics=self._episode_infos.of_vector(infos, ended))

    def _check_restarted(self, tick: VectorTick, restarting: NDArray[np.bool_]) -> None:
        wrong = restarting & (tick.terminated | tick.truncated)
        if wrong.any():
            raise BrokenEnvironmentError(
                f"{self._name}: instance {int(np.flatnonzero(wrong)[0])} ended an episode in the step that "
                "should have reset it (autoreset mode NEXT_STEP); is metadata['autoreset_mode'] right?"
            )

    def _idle_actions(self) -> ActionBatch:
        """Return actions [n, …] that the environment will ignore."""
        spec = self._actions.spec
        return ActionBatch(
            np.zeros((self.num_envs, spec.continuous_size), np.float32),
            np.zeros((self.num_envs, len(spec.discrete_branches)), np.int32),
        )

    # The calls to the environments, and the checks of what they return.

    def _reset(self, which: NDArray[np.bool_] | None, seed: int | None = None) -> VectorTick:
        """Reset the instances in `which` [n] (None for all), with their parameters.

        Raises:
            BrokenEnvironmentError: if the environment raises, or returns values that do not fit its spaces.
        """
        options: dict[str, Any] = {} if which is None else {"reset_mask": which}
        if self._parameters is not None:
            instances = np.arange(self.num_envs) if which is None else np.flatnonzero(which)
            options |= self._draw(self._parameters, instances)
        try:
            result: Any = self._envs.reset(seed=seed, options=options or None)
        except Exception as error:
            raise_broken(error, self._name, "reset")
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[-1], Mapping):
            self._refuse("reset", 2, result)
        raw, infos = result
        mask = raw[MASK] if self._spaces.mask_observed else None
        rewards = np.zeros(self.num_envs, np.float32)
        return VectorTick(self._extract("reset", raw), rewards, _NOTHING, _NOTHING, infos, mask)

    def _step(self, actions: ActionBatch) -> VectorTick:
        """Step all instances.

        Raises:
            BrokenEnvironmentError: if the environment raises, or returns values that do not fit its spaces.
        """
        env_actions = self._actions.to_environment(actions)
        try:
            result: Any = self._envs.step(env_actions)
        except Exception as error:
            raise_broken(error, self._name, "step")
        if not isinstance(result, tuple) or len(result) != 5 or not isinstance(result[-1], Mapping):
            self._refuse("step", 5, result)
        raw, rewards, terminated, truncated, infos = result
        terminated = flags_column(terminated, "terminated", self.num_envs, self._instance)
        return VectorTick(
            self._extract("step", raw, spared=None if self._mode is AutoresetMode.SAME_STEP else terminated),
            rewards_column(rewards, self.num_envs, self._instance),
            terminated,
            flags_column(truncated, "truncated", self.num_envs, self._instance),
            infos,
            raw[MASK] if self._spaces.mask_observed else None,
        )

    def _final_observations(self, tick: VectorTick, ended: NDArray[np.intp]) -> tuple[Array, ...]:
        """Return the final observations in SAME_STEP mode as a batch, even if they come as an object array."""
        infos, spared = tick.infos, tick.terminated[ended]
        finals = infos.get("final_obs")
        if finals is None:
            raise BrokenEnvironmentError(
                f"{self._name}: its autoreset mode is SAME_STEP, but at an episode's end infos['final_obs'] is missing "
                f"(found: {', '.join(infos) or 'none'}); is metadata['autoreset_mode'] right?"
            )
        if not isinstance(finals, np.ndarray) or finals.dtype != object:
            return self._extract("step", take_rows(self._spaces.observation_space, finals, ended), ended, spared)
        chosen = [finals[i] for i in ended]
        if any(final is None for final in chosen):
            raise BrokenEnvironmentError(f"{self._name}: an instance ended its episode without infos['final_obs']")
        space = self._envs.single_observation_space
        batch = stack(space, chosen, "step()", lambda row: self._instance(None if row is None else int(ended[row])))
        return self._extract("step", batch, ended, spared)

    def _masks(self, tick: VectorTick, which: Masks | None) -> Masks | None:
        """Return masks [n, choices]. `which` [n] marks the instances that need an allowed choice; None means all.

        Raises:
            BrokenEnvironmentError: if a mask is invalid.
            StageError: if a mask appears although the spec has no masks.
        """
        informed, masks = tick.infos.get(MASK), self._spaces.masks
        if informed is None and not masks.masked:
            return None
        return masks.read(self.num_envs, tick.mask, informed, self._instance, tick.infos.get(f"_{MASK}"), which)

    def _refuse(self, call: str, values: int, result: Any) -> NoReturn:
        raise BrokenEnvironmentError(
            f"{self._name}: its {call}() returned {described(result)}; expected {values}, with a dict of infos last, "
            "as from a gymnasium.vector.VectorEnv"
        )

    def _extract(
        self, call: str, raw: Any, instances: NDArray[np.intp] | None = None, spared: Masks | None = None
    ) -> tuple[Array, ...]:
        count = self.num_envs if instances is None else len(instances)

        def who(row: int | None) -> str:
            return self._instance(row if row is None or instances is None else int(instances[row]))

        error: Exception | None = None
        columns: list[Array] = []
        try:
            for part in self._spaces.parts:  # a comprehension would be one more call in every step
                columns.append(part.extract(raw, who, spared))
                if columns[-1].shape != (count, *part.spec.shape):
                    break
            else:
                return tuple(columns)
        except (LookupError, TypeError, ValueError) as raised:
            error = raised
        space = batch_space(self._envs.single_observation_space, count)
        problem = observation_problem(space, raw, f"{call}()") or (
            f"an observation from {call}() is not in its space "
            f"{self._envs.single_observation_space}{f': {describe_fault(error)}' if error else ''}"
        )
        raise BrokenEnvironmentError(f"{self._name}: {problem}") from error

    def _instance(self, env_id: int | None) -> str:
        return self._name if env_id is None or self.num_envs == 1 else f"{self._name}, instance {env_id}"

    def _draw(self, parameters: EpisodeParameters, env_ids: NDArray[Any]) -> dict[str, Floats]:
        for name, values in parameters.draw(env_ids).items():
            column = self._drawn.setdefault(name, np.zeros(self.num_envs))
            column[env_ids] = values
        return {name: column.copy() for name, column in self._drawn.items()}


def _autoreset_mode(envs: Envs, name: str) -> AutoresetMode:
    if isinstance(envs, SingleEnvs):
        return AutoresetMode.SAME_STEP
    mode = (envs.metadata or {}).get("autoreset_mode")
    if mode is None:
        log.warning(
            "%s has no autoreset mode in metadata['autoreset_mode']; assuming NEXT_STEP, as Gymnasium does",
            name,
        )
        return AutoresetMode.NEXT_STEP
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise StageError(
            f"{name}: metadata['autoreset_mode'] is {mode!r}; expected a gymnasium.vector.AutoresetMode"
        ) from error
