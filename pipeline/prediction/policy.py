"""Loaded policies, which map the environment's observations to its actions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from headrace.pipeline.common.errors import PredictError, RunError
from headrace.pipeline.policies.league_members import is_member, league_of, mixture_in
from headrace.pipeline.policies.model_files import (
    BEST,
    LAST,
    Model,
    check_decides,
    find_model,
    is_choice,
    is_onnx,
    read_model,
)
from headrace.pipeline.prediction.judgement import ActionDistribution, Columns, critic_of, distribution_of
from headrace.pipeline.prediction.observation_reader import ObservationReader, read_masks, read_starts, read_state
from headrace.pipeline.prediction.policy_spaces import own_terms
from headrace.queues.messages import Floats
from headrace.queues.specs import STEP_MUL, behavior_name
from headrace.stages.environments.spaces.masks import MASK, MaskReader
from headrace.stages.errors import StageError, type_of
from headrace.stages.policy.design import ACTION_HEADS
from headrace.stages.policy.memories import nothing_recalled
from headrace.stages.policy.protocol import ActingPolicy, Recall


class Prediction(NamedTuple):
    """The result of `predict`."""

    action: Any
    """The action in the environment's own space; batched if the observations were."""
    state: Floats | None
    """The memory to pass along with the episode's next observation; None for a policy without memory."""


class LoadedPolicy:
    """A policy returned by `load_policy`. It is stateless: the caller passes its memory in and gets it back.

    Attributes:
        behavior: the behaviour's name.
        step: number of steps for which the policy was trained; 0 if its file does not state it.
        file: the policy's file.
        observation_space: description of the space of `predict`'s observations
            (`stages/environments/spaces/own_space.py`).
        action_space: description of the space of `predict`'s actions.
        state_size: size of the policy's memory; 0 if it has none.
        action_repeat: number of environment steps for which each action is held; the maximum if the policy chooses the
            number; None if the file is too old to state it.
    """

    def __init__(self, model: Model, seed: int | None) -> None:
        spec, policy, file, step = model.spec, model.make_policy(), model.path, model.update.step
        check_decides(file, policy, spec)
        terms = own_terms(spec, str(file))
        self._model = model
        self.behavior = spec.name
        self.step = max(0, step)
        self.file = file
        self.observation_space: Any = terms.observation_space  # Any: the caller knows the concrete space
        self.action_space: Any = terms.action_space
        self.state_size = policy.memory_size + policy.previous_action_size
        self.action_repeat = terms.held
        self._policy = policy
        self._reader = ObservationReader(terms)
        self._mask_reader = MaskReader.of_policy(spec)
        self._masked_beside = MASK not in getattr(self.observation_space, "parts", {MASK: None})
        self._terms = terms
        self._random = np.random.default_rng(seed)
        first = nothing_recalled(policy, spec.actions, 1)
        self._first = None if first is None else np.concatenate((first.memories, first.previous_actions), axis=1)

    def __repr__(self) -> str:
        """Return the behaviour, step and file as text."""
        return f"LoadedPolicy({self.behavior!r}, step {self.step}, {self.file})"

    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        state: Any = None,
        mask: Any = None,
        episode_start: Any = None,
    ) -> Prediction:
        """Return the action for an observation, or the actions for a batch, and the new memory.

            action, state = policy.predict(obs)
            action, state = policy.predict(obs, state=state)  # with a memory: the next observation of the episode

        Args:
            obs: an observation of the environment, or a batch from a vector environment; the shape decides which. Pass
                the environment's values unchanged: normalising and one-hot encoding happen here.
            deterministic: True to act with the mean or the most likely choice instead of a sample.
            state: the state returned for the previous observation; None if the episode, or every episode of a batch,
                starts with this observation.
            mask: the allowed choices: `info["action_mask"]`, in any form that environments use
                (`stages/environments/spaces/masks.py`); an observation may contain the mask under the key
                `action_mask`.
            episode_start: for a batch, True for each observation that begins an episode; the state in these rows is
                ignored. If the environment resets itself, this is `terminated | truncated` from the last step.

        Raises:
            PredictError: if an argument does not fit the policy; the message names the argument and what was expected.
        """
        if not isinstance(deterministic, bool | np.bool_):
            raise PredictError(
                f"deterministic: expected True or False, got {type_of(deterministic)}; pass the other arguments by "
                "name: predict(obs, state=…, mask=…)"
            )
        columns, single = self._reader.read(obs)
        n = len(columns[0])
        masks = self._masks(mask, obs, n, single)
        recall = self._recall(state, episode_start, n, single)
        try:
            decision = self._policy.act(columns, masks, self._random, bool(deterministic), recall)
        except StageError as error:
            raise PredictError(f"{self.file}: the policy can't choose actions: {error}") from error
        action = self._terms.own_actions(decision.actions)
        if self._terms.chooses_held:
            action = {"action": action, STEP_MUL: decision.actions.discrete[:, -1] + 1}
        after = decision.recall
        if after is None:
            return Prediction(_first_of(action) if single else action, None)
        memory = np.concatenate((after.memories, after.previous_actions), axis=1)
        return Prediction(_first_of(action), memory[0]) if single else Prediction(action, memory)

    def distribution(self, obs: Any, state: Any = None, mask: Any = None) -> ActionDistribution:
        """Return the action distributions for an observation or a batch.

            policy.distribution(obs).probabilities[0]  # for each choice of the first (or only) discrete action

        Args:
            obs: as for `predict`.
            state: as for `predict`.
            mask: as for `predict`.

        Raises:
            PredictError: if an argument does not fit, or the file is an `.onnx` model, which gives only actions.
        """
        columns, single = self._reader.read(obs)
        n, policy = len(columns[0]), self._with_heads
        try:
            masks, recall = self._masks(mask, obs, n, single), self._recall(state, None, n, single)
            heads = policy.act(columns, masks, self._random, True, recall).columns[ACTION_HEADS]
        except StageError as error:
            raise PredictError(f"{self.file}: the policy can't choose actions: {error}") from error
        found = distribution_of(self._model.spec, heads, masks, self._model.design.squashed)
        return found.first() if single else found

    def value(self, obs: Any) -> Any:
        """Return the critic's value for an observation, or values [n] for a batch.

        The value is the trained policy's expected return after the observation, discounted as in training; with SAC,
        the value includes the entropy bonus. With S reward signals, the last axis has S values, in the YAML's order.

        Raises:
            PredictError: if the observation does not fit, or the file has no critic that values a single state. That is
                the case for `.onnx` models, trainers without a critic, POCA (which values groups) and policies with a
                memory.
        """
        columns, single = self._reader.read(obs)
        found = self._critic(columns)
        found = found[:, 0] if found.shape[1] == 1 else found
        return found[0] if single else found

    @cached_property
    def _with_heads(self) -> ActingPolicy:
        if is_onnx(self.file):
            raise PredictError(f"{self.file} gives only actions; its .pt file also gives distributions")
        design = replace(self._model.design, extra_columns=(ACTION_HEADS,))
        return replace(self._model, design=design).make_policy()

    @cached_property
    def _critic(self) -> Callable[[Columns], Floats]:
        return critic_of(self.file)

    def _masks(self, mask: Any, obs: Any, n: int, single: bool) -> NDArray[np.bool_] | None:
        if mask is None and self._masked_beside and isinstance(obs, Mapping):
            mask = obs.get(MASK)
        return None if mask is None else read_masks(mask, self._mask_reader, n, single)

    def _recall(self, state: Any, episode_start: Any, n: int, single: bool) -> Recall | None:
        if self._first is None:
            if state is not None:
                raise PredictError("state: this policy has no memory, so the state must be None")
            return None
        if state is None:
            memory = self._first.repeat(n, axis=0)
        else:
            memory = read_state(state, self.state_size, n, single)
            if episode_start is not None:
                begins = read_starts(episode_start, n, single)
                memory = np.where(begins[:, None], self._first, memory)
        size = self._policy.memory_size
        return Recall(memory[:, :size], memory[:, size:])


class LoadedMixture:
    """The result of `load_policy(run, mixture=True)`: several policies, of which one plays at a time.

    Attributes:
        behavior: the name of the league's behaviour.
        members: the policies in the mixture.
        probabilities: the probability of drawing each member.
        playing: the policy that plays now.
    """

    def __init__(
        self, behavior: str, members: list[LoadedPolicy], probabilities: list[float], seed: int | None
    ) -> None:
        self.behavior = behavior
        self.members = members
        self.probabilities = probabilities
        self._random = np.random.default_rng(seed)
        self.playing = self.reset()

    def __repr__(self) -> str:
        """Return the behaviour and the number of members as text."""
        return f"LoadedMixture({self.behavior!r}, {len(self.members)} members)"

    def reset(self) -> LoadedPolicy:
        """Draw the member that plays next, and return it. Call this at the start of each episode."""
        self.playing = self.members[self._random.choice(len(self.members), p=self.probabilities)]
        return self.playing

    def predict(self, *args: Any, **kwargs: Any) -> Prediction:
        """Return the playing member's actions; see `LoadedPolicy.predict`."""
        return self.playing.predict(*args, **kwargs)

    def distribution(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error, because a mixture's action distribution depends on how often each member reaches a state.

        Raises:
            PredictError: always.
        """
        raise PredictError(
            f"{self!r} has no distribution for a single state, because the distribution depends on how often each "
            "member reaches that state. Use the member that plays (mixture.playing.distribution(…)), or "
            "headrace.nash_conv, which weights the members accordingly"
        )


def _first_of(action: Any) -> Any:
    """Return the only action in a batch of one."""
    if isinstance(action, dict):
        return {key: _first_of(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple([_first_of(part) for part in action])
    return action[0]


@overload
def load_policy(
    run_or_file: str | os.PathLike[str],
    behavior: str | None = None,
    checkpoint: str | int | None = None,
    seed: int | None = None,
    mixture: Literal[False] = False,
) -> LoadedPolicy: ...
@overload
def load_policy(
    run_or_file: str | os.PathLike[str],
    behavior: str | None = None,
    *,
    seed: int | None = None,
    mixture: Literal[True],
) -> LoadedMixture: ...
def load_policy(
    run_or_file: str | os.PathLike[str],
    behavior: str | None = None,
    checkpoint: str | int | None = None,
    seed: int | None = None,
    mixture: bool = False,
) -> LoadedPolicy | LoadedMixture:
    """Load a trained policy to get actions from it.

        policy = load_policy("results/cartpole")
        action, state = policy.predict(obs)

    Args:
        run_or_file: the folder of a run, or of a behaviour in it, or a `.pt` or `.onnx` file. An `.onnx` file needs
            neither torch nor an environment library.
        behavior: the behaviour to load from a run with several; for a league, the learner, by default the first.
        checkpoint: for a run: "best" (by evaluations), "last", a step, or a member of a league's pool, such as
            "member-3"; None for the last.
        seed: seed for sampling in `predict(…, deterministic=False)`, except for an `.onnx` file, which samples by
            itself; for a mixture, also for drawing members.
        mixture: for a run with a league, True to load the mixture of its pool's members instead of one policy.

    Raises:
        RunError: if there is no policy or it can't be read; the message lists what exists.
    """
    if not isinstance(run_or_file, str | os.PathLike):
        raise RunError(
            f"load_policy: expected the folder of a run, or a file, got {type_of(run_or_file)}; for the result of "
            "run(), pass its .folder"
        )
    reference = os.fspath(run_or_file)
    if mixture:
        if checkpoint is not None:
            raise RunError(
                "checkpoint chooses one policy, but mixture=True uses a league's entire pool; omit one of the two"
            )
        return _load_mixture(Path(reference), behavior, seed)
    if checkpoint is not None:
        if not is_choice(str(checkpoint)):
            expected = f"{BEST!r}, {LAST!r}, a step, or a member of a league's pool such as 'member-3'"
            raise RunError(f"checkpoint: expected {expected}, got {checkpoint!r}")
        reference = f"{reference}@{checkpoint}"
    name = None if behavior is None else behavior_name(behavior)
    file = find_model(reference, name)
    model = read_model(file)
    if name not in (None, model.spec.name) and name != league_of(_run_folder(file.path), model.spec.name):
        raise RunError(f"{file.path} is a policy for {model.spec.name}, not for {name}")
    return LoadedPolicy(model, seed)


def _run_folder(file: Path) -> Path:
    return file.parent.parent.parent if is_member(file) else file.parent.parent


def _load_mixture(path: Path, behavior: str | None, seed: int | None) -> LoadedMixture:
    of, mixed = mixture_in(path, behavior)
    members = [load_policy(reference, seed=seed) for reference, _ in mixed]
    return LoadedMixture(of, members, [share for _, share in mixed], seed)
