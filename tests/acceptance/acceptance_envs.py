"""Small tasks whose best return is known, as environment groups: what trainers have to be able to learn.

`Simple` and its memory variant are what ML-Agents accepts its trainers by; the others are ours. Each class is a factory:
`environment: {kind: gymnasium, factory: "acceptance_envs:Simple", options: {branches: 1}}`, with this file's folder as the
one beside the YAML.

Axis letters: n instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.protocol import AgentSteps, StepResult

Bools = NDArray[np.bool_]
Outcome = tuple[Array, Bools, Bools]
"""Rewards, terminated, truncated: [n] each."""


class Task:
    """N instances of a task for a single agent, stepped together. What the task is, is its subclasses' affair.

    Args:
        num_envs: n.
        behavior: the behaviour id of all agents.
        observations: what an agent sees.
        actions: what it decides.
    """

    def __init__(
        self, num_envs: int, behavior: str, observations: Sequence[ObservationSpec], actions: ActionSpec
    ) -> None:
        self.num_envs = num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = {
            behavior: BehaviorSpec(behavior, tuple(observations), actions)
        }
        self.random = np.random.default_rng(0)
        self.everyone = np.arange(num_envs)
        self._behavior = behavior
        self._episodes = np.full(num_envs, -1, np.int64)

    def begin(self, which: NDArray[np.intp]) -> None:
        """Start an episode in these instances."""
        raise NotImplementedError

    def advance(self, actions: ActionBatch) -> Outcome:
        """Take one action in each instance."""
        raise NotImplementedError

    def observe(self) -> tuple[Array, ...]:
        """What each agent sees now: new arrays [n, *shape], one per observation."""
        raise NotImplementedError

    def reset(self, seed: int | None = None) -> StepResult:
        """Start all instances anew."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self._episodes += 1
        self.begin(self.everyone)
        return self._rows(self.observe(), np.zeros(self.num_envs), np.zeros(0, np.intp), None)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all instances; those that end begin again within the tick."""
        rewards, terminated, truncated = self.advance(actions[self._behavior])
        seen = self.observe()
        (ended,) = np.nonzero(terminated | truncated)
        if not len(ended):
            return self._rows(seen, rewards, ended, None)
        finals = tuple(observation[ended] for observation in seen)
        self.begin(ended)
        return self._rows(self.observe(), rewards, ended, (finals, terminated[ended], truncated[ended]))

    def close(self) -> None:
        """Nothing is open."""

    def _rows(
        self,
        observations: tuple[Array, ...],
        rewards: Array,
        ended: NDArray[np.intp],
        ending: tuple[tuple[Array, ...], Bools, Bools] | None,
    ) -> StepResult:
        rewards = np.asarray(rewards, np.float32)
        terminated = truncated = np.zeros(0, np.bool_)
        agents, episodes = self.everyone, self._episodes.copy()
        if ending is not None:
            finals, terminated, truncated = ending
            observations = tuple(np.concatenate(pair) for pair in zip(finals, observations, strict=True))
            self._episodes[ended] += 1
            now = rewards.copy()
            now[ended] = 0.0
            rewards = np.concatenate((rewards[ended], now))
            agents = np.concatenate((ended, agents))
            episodes = np.concatenate((episodes[ended], self._episodes))
        steps = AgentSteps(
            agents, agents.astype(np.int32), episodes, observations, rewards, len(ended), terminated, truncated
        )
        return StepResult({self._behavior: steps})


class Simple(Task):
    """ML-Agents' SimpleEnvironment: move every coordinate to the goal, which is -1 or +1 and all that is seen.

    Positions start at 0, one for each action, and move by at most `step_size`. An episode ends when all are at -1 or +1,
    with 1.06 times the mean of position × goal; until then each step costs 0.01. Playing perfectly gives about 1.02 with
    a step of 0.2.

    Args:
        num_envs: n.
        behavior: the behaviour id.
        continuous: continuous actions.
        branches: discrete actions, of two choices: back and forth.
        step_size: how far an action moves at most.
        vectors: vector observations of one number.
        visuals: images.
        visual_shape: their shape, channels first.
        sets: variable-length observations, of ten things with five numbers.
        goals: which observations are called goal signals; vectors come first, then images, then sets.
        memory: the goal is seen in the first three observations only, after that there are zeros.
    """

    SUCCESS = 1.06
    COST = 0.01
    SHOWN_UNTIL = 2

    def __init__(
        self,
        num_envs: int,
        behavior: str,
        continuous: int = 0,
        branches: int = 0,
        step_size: float = 0.2,
        vectors: int = 1,
        visuals: int = 0,
        visual_shape: Sequence[int] = (3, 20, 20),
        sets: int = 0,
        goals: Sequence[int] = (),
        memory: bool = False,
    ) -> None:
        shapes = [(1,)] * vectors + [tuple(visual_shape)] * visuals + [(10, 5)] * sets
        observations = [ObservationSpec(f"seen {i}", shape, goal=i in goals) for i, shape in enumerate(shapes)]
        actions = ActionSpec(continuous_size=continuous, discrete_branches=(2,) * branches)
        super().__init__(num_envs, behavior, observations, actions)
        self._shapes, self._step_size, self._memory = shapes, step_size, memory
        self._goals = np.ones(num_envs)
        self._positions = np.zeros((num_envs, continuous + branches))
        self._t = np.zeros(num_envs, np.int64)

    def begin(self, which: NDArray[np.intp]) -> None:
        """Draw a goal."""
        self._goals[which] = self.random.choice([-1.0, 1.0], len(which))
        self._positions[which] = 0.0
        self._t[which] = 0

    def advance(self, actions: ActionBatch) -> Outcome:
        """Move."""
        moves = np.concatenate((actions.continuous, 2.0 * actions.discrete - 1.0), axis=1, dtype=np.float64)
        self._positions += moves.clip(-self._step_size, self._step_size)
        self._positions = self._positions.clip(-1.0, 1.0)
        self._t += 1
        # Five steps of 0.2 add up to 1 only nearly.
        done = np.all(np.abs(self._positions) > 1.0 - 1e-9, axis=1)
        success = self.SUCCESS * self._positions.mean(axis=1) * self._goals
        return np.where(done, success, -self.COST), done, np.zeros_like(done)

    def observe(self) -> tuple[Array, ...]:
        """Everything is full of the goal, or of nothing."""
        shown = (self._goals * (self._t <= self.SHOWN_UNTIL) if self._memory else self._goals).astype(np.float32)
        return tuple(np.broadcast_to(_column(shown, shape), (self.num_envs, *shape)).copy() for shape in self._shapes)

    def solve(self) -> ActionBatch:
        """Play perfectly."""
        spec = next(iter(self.behavior_specs.values())).actions
        forth = np.repeat(self._goals[:, None], spec.log_prob_size, axis=1)
        continuous, discrete = np.split(forth, [spec.continuous_size], axis=1)
        return ActionBatch(continuous.astype(np.float32), (discrete > 0).astype(np.int32))


class CueMemory(Task):
    """Remember what the first observation showed: the last action of the episode has to answer it.

    An observation is the cue, one-hot at the first step and zeros after that, and a flag that is up at the last step.
    The right answer gives 1; a wrong one so much less that guessing gives 0 on average. Nothing else is rewarded.

    Args:
        num_envs: n.
        behavior: the behaviour id.
        cues: how many there are, and answers.
        delay: steps between the cue and the answer.
    """

    def __init__(self, num_envs: int, behavior: str, cues: int = 2, delay: int = 10) -> None:
        super().__init__(
            num_envs, behavior, [ObservationSpec("cue", (cues + 1,))], ActionSpec(discrete_branches=(cues,))
        )
        self._cues, self._delay = cues, delay
        self._cue = np.zeros(num_envs, np.int64)
        self._t = np.zeros(num_envs, np.int64)

    def begin(self, which: NDArray[np.intp]) -> None:
        """Draw a cue."""
        self._cue[which] = self.random.integers(self._cues, size=len(which))
        self._t[which] = 0

    def advance(self, actions: ActionBatch) -> Outcome:
        """Only the last action counts."""
        last = self._t == self._delay
        answer = np.where(actions.discrete[:, 0] == self._cue, 1.0, -1.0 / (self._cues - 1))
        self._t += 1
        return np.where(last, answer, 0.0), last, np.zeros_like(last)

    def observe(self) -> tuple[Array, ...]:
        """The cue at first, the flag at last."""
        seen = np.zeros((self.num_envs, self._cues + 1), np.float32)
        first = self._t == 0
        seen[self.everyone[first], self._cue[first]] = 1.0
        seen[:, -1] = self._t == self._delay
        return (seen,)


class PixelTask(Task):
    """Say where the bright square is: left, right, up or down. Each step shows another picture.

    The square's colour and place vary, and there is noise behind it. The return is the share of right answers: 1 for all,
    0.25 for guessing.

    Args:
        num_envs: n.
        behavior: the behaviour id.
        size: pixels of each side.
        steps: of an episode.
        channels_last: pictures are [size, size, 3] instead of [3, size, size].
    """

    def __init__(
        self, num_envs: int, behavior: str, size: int = 36, steps: int = 8, channels_last: bool = False
    ) -> None:
        shape = (size, size, 3) if channels_last else (3, size, size)
        picture = ObservationSpec("picture", shape, "uint8", channels_last=channels_last)
        super().__init__(num_envs, behavior, [picture], ActionSpec(discrete_branches=(4,)))
        self._size, self._steps, self._last = size, steps, channels_last
        self._where = np.zeros(num_envs, np.int64)
        self._t = np.zeros(num_envs, np.int64)
        self._pictures = np.zeros((num_envs, 3, size, size), np.uint8)

    def begin(self, which: NDArray[np.intp]) -> None:
        """Show a first picture."""
        self._t[which] = 0
        self._draw(which)

    def advance(self, actions: ActionBatch) -> Outcome:
        """Judge the answer and show the next picture."""
        right = actions.discrete[:, 0] == self._where
        self._t += 1
        self._draw(self.everyone)
        over = self._t == self._steps
        return right / self._steps, over, np.zeros_like(over)

    def observe(self) -> tuple[Array, ...]:
        """The pictures."""
        return (np.moveaxis(self._pictures, 1, -1).copy() if self._last else self._pictures.copy(),)

    def _draw(self, which: NDArray[np.intp]) -> None:
        n, side, random = len(which), self._size // 4, self.random
        self._where[which] = where = random.integers(4, size=n)
        near = random.integers(0, side // 2 + 1, n)  # from the edge that is told
        along = (self._size - side) // 2 + random.integers(-(side // 2), side // 2 + 1, n)
        across = np.where(where % 2 == 0, near, self._size - side - near)
        sideways = where < 2
        x, y = np.where(sideways, across, along), np.where(sideways, along, across)
        pixels = np.arange(self._size)
        columns = (pixels >= x[:, None]) & (pixels < x[:, None] + side)
        rows = (pixels >= y[:, None]) & (pixels < y[:, None] + side)
        square = (rows[:, :, None] & columns[:, None, :])[:, None]
        colours = random.integers(128, 256, (n, 3, 1, 1), np.uint8)
        noise = random.integers(0, 64, (n, 3, self._size, self._size), np.uint8)
        self._pictures[which] = np.where(square, colours, noise)


class Corridor(Task):
    """Walk to the end of a corridor; only there is a reward, of 1, and the episode over.

    It is so long that a random walk practically never arrives within the limit, at which an episode is
    truncated.

    Args:
        num_envs: n.
        behavior: the behaviour id.
        length: steps from the start to the end.
        limit: steps of an episode, at most.
        one_hot: the place is seen one-hot instead of as one number from 0 to 1.
        noop: there is a third action, which does nothing.
        winding: which of the two actions leads on is another matter in each place (the same in all episodes), so that
            always doing the same leads nowhere.
    """

    def __init__(
        self,
        num_envs: int,
        behavior: str,
        length: int = 60,
        limit: int = 120,
        one_hot: bool = True,
        noop: bool = False,
        winding: bool = True,
    ) -> None:
        place = ObservationSpec("place", (length if one_hot else 1,))
        super().__init__(num_envs, behavior, [place], ActionSpec(discrete_branches=(3 if noop else 2,)))
        self._length, self._limit, self._one_hot = length, limit, one_hot
        forward = np.random.default_rng(length).integers(2, size=length) if winding else np.ones(length, np.int64)
        self._moves = np.where(np.arange(3) == forward[:, None], 1, -1)
        """[length, 3] where each action leads from each place."""
        self._moves[:, 2] = 0
        self._place = np.zeros(num_envs, np.int64)
        self._t = np.zeros(num_envs, np.int64)

    def begin(self, which: NDArray[np.intp]) -> None:
        """Go back to the start."""
        self._place[which] = 0
        self._t[which] = 0

    def advance(self, actions: ActionBatch) -> Outcome:
        """Walk."""
        self._place = np.maximum(self._place + self._moves[self._place, actions.discrete[:, 0]], 0)
        self._t += 1
        arrived = self._place == self._length
        return arrived.astype(np.float32), arrived, (self._t == self._limit) & ~arrived

    def observe(self) -> tuple[Array, ...]:
        """The place; at the end, all zeros or 1."""
        if self._one_hot:
            return ((self._place[:, None] == np.arange(self._length)).astype(np.float32),)
        return ((self._place / self._length).astype(np.float32)[:, None],)

    def solve(self) -> ActionBatch:
        """Walk straight to the end."""
        on = self._moves[self._place].argmax(axis=1).astype(np.int32)
        return ActionBatch(np.zeros((self.num_envs, 0), np.float32), on[:, None])


def _column(values: Array, shape: tuple[int, ...]) -> Array:
    """Values [n] as [n, 1, …], to fill arrays of this shape with."""
    return values.reshape(-1, *[1] * len(shape))
