"""A trainer that begins anew: its steps and versions are counted on, older rows are not its own."""

from __future__ import annotations

import numpy as np
from fakes import RecordedStatistics, RememberingTrainer, trajectories

from headrace.stages.stage import StageContext
from headrace.stages.trainer.report import TrainerPort
from headrace.stages.trainer.stage import TrainerStage


class Learner(RememberingTrainer):
    """One whose policy is the weights that it was given."""

    weights = 0.0

    def take_weights(self, tensors):
        self.weights = float(tensors["version"][0])


class Desk:
    """A stage whose trainer may begin anew, and what was reported."""

    def __init__(self, reports_each=True):
        self.reports, self.made = [], []
        port = TrainerPort(self.reports.append)
        make = self._make
        self.stage = TrainerStage(make(), "Walker", 10**6, port=port, reports_each=reports_each, make_trainer=make)
        self.stage.start(StageContext("trainer", statistics=RecordedStatistics()))

    def _make(self):
        self.made.append(Learner("Walker", 10))
        return self.made[-1]

    def take(self, *lengths, **options):
        return [(each.version, each.step) for each in self.stage.process(trajectories(lengths, **options))]

    @property
    def returned(self):
        return sum(dict(self.reports[-1].returned).values())


def test_a_reset_trainer_continues_the_numbers_of_steps_and_versions():
    desk = Desk()
    assert desk.take(10) == [(1, 10)]
    desk.stage.takeover.want(1, None)
    assert desk.take(4, first_version=1) == [(2, 10)], (
        "the new trainer's first policy; rows by an older one are dropped"
    )
    assert desk.take(10, first_version=2) == [(3, 20)]
    assert (desk.stage.version, desk.stage.step) == (3, 20)
    assert (desk.made[1].version, desk.made[1].step) == (1, 10)
    desk.stage.takeover.want(2, None)
    assert desk.take(10, first_version=4) == [(4, 20), (5, 30)]


def test_credits_of_rows_of_the_former_trainer_are_returned():
    desk = Desk()
    desk.take(7)
    desk.stage.takeover.want(1, None)
    desk.take(4, first_version=0)
    assert desk.stage.held_rows == 0
    assert desk.returned == 11
    desk.take(3, 5, first_version=1)
    assert desk.stage.held_rows == 8
    assert desk.returned == 11
    assert [batch.num_rows for batch in desk.made[1].batches] == [8]


def test_credits_returned_without_an_update_are_reported_immediately():
    desk = Desk(reports_each=False)
    desk.take(4)
    desk.stage.takeover.want(1, None)
    desk.take(1, first_version=0)
    assert desk.returned == 5, "an actor that has used all of its credits waits for them"
    desk.take(1, first_version=1)
    desk.take(1, first_version=0)
    assert desk.returned == 6


def test_a_reset_learner_can_start_with_the_weights_of_another_one():
    desk = Desk()
    desk.take(10)
    desk.stage.takeover.want(1, np.array([42.0], np.float32))
    desk.take(1)
    assert [trainer.weights for trainer in desk.made] == [0.0, 42.0]


def test_a_stage_resumes_after_a_reset_of_its_trainer():
    desk, resumed = Desk(), Desk()
    desk.take(10)
    desk.stage.takeover.want(1, None)
    desk.take(13, first_version=2)
    resumed.stage.load_state_dict(desk.stage.state_dict())
    assert (resumed.stage.version, resumed.stage.step) == (desk.stage.version, desk.stage.step) == (3, 23)
    assert resumed.stage.updates == desk.stage.updates == 2
    assert resumed.stage.policy().version == desk.stage.policy().version
    assert resumed.take(10, first_version=1) == [], "they are not its own there, either"
    assert resumed.take(10, first_version=3) == desk.take(10, first_version=3) == [(4, 33)]
