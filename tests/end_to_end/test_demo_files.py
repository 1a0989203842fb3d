"""Unity's demonstration files from end to end: written from a recording, and learned from in every way there is."""

from __future__ import annotations

import pytest
from run_configs import IMITATOR, INLINE, cartpole, changed, sac
from run_folders import streams, weights_digest
from runs import run_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunFailed


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A short run of PPO on CartPole: its stream, and the `.demo` that the command makes of it."""
    results = tmp_path_factory.mktemp("expert")
    run_here(cartpole(record__edges=["trainer"], **INLINE), results, "expert")
    demo = results / "expert.demo"
    assert main(["--to-demo", str(results / "expert" / "streams"), str(demo)]) == 0
    return streams(results / "expert")[0], demo


@pytest.fixture(scope="module")
def swung(tmp_path_factory):
    """The same of SAC on Pendulum."""
    results = tmp_path_factory.mktemp("swung")
    plain = sac(record__edges=["agent_processor"], behaviors__Pendulum__max_steps=300, **INLINE)
    run_here(plain, results, "expert")
    demo = results / "demos" / "Pendulum.demo"
    assert main(["--to-demo", str(results / "expert" / "streams"), str(demo.parent)]) == 0
    return demo


def imitating(demo):
    plain = {"behaviors": {"CartPole": changed(IMITATOR, {"hyperparameters__demo_path": str(demo)})}}
    return changed(plain, {**INLINE, "env_settings__seed": 3})


def test_a_demo_file_teaches_the_same_weights_as_its_recording(recorded, tmp_path, caplog):
    caplog.set_level("INFO")
    for name, source in zip(("stream", "demo"), recorded, strict=True):
        run_here(imitating(source), tmp_path, name)
    assert weights_digest(tmp_path / "demo") == weights_digest(tmp_path / "stream")
    assert "demonstrated steps in 96 episodes from" in caplog.text
    assert list((tmp_path / "demo" / "CartPole").glob("CartPole-*.pt"))


SIGNALS = {"gail": {"demo_path": "", "network_settings": {"hidden_units": 16, "num_layers": 1}, "use_actions": True}}


def gail_of(demo):
    return changed(SIGNALS, {"gail__demo_path": str(demo)})


def test_ppo_takes_a_demo_file_for_cloning_and_gail(recorded, tmp_path):
    plain = cartpole(
        behaviors__CartPole__max_steps=1000,
        behaviors__CartPole__reward_signals=gail_of(recorded[1]),
        behaviors__CartPole__behavioral_cloning={"demo_path": str(recorded[1].parent / "*.demo"), "steps": 1000},
        **INLINE,
    )
    statistics = told(run_here(plain, tmp_path, "run"), "CartPole")
    assert {"Losses/GAIL Loss", "Policy/Gail Reward", "Losses/Pretraining Loss"} <= statistics


def test_a_demo_file_of_another_behaviour_is_refused_before_anything_is_learned(swung, tmp_path):
    plain = cartpole(behaviors__CartPole__reward_signals=gail_of(swung), **INLINE)
    with pytest.raises(
        RunFailed, match=r"Pendulum\.demo: demonstrations of Pendulum do not fit CartPole: observation 0"
    ):
        run_here(plain, tmp_path, "run")


def told(result, behavior):
    """The names of all statistics that a run has written."""
    events = EventAccumulator(str(result.folder / behavior))
    events.Reload()
    return set(events.Tags()["scalars"])
