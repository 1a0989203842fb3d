"""The sections beside `behaviors`: defaults, what they take from each other, and what is refused."""

from __future__ import annotations

import pytest

from headrace.config import (
    Curriculum,
    EngineSettings,
    EnvSettings,
    MultiRangeSampler,
    RunConfig,
    StagePlacement,
    UniformSampler,
)
from headrace.config.pipeline import PipelineSettings
from headrace.config.sections import CheckpointSettings, ReplaySettings

ONE = "behaviors: {B: {}}\n"
TWO = "behaviors: {B: {}, C: {}}\n"


@pytest.mark.parametrize(
    ("section", "defaults"),
    [
        (EnvSettings, {"base_port": 5005, "num_envs": 1, "num_areas": 1, "timeout_wait": 60, "seed": -1}),
        (EnvSettings, {"max_lifetime_restarts": 10, "restarts_rate_limit_n": 1, "restarts_rate_limit_period_s": 60}),
        (EngineSettings, {"width": 84, "height": 84, "quality_level": 5, "time_scale": 20.0, "no_graphics": False}),
        (EngineSettings, {"target_frame_rate": -1, "capture_frame_rate": 60, "no_graphics_monitor": False}),
        (CheckpointSettings, {"run_id": "ppo", "resume": False, "force": False, "results_dir": "results"}),
    ],
)
def test_the_sections_of_ml_agents_have_its_defaults(section, defaults):
    assert defaults.items() <= section().model_dump().items()


def test_optional_sections_are_none_by_default(load):
    config = load(ONE)
    assert (config.environment, config.evaluation, config.record, config.replay) == (None, None, None, None)
    assert (config.torch_settings.device, config.debug, config.environment_parameters) == (None, False, None)


def test_evaluation_is_hosted_as_actors_are_unless_it_says_otherwise():
    hosts = PipelineSettings.model_validate({"hosts": {"actors": {"kind": "inline"}}}).hosts
    assert (hosts.evaluation.kind, hosts.replay.kind, hosts.replay.replicas) == ("inline", None, 1)
    given = {"actors": {"kind": "inline"}, "evaluation": {"kind": "process"}}
    assert PipelineSettings.model_validate({"hosts": given}).hosts.evaluation.kind == "process"


def test_deterministic_means_inline_hosts_and_no_lag():
    pipeline = PipelineSettings.model_validate({"deterministic": True})
    assert (pipeline.hosts.actors.kind, pipeline.hosts.learners.kind) == ("inline", "inline")
    assert pipeline.max_policy_lag == 0
    assert PipelineSettings.model_validate({"deterministic": True, "max_policy_lag": "auto"}).max_policy_lag == 0


@pytest.mark.parametrize("listen", ["all", "0.0.0.0", "'::'", "192.168.1.5"])
def test_a_port_that_other_machines_reach_is_warned_of(load, listen):
    (warning,) = load(ONE + f"env_settings: {{env_path: game, listen: {listen}}}\n").warnings
    assert "env_settings.listen: lets any machine that can reach this one connect in place of Unity" in warning


@pytest.mark.parametrize("listen", ["localhost", "127.0.0.1", "'::1'", "127.0.0.9"])
def test_a_port_of_this_machine_alone_is_not_warned_of(load, listen):
    assert not load(ONE + f"env_settings: {{env_path: game, listen: {listen}}}\n").warnings


def test_the_number_of_environments_comes_from_env_settings_unless_given(load):
    environment = "environment: {kind: gymnasium, id: CartPole-v1%s}\nenv_settings: {num_envs: 3}\n"
    assert load(ONE + environment % "").environment.num_envs == 3
    assert load(ONE + environment % ", num_envs: 8").environment.num_envs == 8


def test_kind_unity_says_the_same_as_no_section(load):
    unity = "environment: {kind: unity%s}\nenv_settings: {env_path: game, num_envs: 3}\n"
    config, bare = load(ONE + unity % ""), load(ONE + "env_settings: {env_path: game, num_envs: 3}\n")
    assert (config.environment, config.env_settings) == (None, bare.env_settings)
    assert load(ONE + unity % ", num_envs: 8").env_settings.num_envs == 8


def test_kind_mlagents_names_its_behaviors_itself(load):
    config = load(ONE + "environment: {kind: mlagents, factory: 'mine:make', options: {size: 3}, num_envs: 2}\n")
    assert config.environment.behavior is None
    assert RunConfig.from_plain(config.to_plain()).environment == config.environment


def test_the_behavior_of_an_environment_is_the_only_one_unless_given(load):
    environment = "environment: {kind: gymnasium, id: CartPole-v1%s}\n"
    assert load(ONE + environment % "").environment.behavior == "B"
    assert load(TWO + environment % ", behavior: C").environment.behavior == "C"
    assert load("default_settings: {}\n" + environment % ", behavior: X").environment.behavior == "X"


def test_a_warning_of_silence_comes_no_later_than_the_end():
    settings = PipelineSettings(supervision={"learners": {"end_s": 5}})
    assert settings.supervision.learners.warn_s == 5


def test_a_stage_is_called_as_its_class_unless_it_has_a_name():
    placement = {"use": "my.stages:Clip.Reward", "with": {"limit": 1.0}, "behaviors": ["B"]}
    stage = StagePlacement.model_validate(placement)
    assert (stage.name, stage.with_, stage.behaviors) == ("Clip.Reward", {"limit": 1.0}, ("B",))
    assert (stage.after, stage.host) == ("agent_processor", None)


def test_statistics_writers_are_names_or_have_arguments(load):
    config = load(ONE + "pipeline: {statistics_writers: [csv, {use: 'my.writers:Json', with: {file: a.json}}]}")
    csv, json = config.pipeline.statistics_writers
    assert (csv.use, json.use, json.with_) == ("csv", "my.writers:Json", {"file": "a.json"})


@pytest.mark.parametrize(("given", "taken"), [("max", "max"), ("realtime", "realtime"), (2, 2.0), ("1e1", 10.0)])
def test_replay_has_a_speed(given: object, taken: object):
    assert ReplaySettings.model_validate({"streams": ["a*"], "speed": given}).speed == taken


def test_a_stage_may_follow_the_ghost_of_a_behavior_with_self_play(load):
    config = load("behaviors: {B: {self_play: {}}}\npipeline: {stages: [{use: 'a:B', after: ghost}]}")
    assert config.pipeline.stages[0].after == "ghost"


def test_parameters_are_numbers_samplers_and_curricula(load):
    config = load(
        """
        behaviors: {B: {}}
        environment_parameters:
          gravity: 9.81
          mass: {sampler_type: uniform, sampler_parameters: {min_value: 1, max_value: 2}}
          height:
            curriculum:
              - name: low
                value: 1.5
                completion_criteria: {behavior: B, measure: progress, threshold: 0.5}
              - name: any
                value: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0, 1], [3, 4]]}}
        """
    )
    assert config.environment_parameters["gravity"] == 9.81
    mass, height = config.environment_parameters["mass"], config.environment_parameters["height"]
    assert isinstance(mass, UniformSampler)
    assert (mass.sampler_parameters.max_value, mass.sampler_parameters.seed) == (2.0, -1)
    assert isinstance(height, Curriculum)
    criteria = height.curriculum[0].completion_criteria
    assert (criteria.min_lesson_length, criteria.signal_smoothing, criteria.require_reset) == (0, True, False)
    size = height.curriculum[1].value
    assert isinstance(size, MultiRangeSampler)
    assert size.sampler_parameters.intervals == ((0.0, 1.0), (3.0, 4.0))


@pytest.mark.parametrize("word", ["Elo", "elo", "ELO"])
def test_a_lesson_may_end_by_the_rating_of_self_play(load, word):
    criteria = f"completion_criteria: {{behavior: B, measure: {word}, threshold: 1300}}"
    lessons = f"[{{name: a, value: 1, {criteria}}}, {{name: b, value: 2}}]"
    config = load(f"behaviors: {{B: {{self_play: {{}}}}}}\nenvironment_parameters: {{h: {{curriculum: {lessons}}}}}")
    assert config.environment_parameters["h"].curriculum[0].completion_criteria.measure == "Elo"


CARTPOLE = "environment: {kind: gymnasium, id: CartPole-v1%s}"
MISTAKES = [
    ("environment: {}", "environment.kind: is required but missing: `builtin`"),
    ("environment: {kind: gymnasum, id: A}", "environment.kind: 'gymnasum' is not valid; expected 'builtin',"),
    ("environment: {kind: unity, id: A}", "environment.id: can't be combined with kind 'unity', only with kinds"),
    ("environment: {kind: mlagents}", "environment: needs 'factory', which names the environment to create; add a"),
    ("environment: {kind: gymnasium}", "environment: needs 'id' or 'factory', which names the environment to create;"),
    (CARTPOLE % ", factory: 'a:b'", "environment.factory: can't be combined with 'id'; keep one of the two"),
    (CARTPOLE % ", behavior: D", "environment.behavior: 'D' is not listed under behaviors; listed: B"),
    ("environment: {kind: gymnasium, factory: a.b}", "environment.factory: 'a.b' is not valid; expected module:Name"),
    ("environment: {kind: builtin, id: V, factory: 'a:b'}", "environment.factory: can't be combined with kind"),
    ("env_settings: {num_envs: 2}", "env_settings.num_envs: 2 environments need a program to start: add 'environment'"),
    ("pipeline: {hosts: {actors: {replicas: 2}}}", "pipeline.hosts.actors.replicas: 2 actors with separate"),
    ("env_settings: {env_path: a, side_channels: [b]}", "env_settings.side_channels.0: 'b' is not valid; expected"),
    ("env_settings: {env_path: a, base_port: 65530, num_envs: 10}", "env_settings.base_port: 65530 leaves too few"),
    ("env_settings: {env_path: a, num_envs: 300}", "env_settings.num_envs: 300 exceeds the limit of 256 environments"),
    ("env_settings: {listen: my-host}", "env_settings.listen: 'my-host' is not valid; expected localhost (this"),
    ("env_settings: {base_port: 65536}", "env_settings.base_port: 65536 is out of range; expected a number at most"),
    ("environment_parameters: {größe: 1}", "environment_parameters.größe: 'größe' is not ASCII, and Unity would read"),
    ("env_settings: {env_args: --fast}", "env_settings.env_args: '--fast' is not valid; expected a list"),
    ("env_settings:", "env_settings: an empty value (null) is not valid; expected a map of keys and values; give it"),
    ("engine_settings: {widht: 1}", "engine_settings.widht: unknown key; did you mean 'width'?"),
    ("checkpoint_settings: {run_id: a/b}", "checkpoint_settings.run_id: 'a/b' is not a valid folder name"),
    ("torch_settings: {device: gpu}", "torch_settings.device: 'gpu' is not a torch device; expected a name like"),
    ("debug: 'true'", "debug: 'true' is not valid; expected true or false; write true, without quotes"),
    ("monitor: {port: 1}", "monitor.port: unknown key; expected one of control, listen"),
    ("evaluation: {every: 5}", "evaluation: needs separate environments, but the Unity Editor is a single environment"),
    (CARTPOLE % "" + "\nevaluation: {episodes: 5}", "evaluation.every: is required but missing"),
    ("record: {edges: [trainers]}", "record.edges.0: 'trainers' is not valid; expected 'agent_processor' or 'trai"),
    ("record: {behaviors: B}", "record.behaviors: 'B' is not valid; expected 'all' or a list of behaviour names"),
    ("record: {behaviors: [D]}", "record.behaviors.0: 'D' is not listed under behaviors"),
    ("replay: {streams: []}", "replay.streams: is empty; expected at least one"),
    ("replay: {streams: [a], speed: fast}", "replay.speed: 'fast' is not valid; expected 'max', 'realtime', or a"),
    ("pipeline: {max_policy_lag: -1}", "pipeline.max_policy_lag: -1 is not valid; expected 'auto' or a whole number"),
    ("pipeline: {deterministic: true, max_policy_lag: 1}", "pipeline.max_policy_lag: 1 conflicts with"),
    ("pipeline: {deterministic: true, hosts: {learners: {kind: process}}}", "pipeline.hosts.learners.kind: 'process'"),
    ("pipeline: {hosts: {actors: {resources: {gpus: 1}}}}", "pipeline.hosts.actors.resources: hosts of kind"),
    (
        "pipeline: {hosts: {actors: {kind: ray, resources: {custom: {licence: one}}}}}",
        "pipeline.hosts.actors.resources.custom: 'licence' is 'one'; expected a non-negative number",
    ),
    ("pipeline: {hosts: {actors: {kind: thread}}}", "pipeline.hosts.actors.kind: 'thread' is not valid; expected"),
    ("pipeline: {hosts: {replay: {kind: process}}}", "pipeline.hosts.replay.kind: has no effect: only trainer_type"),
    ("pipeline: {queues: {policies: {maxlen: 1}}}", "pipeline.queues.policies: unknown key"),
    ("pipeline: {deterministic: true, hosts: {actors: {replicas: 2}}}", "pipeline.hosts.actors.replicas: 2 conflicts"),
    ("pipeline: {stages: [{use: my.stages.Clip}]}", "pipeline.stages.0.use: 'my.stages.Clip' is neither of the form"),
    ("pipeline: {statistics_writers: [{use: JsonLines}]}", "pipeline.statistics_writers.0.use: 'JsonLines' is not a"),
    ("pipeline: {stages: [{use: 'a:B', after: trainer}]}", "pipeline.stages.0.after: 'trainer' is not valid; expec"),
    ("pipeline: {stages: [{use: 'a:B', after: ghost}]}", "pipeline.stages.0.after: the ghost stage exists only with"),
    ("pipeline: {stages: [{use: 'a:B', behaviors: [b]}]}", "pipeline.stages.0.behaviors.0: 'b' is not listed under"),
    ("pipeline: {stages: [{use: 'a:B'}, {use: 'c:B'}]}", "pipeline.stages.1: is a second stage called 'B'; give one"),
    ("pipeline: {supervision: {main: {warn_s: 10, end_s: 5}}}", "pipeline.supervision.main.end_s: 5 is less than"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_in_a_section_says_what_was_expected(mistakes_of, text: str, expected: str):
    (mistake,) = mistakes_of(ONE + text)
    place, mistake = mistake.split(": ", 1)
    assert place in ("config.yaml:2", "config.yaml:3")
    assert mistake.startswith(expected)


UNIFORM = "{sampler_type: uniform, sampler_parameters: {%s}}"
RANGES = "{sampler_type: multirangeuniform, sampler_parameters: {intervals: [%s]}}"
CRITERIA = "{curriculum: [{name: a, value: 1, completion_criteria: {%s}}, {name: b, value: 2}]}"
PARAMETER_MISTAKES = [
    ("text", ": 'text' is not valid; expected a number"),
    ("{sampler_type: unifrm, sampler_parameters: {}}", ".sampler_type: 'unifrm' is not valid; expected 'constant', "),
    ("{sampler_parameters: {}}", ".sampler_type: is required but missing; expected 'constant', 'uniform', "),
    (UNIFORM % "min_vale: 1", ".sampler_parameters.min_vale: unknown key; did you mean 'min_value'?"),
    (UNIFORM % "min_value: 2", ".sampler_parameters.min_value: 2 is greater than max_value (1)"),
    (RANGES % "[0, 1], [2, 1]", ".sampler_parameters.intervals.1: 2 is greater than 1"),
    ("{curriculum: []}", ".curriculum: is empty; expected at least one"),
    ("{curriculum: [{name: a, value: 1}, {name: b, value: 2}]}", ".curriculum.0: lesson 'a' has no completion_crite"),
    (CRITERIA % "behavior: D", ".curriculum.0.completion_criteria.behavior: 'D' is not listed under behaviors"),
    (CRITERIA % "behavior: B, measure: score", ".curriculum.0.completion_criteria.measure: 'score' is not valid"),
    (CRITERIA % "behavior: B, measure: Elo", ".curriculum.0.completion_criteria.measure: 'Elo' needs self_play,"),
    (CRITERIA % "behavior: B, measure: progress, threshold: 5", ".curriculum.0.completion_criteria.threshold: 5 is"),
]


@pytest.mark.parametrize(("body", "expected"), PARAMETER_MISTAKES, ids=[body for body, _ in PARAMETER_MISTAKES])
def test_a_mistake_in_a_parameter_says_what_was_expected(mistakes_of, body: str, expected: str):
    (mistake,) = mistakes_of(f"{ONE}environment_parameters: {{p: {body}}}")
    assert mistake.startswith(f"config.yaml:2: environment_parameters.p{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "behaviors: is empty, so the run has nothing to train"),
        ("behaviors: {}", "config.yaml:1: behaviors: is empty, so the run has nothing to train"),
        ("behaviors:", "config.yaml:1: behaviors: an empty value (null) is not valid; expected a map"),
        ("behaviors: {B: }", "config.yaml:1: behaviors.B: an empty value (null) is not valid; expected a map"),
        ("behaviors: {a/b: {}}", "config.yaml:1: behaviors.a/b: is not a valid behaviour name"),
        ("behaviors: {'B?team=0': {}}", "config.yaml:1: behaviors.B?team=0: is not a valid behaviour name"),
        (TWO + CARTPOLE % "", "config.yaml:2: environment: needs 'behavior', the behaviour name of its agents,"),
        ("- behaviors", "config.yaml:1: is a list; expected a map"),
        ("", "config.yaml: is empty; expected at least 'behaviors'"),
    ],
)
def test_a_file_must_say_what_to_train(mistakes_of, text: str, expected: str):
    (mistake,) = mistakes_of(text)
    assert expected in mistake


def test_all_that_is_wrong_with_parameters_and_lessons_is_reported_at_once(mistakes_of):
    text = """
        behaviors: {B: {}}
        environment_parameters:
          spread:
            sampler_type: multirangeuniform
            sampler_parameters: {intervals: [[3, 1], [1]]}
          distance:
            curriculum:
              - name: near
                value: 2
                completion_criteria: {behavior: B, min_lesson_length: -20}
              - name: middle
                value: {sampler_type: uniform, sampler_parameters: {min_value: 30, max_value: 6}}
                completion_criteria: {behavior: B, measure: reward}
              - name: far
                value: 10
                completion_criteria: {behavior: B, measure: elo}
              - {name: last, value: 15}
    """
    found = [mistake.split(": ", 2) for mistake in mistakes_of(text)]
    assert [(key, what.split(";")[0]) for _, key, what in found] == [
        ("environment_parameters.spread.sampler_parameters.intervals.0", "3 is greater than 1"),
        ("environment_parameters.spread.sampler_parameters.intervals.1", "has 1 numbers"),
        (f"{DISTANCE}.0.completion_criteria.min_lesson_length", "-20 is out of range"),
        (f"{DISTANCE}.1.value.sampler_parameters.min_value", "30 is greater than max_value (6)"),
        (f"{DISTANCE}.2.completion_criteria.measure", "'Elo' needs self_play, which B does not have"),
    ]


DISTANCE = "environment_parameters.distance.curriculum"


def test_a_mistake_in_one_stage_does_not_hide_one_in_the_next(mistakes_of):
    text = """
        behaviors: {B: {}}
        pipeline:
          stages:
            - {use: "mine:Clip", after: trainer}
            - {use: "mine:Scale", behaviors: [C]}
    """
    first, second = mistakes_of(text)
    assert first.startswith("config.yaml:4: pipeline.stages.0.after: 'trainer' is not valid")
    assert second.startswith("config.yaml:5: pipeline.stages.1.behaviors.0: 'C' is not listed under behaviors")
