"""Learners of a league that learn in turns, in virtual time: whoever is lost and whenever, the run goes on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from fakes import Cast
from flow_harness import Flow, Scenario, Trained, run_flow

from headrace.config import RunConfig

ROWS, TURN = 8, 40
NAMES = ("Duel.main", "Duel.other")


@dataclass(frozen=True)
class Turns(Scenario):
    """A league of two learners that learn in turns, each with an actor."""

    def config(self) -> RunConfig:
        """Return what a user would write for it."""
        learner = {"matches": [{"match": "self"}, {"match": "pfsp"}], "freeze": {"at_most": 60}}
        league = {"learning": "turns", "turn_steps": TURN, "learners": {"main": learner, "other": learner}}
        behavior = {
            "trainer_type": "flow_harness:CountingTrainer",
            "hyperparameters": {"buffer_size": ROWS, "rows": ROWS, "uses_all": True},
            "max_steps": 200,
            "time_horizon": 5,
            "checkpoint_interval": self.checkpoint_interval,
            "league": league,
        }
        plain = super().config().to_plain()
        del plain["pipeline"]["stages"][1:]
        return RunConfig.from_plain({**plain, "behaviors": {"Duel": behavior}})


SCENARIO = Turns(
    tuple(Trained(name, ROWS, 5, 25) for name in NAMES),
    (Cast("Duel?team=0"), Cast("Duel?team=1")),
    replicas=2,
    game_length=4,
    num_envs=2,
    apart=True,
    checkpoint_interval=30,
    slowness_s=(1e-4,),
)


async def until(flow: Flow, name: str, step: int) -> None:
    """Wait until a learner has made this step."""
    while name not in flow.trainers or flow.coordinator.behaviors[name].step < step:
        flow.learned.clear()
        await flow.learned.wait()


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("whose", "step", "victim"),
    [
        ("Duel.main", 20, "Duel.main"),
        ("Duel.other", 60, "Duel.main"),
        pytest.param("Duel.main", 60, "Duel.other", marks=pytest.mark.slow),
        pytest.param("Duel.other", 100, "Duel.other", marks=pytest.mark.slow),
        pytest.param("Duel.main", 200, "Duel.main", id="it had come to its end"),
    ],
)
def test_a_learner_that_is_lost_in_its_turn_or_out_of_it_is_replaced_and_all_come_to_their_end(
    whose, step, victim, caplog
):
    async def kill(flow: Flow) -> None:
        await until(flow, whose, step)
        flow.network.kill(f"learner-{victim}")

    flow = run_flow(SCENARIO, kill)
    assert [flow.coordinator.behaviors[name].step >= 200 for name in NAMES] == [True, True]
    assert f"learner-{victim} continues from" in caplog.text


@pytest.mark.lengthy
@pytest.mark.parametrize("actor", ["actor-0", pytest.param("actor-1", marks=pytest.mark.slow)])
def test_an_actor_that_is_lost_is_replaced_and_all_come_to_their_end(actor):
    async def kill(flow: Flow) -> None:
        for step in (20, 60, 100):
            await until(flow, "Duel.main", step)
            flow.network.kill(actor)

    flow = run_flow(SCENARIO, kill)
    assert [flow.coordinator.behaviors[name].step >= 200 for name in NAMES] == [True, True]


def test_a_learner_whose_turn_it_is_and_that_is_not_started_again_ends_the_run_by_its_name():
    async def kill(flow: Flow) -> None:
        for step in (20, 60):
            await until(flow, "Duel.main", step)
            flow.network.kill("learner-Duel.main")

    flow = run_flow(Turns(**{**vars(SCENARIO), "restarts": 1}), kill, fails=True)
    message = flow.coordinator.shutdown.failure.message
    assert message.startswith("the process of learner-Duel.main ended with status 1. It is not restarted again")
