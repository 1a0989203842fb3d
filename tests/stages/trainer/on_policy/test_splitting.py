"""An update learns from `buffer_size` rows; what a trajectory has beyond them is learned from with the next."""

import numpy as np
import pytest
from group_samples import Piece, batch_of
from trainer_samples import CONTINUOUS, HYBRID, IMAGE, VECTOR, Reported, all_weights, experience, trainer_of

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.trainer.trajectories import moments_within

SPEC = BehaviorSpec("Test", (VECTOR, IMAGE), HYBRID)
GROUPED = BehaviorSpec("Test", (VECTOR,), CONTINUOUS, grouped=True)
MEMORY = {"memory": {"memory_size": 4, "sequence_length": 3}}
SIGNALS = {"extrinsic": {"gamma": 0.9}, "curiosity": {"gamma": 0.8, "strength": 0.1}}


def cut_by_hand(batch, kept):
    """What an actor would have emitted that was told to close each trajectory after `kept` rows."""
    before, after, first = [], [], 0
    for k, length in enumerate(batch.lengths):
        row = {name: column[first : first + length] for name, column in batch.rows.items()}
        end = {name: column[k : k + 1] for name, column in batch.trajectories.items()}
        at, first = kept[k], first + length
        if at == length:
            before.append((row, end))
            continue
        if at:
            head = dict(end, lengths=[at], terminated=[False], truncated=[False], group_left=[True], credits=[at])
            head.update({f"next_{name}": row[name][at : at + 1] for name in row if name.startswith("obs_")})
            head["next_ticks"] = row["ticks"][at : at + 1] if "ticks" in row else []
            before.append(({name: column[:at] for name, column in row.items()}, {name: head[name] for name in end}))
            end = dict(end, lengths=[length - at], credits=[length - at])
            for name in (name for name in end if name.startswith("previous_")):
                end[name] = row[name.removeprefix("previous_")][at - 1 : at]
        after.append(({name: column[at:] for name, column in row.items()}, end))
    return [joined(batch, parts) for parts in (before, after)]


def joined(batch, parts):
    rows, trajectories = zip(*parts, strict=True)
    return TrajectoryBatch(
        batch.behavior_id,
        batch.source,
        {name: np.concatenate([row[name] for row in rows]) for name in batch.rows},
        {name: np.concatenate([one[name] for one in trajectories]) for name in batch.trajectories},
    )


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("kind", "spec", "lengths", "kept", "settings"),
    [
        ("ppo", SPEC, [9, 20, 11], [9, 20, 3], {"reward_signals": SIGNALS}),
        ("ppo", SPEC, [20, 12, 8], [20, 12, 0], {"network_settings": MEMORY}),
        ("poca", SPEC, [9, 20, 11], [9, 20, 3], {"network_settings": MEMORY}),
        ("poca", GROUPED, [10, 10, 9, 9], [10, 10, 6, 6], {"reward_signals": SIGNALS}),
        ("poca", GROUPED, [10, 10, 9, 9], [10, 10, 6, 6], {"network_settings": MEMORY}),
        ("ppo", GROUPED, [10, 10, 9, 9], [10, 10, 9, 3], {}),
    ],
)
def test_a_split_trajectory_is_learned_from_as_one_that_the_actor_cut(kind, spec, lengths, kept, settings):
    memory_size = 4 if "network_settings" in settings else 0
    constant = {"learning_rate_schedule": "constant"}
    whole, by_hand = (trainer_of(kind, spec, hyperparameters=constant, **settings) for _ in range(2))
    missing = (64 - sum(lengths)) // 2
    batch, more = (experience(spec, some, seed, memory_size) for seed, some in enumerate((lengths, 2 * [missing])))
    before, after = cut_by_hand(batch, kept)
    whole.add(batch)
    by_hand.add(before)
    assert (whole.learn(), by_hand.learn()) == (32, 32)
    np.testing.assert_array_equal(all_weights(whole), all_weights(by_hand))
    assert not whole.ready()
    by_hand.add(after)
    for trainer in (whole, by_hand):
        trainer.add(more)
        assert trainer.learn() == 32
    np.testing.assert_array_equal(all_weights(whole), all_weights(by_hand))


def test_a_batch_may_bring_the_rows_of_several_updates():
    trainer = trainer_of("ppo", SPEC)
    trainer.add(experience(SPEC, [50, 25, 25]))
    learned = [trainer.learn() for _ in range(3)]
    assert learned == [32, 32, 32]
    assert not trainer.ready()
    trainer.add(experience(SPEC, [28], seed=1))
    assert trainer.ready()


@pytest.mark.lengthy
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize(("kind", "spec"), [("ppo", SPEC), ("poca", GROUPED)])
def test_rows_that_were_left_over_are_in_the_state(kind, spec, memory):
    network, memory_size = (MEMORY, 4) if memory else ({}, 0)
    uninterrupted, resumed = (trainer_of(kind, spec, network_settings=network) for _ in range(2))
    uninterrupted.add(experience(spec, [10, 10, 9, 9], 0, memory_size))
    uninterrupted.learn()
    resumed.load_state_dict(uninterrupted.state_dict())
    for trainer in (uninterrupted, resumed):
        trainer.add(experience(spec, [14, 14], 1, memory_size))
        assert trainer.learn() == 32
    np.testing.assert_array_equal(all_weights(uninterrupted), all_weights(resumed))


def test_an_episode_s_rewards_are_counted_once_though_it_was_split():
    reported = Reported()
    trainer = trainer_of("ppo", SPEC, statistics=reported, reward_signals=SIGNALS)
    trainer.add(experience(SPEC, [35], seed=3))  # it terminates
    trainer.learn()
    assert "Policy/Curiosity Reward" not in reported.values
    trainer.add(experience(SPEC, [1] * 29, seed=4).replace(terminated=np.zeros(29, bool), truncated=np.zeros(29, bool)))
    trainer.learn()
    assert len(reported.values["Policy/Curiosity Reward"]) == 1


def member(agent, first_tick, length, group=5, after=None):
    values = [0.0] * length
    return Piece(agent, first_tick, values, values, values, values, 0.0, group=group, after=after)


def kept_of(pieces, room):
    batch = batch_of(pieces)
    return moments_within(batch.trajectories, batch.rows["ticks"], room).tolist()


@pytest.mark.parametrize(("room", "kept"), [(4, [2, 2]), (5, [3, 3]), (6, [3, 3]), (0, [0, 0])])
def test_mates_are_split_at_one_tick(room, kept):
    assert kept_of([member(1, 10, 4), member(2, 10, 4)], room) == kept


def test_a_mate_that_joins_later_is_split_at_the_same_tick():
    pieces = [member(1, 10, 6), member(2, 13, 3), member(3, 15, 1)]
    assert kept_of(pieces, 5) == [4, 1, 0]


def test_mates_that_decide_at_different_ticks_are_split_where_all_decide_or_not_at_all():
    def often_and_seldom(until):
        batch = batch_of([member(1, 0, 6), member(2, 0, until, after=6)])
        return moments_within(batch.trajectories, np.array([0, 1, 2, 3, 4, 5, *range(0, 3 * until, 3)]), 3).tolist()

    assert often_and_seldom(2) == [3, 1]
    assert often_and_seldom(1) == [6, 1]
