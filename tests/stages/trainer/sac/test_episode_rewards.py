"""What episodes bring in curiosity and the like, reported by SAC as by the others."""

import numpy as np
from opened_trainers import opened_trainer_of
from trainer_samples import CONTINUOUS, IMAGE, VECTOR, Reported, experience, trainer_of

from headrace.queues.specs import BehaviorSpec
from headrace.stages.trainer.replay.replay_memory import as_replayed

SPEC = BehaviorSpec("Test", (VECTOR, IMAGE), CONTINUOUS)
SIGNALS = {"extrinsic": {}, "rnd": {"strength": 0.5}}


def made(statistics, **settings):
    return opened_trainer_of("sac", SPEC, statistics=statistics, reward_signals=SIGNALS, **settings)


def pieces_of_one_agent(lengths, ended):
    """Trajectories of one agent's one episode, as they come one after the other."""
    for seed, (length, over) in enumerate(zip(lengths, ended, strict=True)):
        batch = experience(SPEC, [length], seed, squashed=True)
        yield batch.replace(
            agent_ids=np.array([7]),
            episode_ids=np.array([3]),
            terminated=np.array([over]),
            truncated=np.array([False]),
        )


def reported(resumed_before=None):
    statistics = Reported()
    trainer = made(statistics)
    for number, batch in enumerate(pieces_of_one_agent([5, 9, 4], [False, False, True])):
        if number == resumed_before:
            state = trainer.state_dict()
            trainer = made(statistics)
            trainer.load_state_dict(state)
        trainer.add(batch)
    assert statistics.hows["Policy/Rnd Reward"] == "mean"
    return statistics.values["Policy/Rnd Reward"]


def test_an_episodes_reward_is_that_of_all_its_pieces_times_strength():
    trainer = made(Reported())
    signal = trainer.signal("rnd")
    expected = 0.0
    for batch in pieces_of_one_agent([5, 9, 4], [False, False, True]):
        rows, finals = trainer._intake.encode(batch, 0)
        transitions = trainer._maker.transitions(as_replayed(batch, rows, finals))
        np.testing.assert_array_equal(transitions.next_inputs.vectors[:-1], transitions.inputs.vectors[1:])
        expected += 0.5 * signal.rewards(transitions).sum()
    np.testing.assert_allclose(reported(), [expected], rtol=1e-5)


def test_a_resumed_run_continues_the_sum_of_an_episode():
    np.testing.assert_allclose(reported(resumed_before=2), reported(), rtol=1e-6)


def test_an_unfinished_episode_is_not_reported():
    statistics = Reported()
    trainer = made(statistics)
    trainer.add(next(pieces_of_one_agent([5], [False])))
    assert "Policy/Rnd Reward" not in statistics.values


def test_the_environments_own_reward_is_left_to_the_stage():
    statistics = Reported()
    trainer = trainer_of("sac", SPEC, statistics=statistics)
    trainer.add(next(pieces_of_one_agent([5], [True])))
    assert statistics.values == {}
