"""Values, baselines and λ-returns of groups, by a critic that can be added up by hand."""

import numpy as np
import pytest
from group_samples import Adding, Piece, batch_of

BOTH = [Piece(1, 0, [1], [0.1], [0], [0], 10), Piece(2, 0, [3], [0.3], [0], [0], 20)]


@pytest.fixture
def prepare(make_trainer):
    def made(*batches, lambd=0.5, signals=None, critic=None):
        trainer = make_trainer(signals, lambd=lambd, decoupled=False)
        for batch in batches:
            trainer.add(batch)
        trainer.critic = critic or Adding(len(trainer.signals.names))
        prepared = trainer.prepare()
        (minibatches,) = prepared.rollout.epochs(1, len(trainer.buffer), np.random.default_rng(0))
        (minibatch,) = minibatches
        order = minibatch.rows.argsort()
        received = prepared.rewards[:, 0]
        return received, prepared, minibatch.returns[order].numpy(), minibatch.advantages[order, 0].numpy()

    return made


def test_an_agent_that_leaves_early_learns_from_the_later_rewards_of_its_group(prepare):
    """Agent 1 ends at tick 2, where agent 2's trajectory is cut; agent 2 continues alone, and gets the group's reward.

    γ = λ = 0.5. Values: 1 + 3, 2 + 4; 5, 6. The value of agent 2 alone at tick 2 is 5.
    """
    batch = batch_of(
        [
            Piece(1, 0, [1, 2], [0.1, 0.2], [0, -1], [0, 0], 99, "terminated", goes_on=True),
            Piece(2, 0, [3, 4], [0.3, 0.4], [1, 0], [0, 0], 5),
            Piece(2, 2, [5, 6], [0.5, 0.6], [0, 2], [0, 10], 77, "terminated"),
        ]
    )
    received, prepared, returns, advantages = prepare(batch)
    assert received.tolist() == [1, -1, 1, -1, 0, 12]
    assert prepared.estimates["Value Estimate"][:, 0].tolist() == [4, 6, 4, 6, 5, 6]
    assert prepared.estimates["Baseline Estimate"][:, 0] == pytest.approx([1 + 6, 2 + 8, 3 + 2, 4 + 4, 5, 6])
    last = -1 + 0.5 * 5
    first = 1 + 0.5 * (0.5 * 6 + 0.5 * last)
    alone = 0 + 0.5 * (0.5 * 6 + 0.5 * 12)
    assert returns[:, 0] == pytest.approx([first, last, first, last, alone, 12])
    raw = returns[:, 0] - prepared.estimates["Baseline Estimate"][:, 0]
    assert advantages == pytest.approx((raw - raw.mean()) / raw.std(), abs=1e-6)


@pytest.mark.parametrize(
    ("ends", "worth"),
    [
        (("terminated", "terminated"), (0, 0)),
        (("truncated", "truncated"), (30, 30)),
        (("terminated", "truncated"), (20, 20)),
        (("truncated", "terminated"), (10, 10)),
        (("terminated", ""), (20, 20)),
        (("truncated", ""), (30, 30)),
        (("", ""), (30, 30)),
    ],
)
def test_targets_bootstrap_from_the_value_of_agents_that_did_not_terminate(prepare, ends, worth):
    one = Piece(1, 0, [1], [0], [0], [0], 10, ends[0])
    two = Piece(2, 0, [3], [0], [0], [0], 20, ends[1])
    _, _, returns, _ = prepare(batch_of([one, two]))
    assert returns[:, 0].tolist() == [0.5 * value for value in worth]


def test_mates_share_the_tick_the_group_and_the_actor(prepare):
    one = Piece(1, 0, [1], [0], [0], [0], 10, "terminated")
    later = Piece(2, 0, [3], [0], [0], [0], 20, after=2)
    elsewhere = Piece(3, 0, [4], [0], [0], [0], 30, group=6)
    by_another = batch_of([Piece(4, 0, [5], [0], [0], [0], 40)], source=1)
    _, prepared, returns, _ = prepare(batch_of([one, later, elsewhere]), by_another)
    assert returns[0, 0] == 0
    assert prepared.estimates["Value Estimate"][:, 0].tolist() == [4, 4, 4, 5]


def test_a_group_s_size_is_relative_to_the_largest_so_far(prepare):
    critic = Adding()
    prepare(batch_of([*BOTH, Piece(3, 0, [1], [0], [0], [0], 1, group=6)]), critic=critic)
    assert critic.sizes[0] == [1.0, 1.0, 0.0], "2n/2 - 1"


def test_rewards_of_mates_that_act_in_turns_are_counted_once(prepare):
    """Agent 1 moves at ticks 0 and 2, agent 2 at tick 1; both are closed at tick 4, and the group's rewards are mates'.

    γ = λ = 0.5. Values are those of single agents, at the end too.
    """
    one = [
        Piece(1, 0, [1], [0.1], [-1], [3], 2, after=2),
        Piece(1, 2, [2], [0.1], [-1], [5], 10, after=4),
    ]
    two = Piece(2, 1, [3], [0.1], [3], [-1], 20, after=4)
    received, prepared, returns, _ = prepare(batch_of([*one, two]))
    assert received.tolist() == [2, 4, 2]
    assert prepared.estimates["Value Estimate"][:, 0].tolist() == [1, 2, 3]
    assert returns[:, 0].tolist() == [2 + 0.5 * 2, 4 + 0.5 * 10, 2 + 0.5 * 20]


def test_a_remaining_mate_represents_the_group_when_an_agent_ends(prepare):
    gone = Piece(1, 0, [1], [0], [0], [0], 10, "terminated", after=4, goes_on=True)
    left = [Piece(agent, agent, [3], [0], [0], [0], 20, after=4) for agent in (2, 3)]
    _, _, returns, _ = prepare(batch_of([gone, *left]))
    assert returns[0, 0] == 0.5 * 20
