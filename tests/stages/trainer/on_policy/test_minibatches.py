import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import MemorySettings, NetworkSettings, PPOHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.on_policy.rollout import Rollout, standardised
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import PPOUpdate
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas
from headrace.stages.trainer.trajectories import SequenceCuts

SPEC = BehaviorSpec("Test", (ObservationSpec("o", (3,)),), ActionSpec(2, (3,)))
PREVIOUS = 5
NAMES = ("continuous", "penalties", "old_log_probs", "advantages", "returns")


def rollout_of(inputs, columns, *more):
    return Rollout(inputs, dict(zip(NAMES, columns, strict=True)), *more)


def rows(n):
    """Row i holds i in every column, so that what belongs together can be told."""
    numbers = np.arange(n, dtype=np.float32)[:, None]
    inputs = Inputs(torch.from_numpy(np.repeat(numbers, 3, axis=1)))
    return rollout_of(inputs, [np.repeat(numbers, w, axis=1) for w in (2, 4, 1, 1, 1)], np.repeat(numbers, 2, axis=1))


def test_each_epoch_uses_whole_minibatches_of_distinct_rows_in_a_new_order():
    orders = []
    for minibatches in rows(22).epochs(3, 5, np.random.default_rng(0)):
        assert [len(m.inputs.vectors) for m in minibatches] == [5, 5, 5, 5]
        orders.append([int(i) for m in minibatches for i in m.inputs.vectors[:, 0]])
    assert all(len(set(order)) == 20 for order in orders)
    assert orders[0] != orders[1] != orders[2]


def test_the_columns_of_a_row_stay_together():
    for minibatches in rows(12).epochs(2, 4, np.random.default_rng(1)):
        for m in minibatches:
            numbers = m.inputs.vectors[:, :1]
            parts = [
                m.inputs.vectors,
                m.continuous,
                m.penalties,
                m.old_log_probs,
                m.advantages,
                m.returns,
                *m.choices,
            ]
            assert [p.shape[1] for p in parts] == [3, 2, 4, 1, 1, 1, 1, 1]
            assert all((part == numbers).all() for part in parts)
            assert m.rows.tolist() == numbers[:, 0].tolist()


class Second(Replicas):
    rank, size = 1, 2

    def add_up(self, *tensors):
        raise AssertionError("nothing has to be asked for")


@pytest.mark.parametrize("replicas", [SINGLE_TRAINER, Second()], ids=["alone", "the second of two"])
def test_advantages_may_be_normalised_over_each_minibatch(replicas):
    random = np.random.default_rng(0)
    advantages, weights, n = random.normal(3, 5, 10).astype(np.float32), random.random((10, 2)).astype(np.float32), 10
    numbers = np.arange(n, dtype=np.float32)[:, None]
    inputs, one = Inputs(torch.from_numpy(numbers)), np.zeros((n, 1), np.float32)
    made = rollout_of(inputs, [one, one, one, weights, numbers], np.zeros((n, 0)), advantages)
    for minibatches in made.epochs(2, 4, random, replicas):
        for m in minibatches:
            of_all = torch.from_numpy(advantages)[m.rows if m.together is None else m.together]
            expected = (torch.from_numpy(advantages)[m.rows] - of_all.mean()) / (of_all.std() + 1e-8)
            assert_close(m.advantages, expected[:, None] * torch.from_numpy(weights)[m.rows])
            assert m.returns[:, 0].tolist() == m.rows.tolist()
    assert_close(standardised(torch.tensor([[5.0]])), torch.tensor([[5.0]]))


def test_in_order_all_rows_come_once_also_those_that_make_no_whole_minibatch():
    minibatches = list(rows(7).in_order(3))
    assert [m.rows.tolist() for m in minibatches] == [[0, 1, 2], [3, 4, 5], [6]]
    for m in minibatches:
        for part in (m.inputs.vectors, m.continuous, m.penalties, m.old_log_probs, m.advantages, m.returns, *m.choices):
            assert (part == m.rows[:, None]).all()


@pytest.mark.parametrize(
    "laid_out", [torch.contiguous_format, torch.channels_last], ids=["as they came", "channels innermost"]
)
def test_images_stay_bytes_and_go_with_their_rows(laid_out):
    images = np.repeat(np.arange(12, dtype=np.uint8), 12).reshape(12, 3, 2, 2)
    numbers = np.arange(12, dtype=np.float32)[:, None]
    pictures = torch.from_numpy(images).contiguous(memory_format=laid_out)
    with_images = rollout_of(Inputs(torch.from_numpy(numbers), (pictures,)), [numbers] * 5, numbers)
    seen = 0
    for minibatches in with_images.epochs(2, 4, np.random.default_rng(3)):
        for m in minibatches:
            (image,) = m.inputs.others
            assert (image.dtype, image.shape) == (torch.uint8, (4, 3, 2, 2))
            assert image.is_contiguous(memory_format=laid_out)
            assert image[:, 0, 0, 0].tolist() == m.inputs.vectors[:, 0].tolist() == m.rows.tolist()
            seen += 1
    assert seen == 6
    in_order = [number for m in with_images.in_order(5) for number in m.inputs.others[0][:, 0, 0, 0].tolist()]
    assert in_order == list(range(12))


def sequences_of(lengths, length, memory_size=2):
    """Row i holds i in every column, sequence q holds q in its memories."""
    n = sum(lengths)
    numbers = np.arange(n, dtype=np.float32)[:, None]
    inputs = Inputs(torch.from_numpy(numbers), (), torch.from_numpy(np.repeat(numbers, PREVIOUS, axis=1)))
    cuts = SequenceCuts.of(np.array(lengths), length)
    memories = torch.arange(len(cuts), dtype=torch.float32)[:, None].expand(-1, memory_size).contiguous()
    targets = [np.repeat(numbers, width, axis=1) for width in (2, 3, 1, 1, 1)]
    return rollout_of(inputs, targets, np.repeat(numbers, 1, axis=1), None, cuts, memories, -memories), cuts


def test_sequences_are_shuffled_as_wholes_with_what_was_remembered_before_them():
    made, cuts = sequences_of([7, 3, 9, 1], 4)
    orders = []
    for minibatches in made.epochs(3, 8, np.random.default_rng(0)):
        order = []
        for m in minibatches:
            assert m.inputs.sequence_length == 4
            assert len(m.inputs.vectors) == len(m.inputs.previous_actions) == 8
            sequences = m.inputs.memories[:, 0].int().tolist()
            assert m.critic_memories[:, 0].tolist() == [-q for q in sequences]
            padded, real = cuts.padded(np.array(sequences))
            assert m.inputs.vectors[:, 0].tolist() == padded.reshape(-1).tolist()
            assert m.real.tolist() == np.flatnonzero(real).tolist()
            for part in (*m.choices, m.continuous, m.penalties, m.old_log_probs, m.advantages, m.returns):
                assert part[:, 0].tolist() == m.rows.tolist() == m.inputs.vectors[m.real, 0].tolist()
            order += sequences
        assert len(set(order)) == len(order) == 6
        orders.append(order)
    assert orders[0] != orders[1] != orders[2]


def learned(lengths, length, memories, batch_size, seed=0):
    """One step on all sequences: gradients and losses."""
    settings = NetworkSettings(
        hidden_units=8, num_layers=1, memory=MemorySettings(memory_size=4, sequence_length=length)
    )
    design = PolicyDesign(SPEC, settings)
    network = make_actor_critic(design, 1, False, np.random.default_rng(seed))
    hyperparameters = PPOHyperparameters(batch_size=batch_size, buffer_size=64, num_epoch=1)
    random, n = np.random.default_rng(1), sum(lengths)
    normal = lambda width: random.normal(size=(n, width)).astype(np.float32)  # noqa: E731
    inputs = Inputs(torch.from_numpy(normal(3)), (), torch.from_numpy(normal(PREVIOUS)))
    targets = [normal(2), np.empty((n, 0), np.float32), normal(1) - 5, normal(1), normal(1)]
    before = torch.from_numpy(np.asarray(memories, np.float32))
    cuts = SequenceCuts.of(np.array(lengths), length)
    made = rollout_of(inputs, targets, random.integers(0, 3, (n, 1)), None, cuts, before, before + 1)
    update = PPOUpdate(network, SPEC, hyperparameters)
    losses = update.run(made, Coefficients(1e-3, 0.1, epsilon=0.2), np.random.default_rng(0), 0)
    return network.gradients.clone(), losses


def test_a_padded_sequence_gives_the_same_losses_and_gradients_as_its_rows_alone():
    memories = [[0.1, -0.2, 0.3, 0.4], [0.5, 0.1, -0.6, 0.2]]
    exact, exact_losses = learned([3, 3], 3, memories, batch_size=6)
    padded, padded_losses = learned([3, 3], 8, memories, batch_size=16)
    assert_close(padded, exact, rtol=1e-5, atol=1e-7)
    for name in ("Losses/Policy Loss", "Losses/Value Loss", "Policy/Entropy"):
        assert padded_losses[name] == pytest.approx(exact_losses[name], rel=1e-5), name
    assert exact.abs().max() > 0.01


def test_rows_weigh_the_same_whatever_the_padding_of_their_sequence():
    """Means are over real rows: next to a sequence of three rows, one of a single row counts a quarter, not a half."""
    memories = np.zeros((2, 4))
    both, losses = learned([3, 1], 3, memories, batch_size=6)
    network_rows = [learned_rows(rows, memories) for rows in ([0, 1, 2], [3])]
    assert_close(both, (3 * network_rows[0] + network_rows[1]) / 4, rtol=1e-4, atol=1e-6)
    assert losses["Losses/Value Loss"] > 0


def learned_rows(rows, memories):
    """The gradient of only some of the rows of the case above, as one sequence."""
    settings = NetworkSettings(hidden_units=8, num_layers=1, memory=MemorySettings(memory_size=4, sequence_length=3))
    network = make_actor_critic(PolicyDesign(SPEC, settings), 1, False, np.random.default_rng(0))
    random, n = np.random.default_rng(1), 4
    normal = lambda width: random.normal(size=(n, width)).astype(np.float32)  # noqa: E731
    vectors, previous = normal(3), normal(PREVIOUS)
    targets = [normal(2), np.empty((n, 0), np.float32), normal(1) - 5, normal(1), normal(1)]
    choices = random.integers(0, 3, (n, 1))
    before = torch.from_numpy(np.asarray(memories[:1], np.float32))
    made = rollout_of(
        Inputs(torch.from_numpy(vectors[rows]), (), torch.from_numpy(previous[rows])),
        [target[rows] for target in targets],
        choices[rows],
        None,
        SequenceCuts.of(np.array([len(rows)]), len(rows)),
        before,
        before + 1,
    )
    update = PPOUpdate(network, SPEC, PPOHyperparameters(batch_size=1, buffer_size=64, num_epoch=1))
    update.run(made, Coefficients(1e-3, 0.1, epsilon=0.2), np.random.default_rng(0), 0)
    return network.gradients.clone()
