"""Results and summaries count the updates that trainers really make."""

from __future__ import annotations

import pytest
from run_configs import INLINE, cartpole, sac
from runs import run_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.pipeline.run import load


def last(folder, behavior, tag):
    return EventAccumulator(str(folder / behavior)).Reload().Scalars(tag)[-1].value


def test_a_run_of_sac_that_ends_before_its_first_gradient_step_counts_no_update(tmp_path):
    plain = sac(behaviors__Pendulum__hyperparameters__buffer_init_steps=10_000, **INLINE)
    result = run_here(plain, tmp_path, "run")
    behavior = result.behaviors["Pendulum"]
    assert behavior.updates == 0
    assert behavior.version > 0, "its policies are still published, with versions of their own"
    assert last(result.folder, "Pendulum", "Pipeline/Updates") == 0
    assert load(result.folder).behaviors["Pendulum"].updates == 0


def test_the_updates_of_sac_are_counted_from_its_first_gradient_step_and_on_after_a_resume(tmp_path):
    counts = []
    for max_steps in (400, 600):
        plain = sac(
            behaviors__Pendulum__max_steps=max_steps,
            behaviors__Pendulum__hyperparameters__buffer_init_steps=200,
            **INLINE,
        )
        result = run_here(plain, tmp_path, "run", resume=max_steps > 400)
        counts.append(result.behaviors["Pendulum"])
    assert 0 < counts[0].updates < counts[0].version
    assert counts[0].updates < counts[1].updates < counts[1].version
    assert load(result.folder).behaviors["Pendulum"].updates == counts[1].updates


@pytest.mark.parametrize("changes", [{}, {"behaviors__CartPole__trainer_type": "impala"}], ids=["ppo", "impala"])
def test_every_call_of_an_on_policy_trainer_is_an_update(changes, tmp_path):
    plain = cartpole(**changes, **INLINE)
    if changes:
        plain["behaviors"]["CartPole"]["hyperparameters"] = {}
    behavior = run_here(plain, tmp_path, "run").behaviors["CartPole"]
    assert behavior.updates == behavior.version > 0
