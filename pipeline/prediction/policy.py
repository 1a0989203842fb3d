"""Loaded policies, which map the environment's observations to its actions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from headrace.config.errors import suggest
from headrace.pipeline.common.errors import PredictError, RunError
from headrace.pipeline.policies.export import Export, is_export, read_export
from headrace.pipeline.policies.model_files import (
    Model,
    check_decides,
    find_model,
    is_onnx,
    league_of,
    mixture_in,
    read_model,
)
from headrace.pipeline.prediction.policy_spaces import PolicySpaces, policy_spaces
from headrace.queues.messages import Array, Floats
from headrace.queues.specs import STEP_MUL, BehaviorSpec, behavior_name
from headrace.stages.environments.spaces.masks import MASK, MaskError, MaskReader
from headrace.stages.environments.spaces.own_space import (
    BoxSpace,
    ChoiceSpace,
    ComposedSpace,
    Leaf,
    OwnSpace,
    SequenceSpace,
    leaves,
)
from headrace.stages.errors import StageError, type_of
from headrace.stages.league.pool import SUFFIX as MEMBER
from headrace.stages.policy.design import ACTION_HEADS, consecutive_slices, split_action_heads
from headrace.stages.policy.memories import nothing_recalled
from headrace.stages.policy.protocol import ActingPolicy, Recall

if TYPE_CHECKING:
    from headrace.stages.policy.network.layers import Inputs


Columns = tuple[Array, ...]
"""One array [n, *shape] for each observation of a behaviour, in a batch of n."""


@dataclass(frozen=True)
class ActionDistribution:
    """The action distributions for one observation, or for a batch of n; a batch's arrays have a leading axis n.

    Attributes:
        probabilities: [choices] for each branch of discrete actions; 0 for masked choices.
        means: [C] means of the Gaussians of continuous actions, in the policy's own units.
        deviations: [C] standard deviations of these Gaussians.
        squashed: True if the action is the tanh of the sample (SAC), scaled to the Box; otherwise it is a third of the
            sample, clipped to ±1 and scaled (in unbounded dimensions, the sample itself).
    """

    probabilities: tuple[Floats, ...]
    means: Floats
    deviations: Floats
    squashed: bool

    def first(self) -> ActionDistribution:
        """Return the distributions of a batch's first row, without the batch axis."""
        return ActionDistribution(
            tuple([branch[0] for branch in self.probabilities]), self.means[0], self.deviations[0], self.squashed
        )


def distribution_of(
    spec: BehaviorSpec, heads: Floats, masks: NDArray[np.bool_] | None, squashed: bool
) -> ActionDistribution:
    """Return the distributions for action head outputs [n, 2C + choices] (`design.action_heads_column`) and masks."""
    split = split_action_heads(spec, heads)
    probabilities = []
    for branch, logits in zip(consecutive_slices(spec.actions.discrete_branches), split.logits, strict=True):
        allowed = logits if masks is None else np.where(masks[:, branch], logits, -np.inf)
        powers = np.exp(allowed - allowed.max(axis=1, keepdims=True))
        probabilities.append(powers / powers.sum(axis=1, keepdims=True))
    return ActionDistribution(tuple(probabilities), split.means, np.exp(split.log_sigmas), squashed)


def critic_of(file: Path) -> Callable[[Columns], Floats]:
    """Return the critic in a file as a function from n observations to values [n, S] for S reward signals.

    Raises:
        PredictError: if the file has no critic that values a single state.
    """
    if not is_export(file) or file.suffix != ".pt":
        raise PredictError(
            f"{file} holds only a policy; to compute values, use a Headrace .pt file, which also contains the critic"
        )
    export = read_export(file)
    critic = _CRITICS.get(export.trainer_type)
    if critic is None or not export.learner:
        raise PredictError(
            f"{file} comes from a trainer ({export.trainer_type}) that has no state-value critic; "
            f"trainers with one are {', '.join(_CRITICS)}"
        )
    if export.design.memory_size:
        raise PredictError(f"{file}: its critic has its own memory, which policy files do not contain")
    import torch

    from headrace.stages.policy.network.layers import Inputs
    from headrace.stages.policy.network.torch_policy import encoded_as_seen, normalizer_of, one_thread
    from headrace.stages.policy.observations import ObservationLayout

    layout, normalizer = ObservationLayout(export.design.spec), normalizer_of(export.update.tensors())
    judge = critic(export, export.learner)

    def values(observations: Columns) -> Floats:
        encoded = encoded_as_seen(layout, normalizer, observations)
        with torch.inference_mode(), one_thread():
            computed: Floats = judge(Inputs.from_encoded(encoded)).numpy()
            return computed

    return values


def _state_critic(export: Export, learner: Mapping[str, Any]) -> Callable[[Inputs], Any]:
    """Return an actor-critic's state-value function V(s)."""
    from headrace.stages.policy.network.actor_critic import make_actor_critic

    weights, design = learner["weights"], export.design
    body = weights.get("body.0.weight")
    shared = len(body) == 1 if body is not None else not any(name.startswith("critic.") for name in weights)
    network = make_actor_critic(design, len(weights["value.bias"]), shared, np.random.default_rng(0))
    network.load(weights)
    return lambda inputs: network.evaluate(inputs)[0]


def _soft_critic(export: Export, learner: Mapping[str, Any]) -> Callable[[Inputs], Any]:
    """Return SAC's V(s) if learned, else a function for the lower of the most likely action's two Q values."""
    import torch

    from headrace.stages.policy.network.body import ActorNetwork
    from headrace.stages.policy.network.flat_parameters import FlatParameters
    from headrace.stages.trainer.sac import Critics

    weights, design = learner["networks"], export.design
    actions = design.spec.actions
    learned = "value.head.bias" in weights["critics"]
    if actions.discrete_branches and not learned:
        raise PredictError("sac with both continuous and discrete actions learns action values but no state values")
    signals = len(weights["critics"]["value.head.bias" if learned else "q1.head.bias"])
    critics, actor = FlatParameters(Critics(design, signals, learned)), FlatParameters(ActorNetwork(design))
    critics.load(weights["critics"])
    actor.load(weights["actor"])
    if learned:
        return critics.module.value

    def smaller(inputs: Inputs) -> Any:
        heads, _ = actor.module(inputs)
        likely = torch.tanh(heads[:, : actions.continuous_size])
        return torch.minimum(*(q(inputs, likely) for q in (critics.module.q1, critics.module.q2))).squeeze(2)

    return smaller


_CRITICS: Mapping[str, Callable[[Export, Mapping[str, Any]], Callable[[Inputs], Any]]] = {
    "ppo": _state_critic,
    "impala": _state_critic,
    "sac": _soft_critic,
}
"""Functions that make a value function from an export and its learner state, keyed by trainer type."""


class ObservationReader:
    """Reads observations in the environment's own space.

    Args:
        terms: the policy's spaces.
    """

    def __init__(self, terms: PolicySpaces) -> None:
        self._space = terms.observation_space
        self._extract = [part.extract for part in terms.parts]
        self._alone = self._space if isinstance(self._space, BoxSpace | ChoiceSpace) else None

    def read(self, value: Any) -> tuple[tuple[Array, ...], bool]:
        """Return the columns [n, …] for one observation or a batch, and True if it is one observation (n = 1).

        Raises:
            PredictError: if the value does not fit the space; the message gives the location and what was expected.
        """
        if self._alone is not None:
            batch, single = _batch_of(self._alone, value, "")
        else:
            batch, single = self._composed(value)

        def who(row: int | None) -> str:
            return "obs" if single or row is None else f"obs, row {row}"

        try:
            columns = tuple([extract(batch, who) for extract in self._extract])
        except StageError as error:
            raise PredictError(str(error)) from error
        return columns, single

    def _composed(self, value: Any) -> tuple[Any, bool]:
        parts = [(keys, leaf, _at(self._space, value, keys)) for keys, leaf in leaves(self._space)]
        single: bool | None = None
        first, of_first, batches = "", 0, {}
        for keys, leaf, value in sorted(parts, key=lambda item: isinstance(item[1], SequenceSpace)):
            where = _path(keys)
            batch, alone = _batch_of(leaf, value, where, single)
            if single is None:
                single, first, of_first = alone, where, len(batch)
            if alone is not single:
                words = ("one observation", "a batch") if single else ("a batch", "one observation")
                raise PredictError(f"obs: {first or 'it'} is {words[0]}, but {where} is {words[1]}")
            if len(batch) != of_first:
                raise PredictError(f"obs: {first} is a batch of {of_first}, but {where} is a batch of {len(batch)}")
            batches[keys] = batch
        return _composed_of(self._space, batches, ()), bool(single)


def read_masks(masks: Any, reader: MaskReader, n: int, single: bool) -> NDArray[np.bool_]:
    """Return masks [n, choices], converted from any form that environments use.

    Raises:
        PredictError: if they do not fit the action space, or forbid all choices of a branch.
    """
    try:
        return reader.read([masks] if single else masks, n)
    except MaskError as error:
        where = "" if single or error.row is None else f"row {error.row} "
        raise PredictError(f"mask{error.at}: {where}{error.problem}") from error


def read_state(state: Any, size: int, n: int, single: bool) -> Floats:
    """Return the memories [n, size] in a state that `predict` returned.

    Raises:
        PredictError: if the state has the wrong shape or type.
    """
    try:
        memories: Floats = np.asarray(state, np.float32)
    except (TypeError, ValueError):
        memories = np.empty(0, np.float32)
    if memories.shape != ((size,) if single else (n, size)):
        wanted = f"[{size}], of one observation" if single else f"[{n}, {size}], a row for each observation"
        raise PredictError(
            f"state: expected the state that predict returned for the previous observation, {wanted}, or None where an "
            f"episode begins; got {_kind(state)}"
        )
    return memories.reshape(n, size)


def read_starts(episode_start: Any, n: int, single: bool) -> NDArray[np.bool_]:
    """Return [n] flags that are True where an episode begins.

    Raises:
        PredictError: if `episode_start` has the wrong shape or type.
    """
    starts = np.asarray(episode_start)
    if starts.shape not in ((n,), *([()] if single else [])) or starts.dtype.kind not in "bui":
        raise PredictError(
            f"episode_start: expected true or false for each of {n} observations, got {_kind(episode_start)}"
        )
    return starts.reshape(n).astype(np.bool_)


def _batch_of(leaf: Leaf, value: Any, where: str, single: bool | None = None) -> tuple[Any, bool]:
    """Return a leaf's value as a batch, and True if it was a single value."""
    if isinstance(leaf, SequenceSpace):
        return _sequences(leaf, value, where, single)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # ragged, or a tensor that requires grad
        raise _unfit(leaf, value, where) from None
    shape = leaf.shape
    if (
        array.dtype.kind not in "biuf"
        or array.shape[array.ndim - len(shape) :] != shape
        or (array.ndim - len(shape) not in (0, 1))
    ):
        raise _unfit(leaf, value, where)
    alone = array.ndim == len(shape)
    _check_numbers(leaf, array, where)
    if array.dtype.kind == "f" and not (isinstance(leaf, BoxSpace) and leaf.dtype.kind == "f"):
        array = array.astype(np.int64)
    return (array[None] if alone else array), alone


def _check_numbers(leaf: Leaf, array: Array, where: str) -> None:
    """Check that the values for an integer leaf are integers."""
    assert isinstance(leaf, BoxSpace | ChoiceSpace)
    if isinstance(leaf, BoxSpace) and (leaf.dtype.kind == "f" or array.dtype == leaf.dtype):
        return
    if array.dtype.kind == "f" and (np.trunc(array) != array).any():
        scaled = leaf.dtype == np.uint8 and array.size and array.min() >= 0 and array.max() <= 1
        hint = "; pass images as unscaled bytes, 0 to 255" if scaled else ""
        raise PredictError(f"obs{where}: expected integers in {leaf}, got {_kind(array)}{hint}")


def _sequences(leaf: SequenceSpace, value: Any, where: str, single: bool | None) -> tuple[list[Any], bool]:
    """Return the sequences as a list, and True if `value` is one sequence. By default, an entity's shape decides."""
    keys, inner = next(leaves(leaf.element))
    try:
        if single is None:
            single = _is_one(leaf, value, keys, len(inner.shape))
        batch = [value] if single else [*value]
        for sequence in batch:
            for below, part in leaves(leaf.element):
                if leaf.stack:
                    array = np.asarray(_reach(sequence, below))
                else:
                    array = np.array([_reach(entity, below) for entity in sequence])
                    array = array if len(array) else array.reshape(0, *part.shape)
                kinds = "biu" if isinstance(part, ChoiceSpace) and len(array) else "biuf"
                if array.shape[1:] != part.shape or array.dtype.kind not in kinds:
                    raise _unfit(leaf, value, where)
                _check_numbers(part, array, where)
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, PredictError):
            raise
        raise _unfit(leaf, value, where) from None
    return batch, single


def _is_one(leaf: SequenceSpace, value: Any, keys: tuple[Any, ...], rank: int) -> bool:
    """Return True if a value is one sequence rather than a batch, judging by the rank of an entity's first part."""
    if leaf.stack:
        return not (isinstance(value, tuple | list) and not keys) and np.ndim(_reach(value, keys)) == rank + 1
    if not len(value):
        return True
    try:
        return np.ndim(_reach(value[0], keys)) == rank
    except (LookupError, TypeError, ValueError):
        return False


def _reach(value: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def _at(space: OwnSpace, value: Any, keys: tuple[Any, ...]) -> Any:
    """Return the value under these keys; each Dict and Tuple on the path must have exactly the keys of its space."""
    for depth, key in enumerate(keys):
        assert isinstance(space, ComposedSpace)
        where = _path(keys[:depth])
        if space.kind == "Dict":
            _check_keys(space, value, where)
        elif not isinstance(value, tuple | list) or len(value) != len(space.parts):
            raise _unfit(space, value, where)
        value, space = value[key], space.parts[key]
    return value


def _check_keys(space: ComposedSpace, value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise _unfit(space, value, where)
    names = [str(key) for key in space.parts]
    for key in value:
        if key not in space.parts and key != MASK:
            raise PredictError(f"obs{where}: the space has no {key!r}{suggest(str(key), names)}; expected {space}")
    for key in space.parts:
        if key not in value:
            raise PredictError(f"obs{where}: {key!r} is missing; expected {space}")


def _composed_of(space: OwnSpace, batches: Mapping[tuple[Any, ...], Any], keys: tuple[Any, ...]) -> Any:
    if isinstance(space, ComposedSpace):
        return {key: _composed_of(part, batches, (*keys, key)) for key, part in space.parts.items()}
    return batches[keys]


def _unfit(space: OwnSpace, value: Any, where: str) -> PredictError:
    hint = ""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping):
        hint = "; env.reset() returns (observation, info): pass only the observation"
    elif hasattr(value, "detach"):
        hint = "; for a tensor, pass obs.detach().cpu().numpy()"
    batch = "" if isinstance(space, ComposedSpace) else ", or a batch of observations"
    return PredictError(f"obs{where}: expected an observation in {space}{batch}, got {_kind(value)}{hint}")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None:
        return f"an array of shape {tuple(shape)} ({dtype})"
    if isinstance(value, Mapping):
        return f"a dict with the keys {[*value]}"
    if isinstance(value, tuple | list):
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError, RuntimeError):
            return f"a {type(value).__name__} of {len(value)} of different shapes"
        return f"a {type(value).__name__} of shape {array.shape} ({array.dtype})"
    return f"{type(value).__name__} {value!r:.40}"


def _path(keys: tuple[Any, ...]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


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
        terms = policy_spaces(spec, str(file))
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
        distribution = distribution_of(self._model.spec, heads, masks, self._model.design.squashed)
        return distribution.first() if single else distribution

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
        values = self._critic(columns)
        values = values[:, 0] if values.shape[1] == 1 else values
        return values[0] if single else values

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
        of, mixed = mixture_in(Path(reference), behavior)
        members = [load_policy(member, seed=seed) for member, _ in mixed]
        return LoadedMixture(of, members, [share for _, share in mixed], seed)
    if checkpoint is not None:
        reference = f"{reference}@{checkpoint}"
    name = None if behavior is None else behavior_name(behavior)
    file = find_model(reference, name)
    model = read_model(file)
    run_folder = file.path.parents[2 if file.path.suffix == MEMBER else 1]
    if name not in (None, model.spec.name) and name != league_of(run_folder, model.spec.name):
        raise RunError(f"{file.path} is a policy for {model.spec.name}, not for {name}")
    return LoadedPolicy(model, seed)
