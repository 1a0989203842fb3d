"""Agents whose every observation is a number of its own, and a replay memory's naive model: a list of rows."""

from dataclasses import dataclass

import numpy as np

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.replay.replay_memory import ReplayMemory

SPEC = BehaviorSpec("Test", (ObservationSpec("v", (2,)), ObservationSpec("i", (2, 2, 1), "uint8")), ActionSpec(1, (3,)))
MEMORY_SIZE = 2


@dataclass(frozen=True)
class Row:
    """What a row of the memory should hold; observations by their numbers."""

    observation: int
    next_observation: int
    action: float
    choice: int
    reward: float
    terminated: bool
    memory: float


@dataclass(frozen=True)
class Piece:
    """A piece of a trajectory: who, how long, how it ends, and whether it gets lost on its way to the trainer."""

    agent: int
    length: int
    ending: str = "cut"
    lost: bool = False


class World:
    """Plays pieces; counts everything, so that nothing looks like anything else."""

    def __init__(self):
        self._count = 0
        self._agents = {}
        self.pieces = []
        """(rows, the first row's previous action and choice) of each piece that arrived, in order."""

    @property
    def rows(self):
        return [row for rows, _ in self.pieces for row in rows]

    def batch(self, pieces):
        """The batch of those pieces that are not lost; None if all are."""
        played = [(piece, self._play(piece)) for piece in pieces]
        arrived = [(piece, *result) for piece, result in played if not piece.lost]
        self.pieces += [(rows, previous) for _, rows, previous, _ in arrived]
        return self._packed(arrived) if arrived else None

    def _number(self):
        self._count += 1
        return self._count

    def _play(self, piece):
        agent = self._agents.setdefault(piece.agent, {"episode": 0, "observation": self._number(), "action": (0.0, 0)})
        episode, previous, rows = agent["episode"], agent["action"], []
        for left in reversed(range(piece.length)):
            following = self._number()
            action = (following / 1024, following % 3)
            rows.append(
                Row(
                    agent["observation"],
                    following,
                    *action,
                    float(following),
                    piece.ending == "terminated" and left == 0,
                    following + 0.5,
                )
            )
            agent.update(observation=following, action=action)
        if piece.ending != "cut":
            agent.update(episode=episode + 1, observation=self._number(), action=(0.0, 0))
        return rows, previous, episode

    def _packed(self, arrived):
        rows = [row for _, piece_rows, _, _ in arrived for row in piece_rows]
        finals = [piece_rows[-1].next_observation for _, piece_rows, _, _ in arrived]
        pieces = [piece for piece, _, _, _ in arrived]
        columns = {
            **_observations([row.observation for row in rows], "obs_"),
            "continuous_actions": np.array([[row.action] for row in rows], np.float32),
            "discrete_actions": np.array([[row.choice] for row in rows], np.int32),
            "rewards": np.array([row.reward for row in rows], np.float32),
            "log_probs": np.zeros((len(rows), 2), np.float32),
            "memories": np.array([[row.memory, -row.memory] for row in rows], np.float32),
        }
        trajectories = {
            "lengths": np.array([piece.length for piece in pieces], np.int32),
            "agent_ids": np.array([piece.agent for piece in pieces]),
            "episode_ids": np.array([episode for _, _, _, episode in arrived]),
            "terminated": np.array([piece.ending == "terminated" for piece in pieces]),
            "truncated": np.array([piece.ending == "truncated" for piece in pieces]),
            "previous_continuous_actions": np.array([[previous[0]] for _, _, previous, _ in arrived], np.float32),
            "previous_discrete_actions": np.array([[previous[1]] for _, _, previous, _ in arrived], np.int32),
            **_observations(finals, "next_obs_"),
        }
        return TrajectoryBatch("Test", 0, columns, trajectories)


def _observations(numbers, prefix):
    vectors = np.array([[number, -number] for number in numbers], np.float32)
    images = np.array([[number % 256, number // 256, 7, 0] for number in numbers], np.uint8)
    return {f"{prefix}0": vectors, f"{prefix}1": images.reshape(-1, 2, 2, 1)}


class Every(np.random.Generator):
    """Draws nothing: gives all numbers of the range, in order."""

    def __init__(self):
        super().__init__(np.random.PCG64())

    def integers(self, low, high=None, size=None):  # type: ignore[override]  # only the calls that are made
        numbers = np.arange(low) if high is None else np.arange(low, high)
        assert len(numbers) == size
        return numbers


def new_memory(capacity, sequence_length=0, spec=SPEC):
    memory_size = MEMORY_SIZE if sequence_length else 0
    return ReplayMemory(spec, ObservationLayout(spec), capacity, memory_size, sequence_length)


def add(memory, batch):
    layout = ObservationLayout(SPEC)
    memory.add(batch, layout.encode_columns(batch.rows), layout.encode_columns(batch.trajectories, "next_obs_"))


def numbers(observations):
    """The numbers of observations, checked in vectors and images alike."""
    vectors, (images,) = observations.vectors, observations.others
    found = vectors[:, 0].astype(np.int64)
    np.testing.assert_array_equal(vectors[:, 1], -vectors[:, 0])
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images.reshape(-1, 4)[:, 0] + 256 * images.reshape(-1, 4)[:, 1].astype(int), found)
    return found


def rows_of(replayed):
    """The rows of a sample, in the model's terms but for memories."""
    columns = replayed.columns
    found = zip(
        numbers(replayed.observations).tolist(),
        numbers(replayed.next_observations).tolist(),
        columns["continuous_actions"][:, 0].tolist(),
        columns["discrete_actions"][:, 0].tolist(),
        columns["rewards"].tolist(),
        columns["terminated"].tolist(),
        strict=True,
    )
    return list(found)


def as_read(row):
    return (row.observation, row.next_observation, row.action, row.choice, row.reward, row.terminated)
