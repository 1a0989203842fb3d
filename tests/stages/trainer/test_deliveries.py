"""Trajectories come to a trainer once and in order; the check tells what does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import RememberingTrainer, trajectories

from headrace.queues.messages import TrajectoryBatch
from headrace.stages.trainer.deliveries import Deliveries, DeliveryError
from headrace.stages.trainer.stage import TrainerStage


def numbered(*numbers: int, source: int = 0, behavior_id: str = "Walker") -> TrajectoryBatch:
    batch = trajectories([1] * len(numbers), behavior_id, source)
    return replace(batch, trajectories={**batch.trajectories, "numbers": np.array(numbers, np.int64)})


def test_consecutive_numbers_of_each_source_and_behaviour_id_pass():
    check = Deliveries(complete=True).check
    for source in (0, 1):
        for team in ("Ball?team=0", "Ball?team=1"):
            for part in numbered(0, 1, 2, 3, source=source, behavior_id=team).split(1):
                check(part)
            check(numbered(4, source=source, behavior_id=team))
    check(trajectories([3]))  # made by a custom stage: nothing is known of it
    check(numbered())


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("late", [(3,), (2, 3), (4, 4), (0,)])
def test_a_duplicate_or_unordered_trajectory_is_refused(complete: bool, late: tuple[int, ...]):
    check = Deliveries(complete).check
    check(numbered(0, 1, 2, 3, source=7))
    first = late[0]
    with pytest.raises(DeliveryError, match=rf"Walker: trajectory {first} of actor 7 is a duplicate or out of order"):
        check(numbered(*late, source=7))


def test_a_missing_trajectory_is_refused_if_all_must_arrive():
    for numbers in [(1,), (0, 2)]:
        Deliveries(complete=False).check(numbered(*numbers))
        with pytest.raises(DeliveryError, match=rf"{numbers[-1]} of actor 0 arrived, but {numbers[-1] - 1} did not"):
            Deliveries(complete=True).check(numbered(*numbers))


def test_a_trainer_learns_nothing_from_a_batch_that_comes_twice():
    trainer = RememberingTrainer("Walker", 10)
    stage = TrainerStage(trainer, "Walker", 1000, deliveries=Deliveries(complete=True))
    list(stage.process(numbered(0, 1)))
    with pytest.raises(DeliveryError, match="is a duplicate"):
        list(stage.process(numbered(0, 1)))
    assert trainer.step == 2
