"""Gymnasium environments as an environment group, whatever their vectorisation and autoreset mode.

The group drives one `gymnasium.vector.VectorEnv`. The three autoreset modes give the same rows
(https://farama.org/Vector-Autoreset-Mode):

- SAME_STEP: the tick in which an episode ends brings the ending row and the next episode's first row.
- DISABLED: the same; the group resets the instances itself, by the `reset_mask` option.
- NEXT_STEP: the tick brings the ending row only, and the next tick the first row. In between, the
  environment takes an action for the instance and ignores it; so nobody is asked for one, and no transition
  is made of it.

Where the vector environment comes from is in `vectorising`, how spaces become columns in `observations` and `actions`.
All four need gymnasium; `factory` imports them only when it has to.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from config import ObservationSettings
from queues.messages import Array
from queues.specs import BehaviorSpec
from stages.environment.actions import action_mapping, action_masks
from stages.environment.observations import observation_parts, take_rows
from stages.environment.parameters import EpisodeParameters, Floats
from stages.environment.protocol import ActionBatch, AgentSteps, StepResult
from stages.environment.vectorising import TellingEnv
from stages.errors import BrokenEnvironmentError, StageError

log = logging.getLogger(__name__)

_NOTHING = np.empty(0, np.bool_)
_FLOAT32 = np.dtype(np.float32)  # cheaper than the type in a call


class _Tick(NamedTuple):
    """What one step of the vector environment gave, in our types; arrays of our own."""

    observations: tuple[Array, ...]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Mapping[str, Any]


class GymnasiumGroup:
    """A vector environment as an EnvironmentGroup: one agent an instance, one behaviour.

    The agent id is the instance's index. The spec is known after the first reset, because only its infos tell
    whether there are action masks (`infos["action_mask"]`, as Taxi gives them).

    Args:
        envs: the vector environment, in any autoreset mode; the group closes it.
        behavior: the behaviour id of all agents.
        name: what messages call the environment.
        observations: what its observations are to be taken for, by name, where their spaces do not tell.

    Raises:
        StageError: if a space is not supported, the settings do not fit it, or the autoreset mode is none.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        behavior: str,
        name: str,
        observations: Mapping[str, ObservationSettings] | None = None,
    ) -> None:
        self.num_envs: int = envs.num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}
        self._envs = envs
        self._behavior = behavior
        self._name = name
        self._closed = False
        try:
            self._mode = _autoreset_mode(envs, name)
            self._parts = observation_parts(envs.single_observation_space, name, observations)
            self._actions = action_mapping(envs.single_action_space, envs.num_envs, name)
        except StageError:
            self.close()
            raise
        self._branch_starts = np.cumsum([0, *self._actions.spec.discrete_branches])[:-1]
        self._agent_ids = np.arange(self.num_envs, dtype=np.int64)
        self._env_ids = np.arange(self.num_envs, dtype=np.int32)
        self._episode_ids = np.full(self.num_envs, -1, dtype=np.int64)
        self._masked = False
        self._parameters: EpisodeParameters | None = None
        """What the vector environment is told when it is reset; None where each single one is, or there is nothing."""
        self._told: dict[str, Floats] = {}
        self._restarting: NDArray[np.bool_] | None = None
        """[n] NEXT_STEP only: the instances that the next step resets; None for none."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Tell environments the parameters of each episode, as options of `reset`.

        Single environments get numbers, whoever resets them. A vector environment of its own making gets arrays [n]
        when the group resets it: at each episode's end if its autoreset mode is DISABLED (those of the instances that
        are not reset are what they were told before), else only when all begin anew. `AsyncVectorEnv` gets nothing.
        """
        envs = self._envs.unwrapped
        if isinstance(envs, SyncVectorEnv):
            envs.envs = [TellingEnv(env, partial(parameters.options, i)) for i, env in enumerate(envs.envs)]
            return
        if isinstance(envs, AsyncVectorEnv):
            log.warning(
                "environment_parameters: %s runs in processes of its own (AsyncVectorEnv), which can't be told, so "
                "they have no effect; use vectorization_mode: sync (actors are processes already)",
                self._name,
            )
            return
        self._parameters = parameters
        if self._mode is not AutoresetMode.DISABLED:
            log.warning(
                "environment_parameters: %s starts episodes by itself (autoreset mode %s), so it is told only when all "
                "instances begin anew, as with a lesson's require_reset: true; with autoreset mode DISABLED, or as "
                "single environments, it is told at each episode",
                *(self._name, self._mode.name),
            )

    def reset(self, seed: int | None = None) -> StepResult:
        """Start all instances anew.

        Args:
            seed: instance i is seeded with seed + i, or as the vectorised implementation does it; None leaves
                randomness as it is.

        Raises:
            BrokenEnvironmentError: if the environment raises, or gives what its spaces do not promise.
        """
        raw, infos = self._reset(None, None if seed is None else int(seed))
        observations = self._extract("reset", raw)
        for observation, part in zip(observations, self._parts, strict=True):
            if observation.shape != (self.num_envs, *part.spec.shape):
                raise BrokenEnvironmentError(
                    f"{self._name}: reset() gave observations of shape {observation.shape} in all, expected "
                    f"{(self.num_envs, *part.spec.shape)} by its observation space"
                )
        if not self.behavior_specs:
            self._masked = self._actions.maskable and "action_mask" in infos
            self.behavior_specs = {self._behavior: self._spec()}
        # With a seed all that follows is determined by it, the numbers of episodes too.
        self._episode_ids = self._episode_ids + 1 if seed is None else np.zeros(self.num_envs, np.int64)
        self._restarting = None
        return self._all_decide(observations, np.zeros(self.num_envs, np.float32), infos)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all instances by one tick.

        Raises:
            BrokenEnvironmentError: if the environment raises, or breaks the rules of its autoreset mode.
        """
        restarting = self._restarting
        batch = actions[self._behavior]
        tick = self._advance(batch if restarting is None else self._spread(batch, ~restarting))
        if restarting is not None:
            self._restarting = None
            self._check_restarted(tick, restarting)
            tick.rewards[restarting] = 0.0
        if np.count_nonzero(tick.terminated) or np.count_nonzero(tick.truncated):
            return self._some_end(tick)
        return self._all_decide(tick.observations, tick.rewards, tick.infos)

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """One instance as an RGB picture [height, width, 3].

        Raises:
            StageError: if the environment was not made with `render_mode: rgb_array`.
            BrokenEnvironmentError: if rendering fails.
        """
        if self._envs.render_mode != "rgb_array":
            raise StageError(
                f"{self._name}: it was made with render_mode {self._envs.render_mode!r}; to get pictures, "
                "make it with options: {render_mode: rgb_array}"
            )
        try:
            if isinstance(self._envs, SyncVectorEnv):
                return np.asarray(self._envs.envs[env_id].render(), np.uint8)
            frames = self._envs.render()
            assert frames is not None, "no frames"
            return np.asarray(frames[env_id], np.uint8)
        except Exception as error:
            raise self._broken("render", error) from error

    def close(self) -> None:
        """Close the environment; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        try:
            self._envs.close()
        except Exception as error:
            raise self._broken("close", error) from error

    def _advance(self, actions: ActionBatch) -> _Tick:
        if len(actions.continuous) != self.num_envs or len(actions.discrete) != self.num_envs:
            raise StageError(
                f"{self._name}: got {len(actions.continuous)} continuous and {len(actions.discrete)} "
                f"discrete actions for {self.num_envs} instances"
            )
        given = self._actions.to_environment(actions)
        try:
            raw, rewards, terminated, truncated, infos = self._envs.step(given)
        except Exception as error:
            raise self._broken("step", error) from error
        tick = _Tick(
            self._extract("step", raw),
            np.asarray(rewards).astype(_FLOAT32),  # a copy, also where the dtype is right
            np.asarray(terminated, np.bool_),
            np.asarray(truncated, np.bool_),
            infos,
        )
        if not tick.rewards.shape == tick.terminated.shape == tick.truncated.shape == (self.num_envs,):
            raise BrokenEnvironmentError(
                f"{self._name}: step() gave rewards of shape {tick.rewards.shape}, terminated "
                f"{tick.terminated.shape}, truncated {tick.truncated.shape}; expected ({self.num_envs},) "
                "of each"
            )
        return tick

    def _all_decide(self, observations: tuple[Array, ...], rewards: NDArray[np.float32], infos: Any) -> StepResult:
        """The common tick: no row is an ending, nothing is moved. The id arrays stay the same objects."""
        masks = self._masks(infos, None) if self._masked else None
        return StepResult(
            {
                self._behavior: AgentSteps(
                    self._agent_ids,
                    self._env_ids,
                    self._episode_ids,
                    observations,
                    rewards,
                    0,
                    _NOTHING,
                    _NOTHING,
                    masks,
                )
            }
        )

    def _some_end(self, tick: _Tick) -> StepResult:
        over = tick.terminated | tick.truncated
        ended = np.flatnonzero(over)
        deciding = self._agent_ids
        observations, infos = tick.observations, tick.infos
        last = tuple(observation[ended] for observation in observations)
        masks = None
        if self._mode is AutoresetMode.SAME_STEP:
            last = self._extract("step", self._final_observations(infos, ended))
        elif self._mode is AutoresetMode.DISABLED:
            raw, new_infos = self._reset(over)
            for observation, first in zip(observations, self._extract("reset", raw), strict=True):
                observation[ended] = first[ended]
            if self._masked:
                masks = self._masks(infos, ~over)
                masks[ended] = self._masks(new_infos, over)[ended]
        elif len(ended) < self.num_envs:
            deciding = np.flatnonzero(~over)
            self._restarting = over
        else:  # nobody is left to decide: restart at once, so that no tick is without a decision
            again = self._advance(self._idle_actions())
            self._check_restarted(again, over)
            observations, infos = again.observations, again.infos
        if self._masked and masks is None:
            masks = self._masks(infos, None if deciding is self._agent_ids else ~over)
        return self._rows(tick, over, ended, deciding, last, observations, masks)

    def _rows(
        self,
        tick: _Tick,
        over: NDArray[np.bool_],
        ended: NDArray[np.intp],
        deciding: NDArray[Any],
        last: tuple[Array, ...],
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
    ) -> StepResult:
        """Put the ending rows before the rows of those who decide."""
        rows = np.concatenate((ended, deciding))
        rewards = tick.rewards[rows]
        rewards[len(ended) :][over[deciding]] = 0.0
        finished, self._episode_ids = self._episode_ids, self._episode_ids + over
        steps = AgentSteps(
            agent_ids=self._agent_ids[rows],
            env_ids=self._env_ids[rows],
            episode_ids=np.concatenate((finished[ended], self._episode_ids[deciding])),
            observations=tuple(np.concatenate((e, o[deciding])) for e, o in zip(last, observations, strict=True)),
            rewards=rewards,
            ended=len(ended),
            terminated=tick.terminated[ended],
            truncated=tick.truncated[ended],
            action_masks=masks[deciding] if masks is not None else None,
        )
        return StepResult({self._behavior: steps})

    def _final_observations(self, infos: Mapping[str, Any], ended: NDArray[np.intp]) -> Any:
        """The endings' observations in SAME_STEP mode, batched; they come so, or as an array of objects."""
        finals = infos.get("final_obs")
        if finals is None:
            raise BrokenEnvironmentError(
                f"{self._name}: its autoreset mode is SAME_STEP, but at an episode's end "
                f"infos['final_obs'] is missing (there are: {', '.join(infos) or 'none'}); is "
                "metadata['autoreset_mode'] right?"
            )
        space = self._envs.single_observation_space
        if not isinstance(finals, np.ndarray) or finals.dtype != object:
            return take_rows(space, finals, ended)
        chosen = [finals[i] for i in ended]
        if any(final is None for final in chosen):
            raise BrokenEnvironmentError(f"{self._name}: an instance ended without its infos['final_obs']")
        return concatenate(space, chosen, cast("Array", create_empty_array(space, len(chosen))))

    def _masks(self, infos: Mapping[str, Any], which: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Masks [n, choices]; `which` [n] says where they have to make sense, None for everywhere."""
        width = self._actions.spec.mask_size
        try:
            masks = action_masks(infos, self.num_envs, width)
        except (TypeError, ValueError) as error:
            raise BrokenEnvironmentError(
                f"{self._name}: infos['action_mask'] must have {width} entries per instance, one per choice ({error})"
            ) from error
        stuck = np.flatnonzero(~np.logical_or.reduceat(masks, self._branch_starts, axis=1).all(axis=1))
        stuck = stuck if which is None else stuck[which[stuck]]
        if len(stuck):
            raise BrokenEnvironmentError(f"{self._name}: the action mask of instance {stuck[0]} forbids every choice")
        return masks

    def _extract(self, call: str, raw: Any) -> tuple[Array, ...]:
        try:
            return tuple([part.extract(raw) for part in self._parts])
        except (LookupError, TypeError, ValueError) as error:
            raise BrokenEnvironmentError(
                f"{self._name}: an observation from {call}() does not fit its space "
                f"{self._envs.single_observation_space}: {_told(error)}"
            ) from error

    def _reset(self, which: NDArray[np.bool_] | None, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]:
        """Reset instances [n], None for all, with their parameters."""
        options: dict[str, Any] = {} if which is None else {"reset_mask": which}
        if self._parameters is not None:
            options |= self._tell(self._parameters, self._env_ids if which is None else np.flatnonzero(which))
        try:
            raw, infos = self._envs.reset(seed=seed, options=options or None)
        except Exception as error:
            raise self._broken("reset", error) from error
        return raw, infos

    def _tell(self, parameters: EpisodeParameters, env_ids: NDArray[Any]) -> dict[str, Floats]:
        for name, values in parameters.draw(env_ids).items():
            column = self._told.setdefault(name, np.zeros(self.num_envs))
            column[env_ids] = values
        return {name: column.copy() for name, column in self._told.items()}

    def _check_restarted(self, tick: _Tick, restarting: NDArray[np.bool_]) -> None:
        wrong = restarting & (tick.terminated | tick.truncated)
        if wrong.any():
            raise BrokenEnvironmentError(
                f"{self._name}: instance {int(np.flatnonzero(wrong)[0])} ended an episode in the step that "
                "should have reset it (autoreset mode NEXT_STEP); is metadata['autoreset_mode'] right?"
            )

    def _idle_actions(self) -> ActionBatch:
        """Actions [n, …] that will be ignored."""
        spec = self._actions.spec
        return ActionBatch(
            np.zeros((self.num_envs, spec.continuous_size), np.float32),
            np.zeros((self.num_envs, len(spec.discrete_branches)), np.int32),
        )

    def _spread(self, actions: ActionBatch, deciding: NDArray[np.bool_]) -> ActionBatch:
        """Actions [n, …] from those of the deciding instances."""
        spread = self._idle_actions()
        spread.continuous[deciding] = actions.continuous
        spread.discrete[deciding] = actions.discrete
        return spread

    def _spec(self) -> BehaviorSpec:
        actions = replace(self._actions.spec, masked=self._masked)
        return BehaviorSpec(self._behavior, tuple(part.spec for part in self._parts), actions)

    def _broken(self, call: str, error: Exception) -> BrokenEnvironmentError:
        return BrokenEnvironmentError(f"{self._name}: its {call}() raised {_told(error)}")


def _autoreset_mode(envs: VectorEnv[Any, Any, Any], name: str) -> AutoresetMode:
    mode = (envs.metadata or {}).get("autoreset_mode")
    if mode is None:
        log.warning(
            "%s does not say its autoreset mode in metadata['autoreset_mode']; it is taken for NEXT_STEP, as "
            "Gymnasium itself does",
            name,
        )
        return AutoresetMode.NEXT_STEP
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise StageError(
            f"{name}: metadata['autoreset_mode'] is {mode!r}; expected a gymnasium.vector.AutoresetMode"
        ) from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
