"""Gymnasium environments as an environment group, with any vectorisation and autoreset mode.

The group drives one `gymnasium.vector.VectorEnv`. All three autoreset modes produce the same rows
(https://farama.org/Vector-Autoreset-Mode):

- SAME_STEP: the tick in which an episode ends contains the ending row and the next episode's first row.
- DISABLED: the same, but the group itself resets the instances, through the `reset_mask` option.
- NEXT_STEP: the tick contains only the ending row, and the next tick contains the first row. In between, the
  environment ignores the instance's action, so the group requests no decision and produces no transition.

`vectorising` makes the vector environment, `checked_vector` checks its return values, and `stages/environments/spaces/`
converts spaces to columns. All of them need gymnasium; `making` imports them when it makes a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from headrace.config import ObservationSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.episode_infos import EpisodeInfos
from headrace.stages.environments.gymnasium.checked_vector import CheckedVector, VectorReset, VectorTick
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import AgentSteps, StepResult
from headrace.stages.errors import BrokenEnvironmentError

_NOTHING = np.empty(0, np.bool_)


class GymnasiumGroup:
    """A vector environment as an EnvironmentGroup: one agent per instance, one behaviour.

    The agent id is the instance's index. The spec is known only after the first reset. If the observation space has no
    action masks, the reset's infos show whether masks exist (`infos["action_mask"]`, as in Taxi).

    Args:
        envs: the vector environment, in any autoreset mode. This group closes it.
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
        envs: VectorEnv[Any, Any, Any],
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
        self._envs = CheckedVector(envs, name, observations, exact, clips)
        self._behavior = behavior
        self._name = name
        self._episode_infos = EpisodeInfos(info_keys, name)
        self._agent_ids = np.arange(self.num_envs, dtype=np.int64)
        self._env_ids = np.arange(self.num_envs, dtype=np.int32)
        self._episode_ids = np.full(self.num_envs, -1, dtype=np.int64)
        self._restarting: NDArray[np.bool_] | None = None
        """[n] in NEXT_STEP mode, true for the instances that the next step resets. None if it resets no instance."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Pass each episode's parameters to the environments, as options of `reset`; see `CheckedVector`."""
        self._envs.set_parameters(parameters)

    def reset(self, seed: int | None = None) -> StepResult:
        """Reset all instances.

        Args:
            seed: instance i is seeded with seed + i, unless a vectorised implementation seeds its instances itself;
                None to continue the random sequence.

        Raises:
            BrokenEnvironmentError: if the environment raises, or returns values that do not fit its spaces.
        """
        first, spaces = self._envs.reset(None, None if seed is None else int(seed)), self._envs.spaces
        if not self.behavior_specs:
            spaces.masks.expect(first.infos)
            self.behavior_specs = {self._behavior: spaces.spec(self._behavior)}
        # A seed restarts the random sequence, so a resumed run ends in the state of an uninterrupted one
        # (docs/decisions/050).
        self._episode_ids = self._episode_ids + 1 if seed is None else np.zeros(self.num_envs, np.int64)
        self._restarting = None
        return self._all_decide(first, np.zeros(self.num_envs, np.float32))

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all instances by one tick.

        Raises:
            BrokenEnvironmentError: if the environment raises, or breaks the rules of its autoreset mode.
        """
        restarting = self._restarting
        batch = actions[self._behavior]
        tick = self._envs.step(batch if restarting is None else self._spread(batch, ~restarting))
        if restarting is not None:
            self._restarting = None
            self._check_restarted(tick, restarting)
            tick.rewards[restarting] = 0.0
        if np.count_nonzero(tick.terminated) or np.count_nonzero(tick.truncated):
            return self._some_end(tick)
        return self._all_decide(tick, tick.rewards)

    @property
    def single(self) -> Any:
        """The first single environment, with its wrappers; None if the implementation is vectorised."""
        return self._envs.single

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """Return an RGB image [height, width, 3] of one instance.

        Raises:
            StageError, BrokenEnvironmentError: in the same cases as `picture_of`.
        """
        return self._envs.render(env_id)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The environment's metadata, such as `render_fps`."""
        return self._envs.metadata

    def close(self) -> None:
        """Close the environment; closing twice is allowed."""
        self._envs.close()

    def _all_decide(self, seen: VectorTick | VectorReset, rewards: NDArray[np.float32]) -> StepResult:
        """Return the rows of a tick without endings. In this common case, the same id arrays are reused."""
        return StepResult(
            {
                self._behavior: AgentSteps(
                    self._agent_ids,
                    self._env_ids,
                    self._episode_ids,
                    seen.observations,
                    rewards,
                    0,
                    _NOTHING,
                    _NOTHING,
                    self._envs.masks(seen, None),
                )
            }
        )

    def _some_end(self, tick: VectorTick) -> StepResult:
        over = tick.terminated | tick.truncated
        ended = over.nonzero()[0]
        deciding, observations = self._agent_ids, tick.observations
        same_step = self._envs.mode is AutoresetMode.SAME_STEP
        last = self._envs.final_observations(tick.infos, ended) if same_step else _rows_of(observations, ended)
        if same_step:
            masks = self._envs.masks(tick, None)
        elif self._envs.mode is AutoresetMode.DISABLED:
            masks = self._envs.masks(tick, ~over)  # before a reset, which may overwrite the arrays
            new = self._envs.reset(over)
            for observation, first in zip(observations, new.observations, strict=True):
                observation[ended] = first[ended]
            first_masks = self._envs.masks(new, over)
            if masks is not None and first_masks is not None:
                masks[ended] = first_masks[ended]
        elif len(ended) < self.num_envs:
            deciding = np.flatnonzero(~over)
            self._restarting = over
            masks = self._envs.masks(tick, ~over)
        else:  # no instance decides: restart now, so each tick has a decision
            again = self._envs.step(self._idle_actions())
            self._check_restarted(again, over)
            observations, masks = again.observations, self._envs.masks(again, None)
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

        def joined(last: Array, now: Array) -> Array:
            return np.concatenate((last, now if all_decide else now[deciding]))

        steps = AgentSteps(
            agent_ids=rows,
            env_ids=rows.astype(np.int32),
            episode_ids=joined(finished[ended], self._episode_ids),
            observations=tuple(map(joined, last, observations)),
            rewards=rewards,
            ended=len(ended),
            terminated=tick.terminated[ended],
            truncated=tick.truncated[ended],
            action_masks=masks[deciding] if masks is not None else None,
        )
        # In SAME_STEP mode, the other infos belong to the next episode's first step.
        infos = tick.infos.get("final_info") if self._envs.mode is AutoresetMode.SAME_STEP else tick.infos
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
        spec = self._envs.actions.spec
        return ActionBatch(
            np.zeros((self.num_envs, spec.continuous_size), np.float32),
            np.zeros((self.num_envs, len(spec.discrete_branches)), np.int32),
        )

    def _spread(self, actions: ActionBatch, deciding: NDArray[np.bool_]) -> ActionBatch:
        """Scatter the deciding instances' actions into actions [n, …] for all instances."""
        spread = self._idle_actions()
        spread.continuous[deciding] = actions.continuous
        spread.discrete[deciding] = actions.discrete
        return spread


def _rows_of(columns: tuple[Array, ...], rows: NDArray[np.intp]) -> tuple[Array, ...]:
    return tuple([column[rows] for column in columns])
