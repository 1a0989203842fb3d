"""What a configuration leaves open is chosen by cores and by the time of environments' steps, and said in a line."""

from __future__ import annotations

import pytest
import yaml

from headrace.config import RunConfig
from headrace.pipeline.main.run_shape import TICK_S, ProbeError, choose_shape
from headrace.pipeline.run_folder.names import CONFIGURATION

GYM = {"kind": "gymnasium", "id": "CartPole-v1"}


class Machine:
    """A machine with so many cores, on which a tick takes `fixed_s` and `each_s` for each instance.

    Learning from the tick takes `learning_s` for each instance. An actor takes `start_s` to start, and its process
    `memory`, of which the machine has 1.
    """

    def __init__(self, cores, fixed_s=0.0, each_s=0.0, learning_s=0.0, answers=True, start_s=0.0, memory=0.0):
        self.cores, self.fixed_s, self.each_s, self.answers = cores, fixed_s, each_s, answers
        self.learning_s, self.start_s, self.memory = learning_s, start_s, memory
        self.asked = []

    def measure(self, config, function, counts, gain, budget_s, timeout_s):
        self.asked.append(counts)
        if not self.answers:
            raise ProbeError("it hangs")
        fixed = self.start_s, self.memory
        return [(count, self.fixed_s + self.each_s * count, self.learning_s * count, *fixed) for count in counts]

    def choose(self, num_envs=64, hosts=None, **sections):
        """Return the configuration with the machine's choices, and the line that explains them."""
        return choose_shape(config_of(num_envs, hosts, **sections), self.cores, self.measure, 1.0)


def config_of(num_envs=64, hosts=None, **sections):
    environment = sections.pop("environment", {**GYM, "num_envs": num_envs})
    pipeline = {"hosts": hosts or {}, **sections.pop("pipeline", {})}
    plain = {"behaviors": {"B": {}}, "environment": environment, "pipeline": pipeline, **sections}
    return RunConfig.from_plain(plain)


def shape(config):
    hosts = config.pipeline.hosts
    return hosts.actors.kind, hosts.learners.kind, hosts.evaluation.kind, hosts.actors.replicas


@pytest.mark.parametrize(("cores", "kind"), [(1, "inline"), (2, "process"), (64, "process")])
def test_hosts_are_processes_if_there_is_a_second_core(cores, kind):
    found, said = Machine(cores).choose(num_envs=1)
    assert shape(found) == (kind, kind, kind, 1)
    assert f"({cores} core" in said
    assert "\n" not in said


def test_the_line_names_no_learners_if_nothing_learns():
    _, said = Machine(2).choose(num_envs=1, checkpoint_settings={"inference": True})
    assert "actors in separate processes" in said


def test_configured_hosts_are_kept_without_a_log_line():
    machine = Machine(1, each_s=1.0)
    pinned = {"actors": {"kind": "process", "replicas": 2}, "learners": {"kind": "process"}}
    found, said = machine.choose(hosts=pinned)
    assert shape(found) == ("process", "process", "process", 2)
    assert not said
    assert not machine.asked


@pytest.mark.parametrize(
    ("cores", "each_s", "actors"),
    [
        (1, 1e-3, 1),
        (2, 1e-3, 2),  # one of them on the learner's core, while the learner waits
        (3, 1e-3, 2),  # 3 does not divide 64
        (8, 1e-3, 8),
        (9, 1e-6, 1),  # a tick costs more than its steps
        (9, TICK_S / 64, 8),
        (9, TICK_S / 256, 1),  # two would be faster by a ninth alone
    ],
)
def test_actors_share_the_environments_if_their_steps_take_long_and_cores_are_free(cores, each_s, actors):
    found, _ = Machine(cores, each_s=each_s).choose(num_envs=64)
    assert found.pipeline.hosts.actors.replicas == actors
    assert found.environment.num_envs * actors == 64


@pytest.mark.parametrize(("cores", "actors"), [(2, 1), (3, 2), (5, 4)])
@pytest.mark.parametrize(("trainer", "learning_s"), [("sac", 0.0), ("ppo", 1e-3)])
def test_a_learner_that_is_always_busy_keeps_its_core(cores, actors, trainer, learning_s):
    machine = Machine(cores, each_s=1e-3, learning_s=learning_s)
    found, said = machine.choose(num_envs=64, behaviors={"B": {"trainer_type": trainer}})
    assert found.pipeline.hosts.actors.replicas == actors
    assert ("because learning from a step takes longer than the step" in said) == (trainer == "ppo" and actors == 1)


@pytest.mark.parametrize(("steps", "start_s", "actors"), [(64_000, 0.0, 8), (64_000, 60.0, 1), (64_000_000, 60.0, 8)])
def test_more_actors_start_only_for_runs_that_are_long_enough(steps, start_s, actors):
    """1,000 ticks of 64 ms take a minute, with eight actors 8 s; each further actor's start costs 7.5 s."""
    machine = Machine(8, each_s=1e-3, start_s=start_s)
    found, said = machine.choose(num_envs=64, behaviors={"B": {"trainer_type": "ppo", "max_steps": steps}})
    assert found.pipeline.hosts.actors.replicas == actors
    assert ("take time to start" in said) == (actors == 1)


@pytest.mark.parametrize(("memory", "actors"), [(0.0, 8), (0.125, 4), (0.24, 2), (0.5, 1)])
def test_actors_use_half_of_the_memory_at_most(memory, actors):
    found, said = Machine(8, each_s=1e-3, memory=memory).choose(num_envs=64)
    assert found.pipeline.hosts.actors.replicas == actors
    assert ("memory suffices for no more" in said) == (actors < 8)


def test_the_line_names_the_one_actor_of_a_deterministic_run():
    _, said = Machine(8).choose(pipeline={"deterministic": True})
    assert "1 actor, because the run is deterministic" in said


@pytest.mark.parametrize(("half_s", "actors"), [(0.015, 16), (0.010, 16), (0.0, 16), (0.029, 1), (0.1, 1)])
def test_instances_that_slow_each_other_down_count_as_much_as_their_mean(half_s, actors):
    costs = [(8, half_s, 0.0, 0.0, 0), (16, 0.030, 0.0, 0.0, 0)]
    found, said = choose_shape(config_of(16), 16, lambda *asked, **limits: costs)
    assert found.pipeline.hosts.actors.replicas == actors
    assert f"{actors} actor" in said


@pytest.mark.parametrize(
    "sections",
    [
        {"pipeline": {"deterministic": True}},
        {"pipeline": {"inference": "central"}},
        {"pipeline": {"stages": [{"use": "my_module:Stage"}]}},
        {"hosts": {"actors": {"kind": "inline"}}},
        {"environment": {"kind": "builtin", "id": "Volley", "num_envs": 64}},
        {"environment": None, "env_settings": {"env_path": "build", "num_envs": 64}},
        {"num_envs": 1},
    ],
)
def test_a_single_actor_is_kept_if_several_would_change_the_run(sections):
    machine = Machine(64, each_s=1.0)
    found, _ = machine.choose(**sections)
    assert found.pipeline.hosts.actors.replicas == 1
    assert not machine.asked


@pytest.mark.parametrize(
    ("each_s", "hyperparameters", "number"),
    [
        (1.0, {}, 1),
        (TICK_S / 10, {}, 64),
        (TICK_S / 2, {}, 16),
        (TICK_S / 10, {"buffer_size": 512, "batch_size": 64}, 16),  # 32 rows of each in an update
    ],
)
def test_the_number_of_environments_grows_while_that_pays(each_s, hyperparameters, number):
    behaviors = {"B": {"trainer_type": "ppo", "hyperparameters": hyperparameters}}
    found, said = Machine(2, each_s=each_s).choose(num_envs="auto", behaviors=behaviors)
    assert found.environment.num_envs * found.pipeline.hosts.actors.replicas == number
    assert f"num_envs {number}" in said


def test_there_are_as_many_programs_as_cores_in_addition_to_the_learners():
    machine = Machine(8)
    found, _ = machine.choose(environment=None, env_settings={"env_path": "build", "num_envs": "auto"})
    assert found.env_settings.num_envs == 7
    assert not machine.asked


def test_an_environment_that_gives_no_answer_is_left_to_the_run_to_report():
    found, said = Machine(8, answers=False).choose(num_envs="auto")
    assert found.environment.num_envs == 1
    assert found.pipeline.hosts.actors.replicas == 1
    assert "could not be measured" in said


def test_a_resumed_run_keeps_what_was_chosen_on_whatever_machine(tmp_path):
    where = {"results_dir": str(tmp_path), "run_id": "r"}
    first, _ = Machine(4, each_s=1e-3).choose(checkpoint_settings=where)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / CONFIGURATION).write_text(yaml.safe_dump(first.to_plain()), encoding="utf-8")
    machine = Machine(1)
    again, _ = machine.choose(checkpoint_settings={**where, "resume": True})
    assert shape(again) == shape(first) == ("process", "process", "process", 4)
    assert again.environment.num_envs == 16
    assert not machine.asked
    other, _ = machine.choose(num_envs=32, checkpoint_settings={**where, "resume": True})
    assert other.environment.num_envs * other.pipeline.hosts.actors.replicas == 32


@pytest.mark.lengthy
def test_a_real_environment_is_measured_in_a_separate_process():
    small_updates = {"B": {"trainer_type": "ppo", "hyperparameters": {"buffer_size": 64, "batch_size": 32}}}
    found, said = choose_shape(config_of("auto", behaviors=small_updates), 2)
    assert found.environment.num_envs == 2
    assert "s per step (" in said
