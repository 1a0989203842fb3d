"""The trainer stage: intake, learning, credits, reports, resuming."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from fakes import RecordedStatistics, RememberingTrainer, trajectories

from headrace.queues.columns import Column
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.stage import StageContext
from headrace.stages.trainer.report import TrainerPort
from headrace.stages.trainer.stage import TrainerStage
from headrace.stages.trainer.thread_choice import ROUNDS, ThreadChoice


class Desk:
    """A trainer stage, its trainer, and what was reported."""

    def __init__(self, rows_per_update=10, max_steps=10**6, uses_all=True, trainer=RememberingTrainer, **options):
        self.reports = []
        self.statistics = RecordedStatistics()
        self.trainer = trainer("Walker", rows_per_update, uses_all)
        port = TrainerPort(self.reports.append)
        self.stage = TrainerStage(self.trainer, "Walker", max_steps, port=port, reports_each=True, **options)
        self.stage.start(StageContext("trainer", statistics=self.statistics))

    def take(self, *lengths, **options):
        """Versions of the policies that come of a batch."""
        updates = list(self.stage.process(trajectories(lengths, **options)))
        assert all(isinstance(update, PolicyUpdate) for update in updates)
        return [update.version for update in updates]

    @property
    def returned(self):
        return dict(self.reports[-1].returned)


def test_an_update_starts_as_soon_as_enough_rows_have_arrived():
    desk = Desk(rows_per_update=10)
    assert desk.take(4, 5) == []
    assert desk.take(1) == [1]
    assert desk.take(9) == []
    assert desk.take(9) == [2]
    assert desk.trainer.updates == [10, 18]


def test_a_trainer_that_keeps_the_rest_learns_as_often_as_it_can():
    desk = Desk(rows_per_update=10, uses_all=False)
    assert desk.take(25) == [1, 2]
    assert desk.stage.held_rows == 5


def test_rows_without_a_column_that_the_trainer_asks_for_are_refused_and_not_added():
    desk = Desk(columns=(Column("action_heads", "float32", (2,)),))
    with pytest.raises(StageError, match="Walker: the trainer needs the column action_heads"):
        desk.take(4)
    assert desk.trainer.step == 0
    whole = trajectories([4]).replace(action_heads=np.zeros((4, 2), np.float32))
    assert list(desk.stage.process(whole)) == []
    assert desk.trainer.step == 4


def test_by_default_updates_are_reported_at_once_and_intake_by_the_half_buffer():
    reports = []
    stage = TrainerStage(RememberingTrainer("Walker", 10), "Walker", 1000, port=TrainerPort(reports.append))
    for rows in (2, 2, 2, 3, 1, 4, 1):
        list(stage.process(trajectories([rows])))
    assert [(report.step, report.version) for report in reports] == [(6, 0), (10, 1), (15, 1)]


def test_arrivals_of_older_versions_are_reported_before_the_next_update():
    reports, calls = [], []
    port = TrainerPort(reports.append, soon=calls.append)
    stage = TrainerStage(RememberingTrainer("Walker", 10), "Walker", 1000, port=port)
    list(stage.process(trajectories([10], source=1)))
    reports.clear()
    list(stage.process(trajectories([1], source=1)))
    assert (reports, calls) == ([], []), "nobody waits for its own steps"
    list(stage.process(trajectories([1], source=2)))
    for call in calls:
        call()
    assert [report.arrived for report in reports] == [{1: 11, 2: 1}]
    list(stage.process(trajectories([1], source=2, first_version=1)))
    assert len(calls) == 1, "the present version's are in time in any case"
    list(stage.process(trajectories([7], source=2)))
    assert [(report.version, report.arrived) for report in reports[1:]] == [(1, {1: 11, 2: 9}), (2, {1: 11, 2: 9})]


# Credits. ------------------------------------------------------------------------------------------------------------


def test_credits_are_returned_when_their_steps_were_learned_from():
    desk = Desk(rows_per_update=10)
    desk.take(9, source=2)
    assert desk.returned == {}
    desk.take(3, source=5)
    assert desk.returned == {2: 9, 5: 3}


def test_steps_are_used_up_in_the_order_in_which_they_came():
    desk = Desk(rows_per_update=10, uses_all=False)
    desk.take(6, source=1)
    desk.take(6, source=2)
    assert desk.returned == {1: 6, 2: 4}
    desk.take(8, source=3)
    assert desk.returned == {1: 6, 2: 6, 3: 8}


def test_credits_of_a_batch_with_more_steps_than_credits_are_returned_in_proportion():
    """A custom stage can add steps for which no source was granted credits."""
    desk = Desk(rows_per_update=10, uses_all=False)
    batch = trajectories([8, 8], source=1)
    list(desk.stage.process(batch.replace(credits=np.array([8, 0], np.int32))))
    assert (desk.returned, desk.reports[-1].held) == ({1: 5}, 3)
    desk.take(4, source=2)
    assert (desk.returned, desk.reports[-1].held) == ({1: 8, 2: 4}, 0)


def test_a_batch_that_brings_only_episodes_is_not_trained_on():
    desk = Desk(rows_per_update=4)
    assert desk.take(returns=[7.0]) == []
    assert not desk.trainer.batches
    assert desk.reports[-1].recent_return == 7.0
    assert ("Walker", "Policy/Lag") not in desk.statistics.values


# max_steps. -----------------------------------------------------------------------------------------------------------


def test_a_stage_at_max_steps_drains_its_input_without_learning():
    desk = Desk(rows_per_update=10, max_steps=10)
    assert not desk.stage.done
    assert desk.take(10) == [1]
    assert desk.stage.done
    assert desk.reports[-1].done
    assert desk.take(30, source=4) == []
    assert desk.trainer.step == 10
    assert desk.returned == {0: 10, 4: 30}, "nobody upstream gets stuck"


def test_credits_of_held_rows_are_returned_at_max_steps():
    desk = Desk(rows_per_update=10, max_steps=9)
    assert desk.take(9, source=1) == []
    assert desk.returned == {1: 9}
    assert desk.reports[-1].held == 0
    assert desk.take(3, source=2) == []
    assert desk.returned == {1: 9, 2: 3}


# Statistics. ----------------------------------------------------------------------------------------------------------


def test_the_lag_of_what_comes_in_is_reported():
    desk = Desk(rows_per_update=4)
    for version in (0, 0, 1):
        desk.take(4, first_version=version)
    assert desk.statistics.values["Walker", "Policy/Lag"] == [0.0, 1.0, 1.0]


def test_steps_that_wait_for_an_update_count_with_their_lag_at_that_update():
    desk = Desk(rows_per_update=10, uses_all=False)
    desk.take(6, 6, first_version=0)
    desk.take(8, first_version=1)
    assert desk.statistics.values["Walker", "Policy/Lag"] == [0.0, 0.2]


def test_steps_of_before_a_resume_do_not_count_in_the_lag():
    desk = Desk(rows_per_update=10)
    desk.take(4)
    resumed = Desk(rows_per_update=10)
    resumed.stage.load_state_dict(desk.stage.state_dict())
    resumed.take(6, first_version=0)
    assert resumed.statistics.values["Walker", "Policy/Lag"] == [0.0]


def test_an_imitating_trainer_publishes_no_lag_or_return_statistics():
    class Imitating(RememberingTrainer):
        imitates = True

    desk = Desk(rows_per_update=4, trainer=Imitating, kept_returns=5)
    desk.take(4, first_version=7, returns=[10.0])
    assert {name for _, name in desk.statistics.values} == {
        "Pipeline/Update Duration",
        "Pipeline/Update Experiences",
    }
    assert desk.reports[-1].recent_return is None
    assert desk.reports[-1].returns == (10.0,), "lessons look at what is played"


def test_episodes_are_reported_with_the_names_ml_agents_gives_them():
    desk = Desk(strength=0.5)
    desk.take(2, returns=[10.0, 20.0])
    values = desk.statistics.values
    assert values["Walker", "Environment/Cumulative Reward"] == [10.0, 20.0]
    assert values["Walker", "Environment/Episode Length"] == [3, 3]
    assert values["Walker", "Policy/Extrinsic Reward"] == [5.0, 10.0]
    assert (desk.reports[-1].recent_return, desk.reports[-1].episodes) == (15.0, 2)


def test_the_recent_return_is_that_of_the_last_hundred_episodes():
    desk = Desk()
    assert desk.stage.episodes.recent_return is None
    desk.take(2, returns=[1000.0] * 50)
    desk.take(2, returns=[1.0] * 100)
    assert desk.stage.episodes.recent_return == 1.0


def test_the_return_of_a_whole_group_is_reported_once_and_only_of_the_learning_team():
    desk = Desk()
    batch = trajectories([2], returns=[1.0, 2.0, 3.0])
    of_groups = {
        "episode_learning": np.array([True, True, False]),
        "episode_group_returns": np.array([10.0, 20.0, 30.0], np.float32),
        "episode_group_over": np.array([False, True, True]),
    }
    batch = replace(batch, episodes={**batch.episodes, **of_groups})
    list(desk.stage.process(batch))
    assert desk.statistics.values["Walker", "Environment/Group Cumulative Reward"] == [20.0]
    assert desk.statistics.values["Walker", "Environment/Cumulative Reward"] == [1.0, 2.0]


def test_reports_contain_the_durations_of_collecting_and_learning():
    times = iter([10.0, 12.0, 15.0, 16.0, 16.0, 20.0])
    desk = Desk(rows_per_update=4, uses_all=False, clock=lambda: next(times))
    desk.take(4)
    assert (desk.reports[-1].collecting_s, desk.reports[-1].learning_s) == ((), ()), (
        "a run's first steps wait for its start"
    )
    desk.take(8)
    assert (desk.reports[-1].collecting_s, desk.reports[-1].learning_s) == ((3.0, 0.0), (1.0, 4.0))
    desk.take(3)
    assert desk.reports[-1].learning_s == (), "each is told once"


def test_each_update_reports_its_steps_and_the_mean_return():
    desk = Desk(rows_per_update=10)
    desk.take(10)
    assert desk.statistics.values["Walker", "Pipeline/Update Experiences"] == [10.0]
    assert ("Walker", "Pipeline/Update Mean Return") not in desk.statistics.values, "no episode has ended yet"
    batch = trajectories((10,), returns=(3.0, 5.0))
    list(desk.stage.process(batch))
    assert desk.statistics.values["Walker", "Pipeline/Update Mean Return"] == [4.0]


# Resuming and failing. ------------------------------------------------------------------------------------------------


def test_a_resumed_stage_continues_from_its_checkpoint():
    desk = Desk(rows_per_update=10)
    desk.take(12, returns=[3.0])
    desk.take(7, returns=[5.0])
    state = desk.stage.state_dict()
    resumed = Desk(rows_per_update=10)
    resumed.stage.load_state_dict(state)
    assert (resumed.trainer.step, resumed.trainer.version, resumed.stage.held_rows) == (19, 1, 7)
    assert resumed.stage.episodes.recent_return == 4.0
    assert resumed.take(3, source=6) == [2]
    assert resumed.returned == {-1: 7, 6: 3}, "rows that it brought along are accounted under a source of their own"


def test_a_resumed_stage_computes_with_the_threads_that_were_chosen():
    used = []

    def desk_with(threads):
        clock = count(step=0.5)  # each look at it is half a second later
        return Desk(rows_per_update=10, clock=lambda: next(clock), threads=ThreadChoice(threads, used.append))

    desk = desk_with([1, 2])
    for _ in range(2 + 2 * ROUNDS):
        desk.take(10)
    assert used == [1] + [1, 2] * ROUNDS + [1], "two threads are not faster by this clock"
    state = desk.stage.state_dict() | {"threads": 2}
    assert desk.stage.state_dict()["threads"] == 1
    resumed = desk_with([1, 2])
    resumed.stage.load_state_dict(state)
    resumed.take(10)
    assert used[-1] == 2
    elsewhere = desk_with([4])
    elsewhere.stage.load_state_dict(state)
    elsewhere.take(10)
    assert used[-1] == 4, "a number in the YAML counts"
    assert elsewhere.stage.state_dict()["threads"] is None


def test_a_resumed_stage_acts_by_the_policy_last_emitted():
    desk = Desk(rows_per_update=10)
    assert desk.stage.policy().version == 0
    desk.take(10)
    desk.take(5)
    resumed = Desk(rows_per_update=10)
    resumed.stage.load_state_dict(desk.stage.state_dict())
    policy = resumed.stage.policy()
    assert (policy.version, policy.step) == (1, 10), "not of step 15, by which nobody has acted"
    assert policy.weights.tolist() == [1.0]


def test_a_trainer_s_error_is_not_hidden():
    class Diverged(RememberingTrainer):
        def learn(self):
            raise NotFiniteError("Walker: the policy loss is nan at step 10")

    stage = TrainerStage(Diverged("Walker", 4), "Walker", 100)
    with pytest.raises(NotFiniteError, match="loss is nan"):
        list(stage.process(trajectories([4])))


# Frames and histograms. -----------------------------------------------------------------------------------------------


def with_frames(*frames, **columns):
    batch = trajectories([len(frames)])
    return batch.replace(env_frames=np.array(frames, np.int32), **columns)


def test_environment_steps_of_repeated_actions_are_counted_over_a_resume():
    desk = Desk(rows_per_update=3)
    list(desk.stage.process(with_frames(4, 1, 3)))
    resumed = Desk(rows_per_update=3)
    resumed.stage.load_state_dict(desk.stage.state_dict())
    list(resumed.stage.process(with_frames(2, 2, 2)))
    assert desk.statistics.values["Walker", "Environment/Frames"] == [8]
    assert resumed.statistics.values["Walker", "Environment/Frames"] == [14]
    assert desk.statistics.hows["Walker", "Environment/Frames"] == "last"


def test_a_sample_of_the_actions_is_reported_by_head():
    actions = ActionSpec(1, (3, 7), unbounded=(), continuous_names=("turn",), branch_names=("move", "step_mul"))
    desk = Desk(rows_per_update=6400, actions=actions)
    for begin in range(0, 6450, 50):
        rows = np.arange(begin, begin + 50)
        batch = trajectories([50]).replace(
            continuous_actions=(rows[:, None] / 1000).astype(np.float32),
            discrete_actions=np.stack([rows % 3, rows % 7], 1).astype(np.int32),
        )
        list(desk.stage.process(batch))
    values = {name: values for (_, name), values in desk.statistics.values.items() if name.startswith("action/")}
    sampled = np.arange(0, 6450, 200)  # as evenly as can be
    assert values["action/move"] == (sampled % 3).tolist()
    assert values["action/step_mul"] == (sampled % 7).tolist()
    assert np.allclose(values["action/turn"], np.minimum(sampled / 3000, 1)), "as the environment receives it"


def test_policies_of_a_replacement_have_higher_versions_than_those_of_the_lost_trainer():
    desk = Desk(rows_per_update=4)
    desk.take(4)
    state = desk.stage.state_dict()
    heir = Desk(rows_per_update=4)
    heir.stage.load_state_dict(state)
    heir.stage.number_above(7)
    assert heir.stage.policy().version == 8
    assert heir.take(4) == [9]
    assert (heir.reports[-1].version, heir.reports[-1].updates) == (9, 2), "the lost trainer's updates are lost"
    resumed = Desk(rows_per_update=4)
    resumed.stage.load_state_dict(heir.stage.state_dict())
    assert resumed.stage.policy().version == 9
    assert resumed.take(4) == [10]
