"""Loading: everything wrong at once, overrides, inheritance, warnings, and the way to plain data and back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from placed import without_places
from properties import examples

from headrace.config import BehaviorSettings, ConfigError, PPOHyperparameters, RunConfig, load_config
from headrace.config.load import convert
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import offline_demonstrations
from headrace.pipeline.main.preflight import check_run


def test_all_mistakes_are_reported_at_once_in_the_order_of_their_lines(mistakes_of):
    text = """
        behaviors:
          Tennis:
            trainer_type: ppo
            max_stps: 5
            max_stps: 6
            hyperparameters:
              batch_size: 2048
              buffer_size: 0
              beta: much
            self_play: {windw: 3}
          Other:
            trainer_type: pocka
            hyperparameters: {tau: 0.005}
          Third:
            trainer_type: sac
            hyperparameters: {tau: 0, beta: 1}
            reward_signals: {extrinsic: , gail: {strenght: 1}}
        environment: {kind: gymnasum, id: 5}
        pipeline:
          deterministic: true
          max_policy_lag: 2
          hosts: {actors: {kind: ray}}
        record: {behaviors: [Tenis]}
        evaluation: {every: 0}
    """
    start = [line.split(" is ")[0].split("; ")[0] for line in mistakes_of(text, "debug=1", "nonsense")]
    assert start == [
        "config.yaml:4: behaviors.Tennis.max_stps: unknown key",
        "config.yaml:5: behaviors.Tennis.max_stps: appears twice here (first in line 4)",
        "config.yaml:8: behaviors.Tennis.hyperparameters.buffer_size: 0",
        "config.yaml:9: behaviors.Tennis.hyperparameters.beta: 'much'",
        "config.yaml:10: behaviors.Tennis.self_play.windw: unknown key",
        "config.yaml:12: behaviors.Other.trainer_type: 'pocka'",
        "config.yaml:16: behaviors.Third.hyperparameters.tau: 0",
        "config.yaml:16: behaviors.Third.hyperparameters.beta: unknown key for this trainer_type",
        "config.yaml:17: behaviors.Third.reward_signals.extrinsic: an empty value (null)",
        "config.yaml:17: behaviors.Third.reward_signals.gail.strenght: unknown key",
        "config.yaml:17: behaviors.Third.reward_signals.gail.demo_path:",
        "config.yaml:18: environment.kind: 'gymnasum'",
        "config.yaml:21: pipeline.max_policy_lag: 2 conflicts with 'deterministic: true', which needs 0",
        "config.yaml:22: pipeline.hosts.actors.kind: 'ray' conflicts with 'deterministic: true', which needs 'inline'",
        "config.yaml:24: evaluation.every: 0",
        "--set nonsense: expected path.to.key=value",
        "--set debug=1: debug: 1",
    ]


def test_a_mistake_knows_its_file_line_and_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("behaviors:\n  B:\n    max_steps: -1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    (mistake,) = caught.value.mistakes
    assert (mistake.file, mistake.line, mistake.path) == (str(path), 3, "behaviors.B.max_steps")


# --- overrides

BASE = """
    behaviors: {Ball: {max_steps: 700000, self_play: {}}}
    environment: {kind: gymnasium, id: CartPole-v1}
    pipeline: {stages: [{use: "a:B"}]}
    debug: false
"""


@pytest.mark.parametrize(
    ("argument", "path", "value"),
    [
        ("behaviors.Ball.max_steps=5e3", ("behaviors", "Ball", "max_steps"), 5000),
        ("behaviors.Ball.self_play=null", ("behaviors", "Ball", "self_play"), None),
        (
            "behaviors.Ball.network_settings.normalize=true",
            ("behaviors", "Ball", "network_settings", "normalize"),
            True,
        ),
        ("environment.num_envs=3", ("environment", "num_envs"), 3),
        ("environment.options={a: [1, x]}", ("environment", "options"), {"a": [1, "x"]}),
        ("environment.options.gravity=1=2", ("environment", "options", "gravity"), "1=2"),
        ("pipeline.stages.0.host=main", ("pipeline", "stages", 0, "host"), "main"),
        ("checkpoint_settings.run_id=007", ("checkpoint_settings", "run_id"), "007"),
        ("checkpoint_settings={run_id: 2024_01_05}", ("checkpoint_settings", "run_id"), "2024_01_05"),
        ("evaluation={every: 9}", ("evaluation", "every"), 9),
    ],
)
def test_set_changes_one_value(load, argument: str, path: tuple[str | int, ...], value: object):
    found: Any = load(BASE, argument).to_plain()
    for key in path:
        found = found[key]
    assert found == value


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("behaviors.Ball.max_stps=1", "behaviors.Ball.max_stps: unknown key; did you mean 'max_steps'?"),
        ("behaviors.Bal.max_steps=1", "behaviors.Bal.max_steps: 'Bal' is not listed under behaviors; did you mean"),
        ("env_setings.seed=1", "env_setings: unknown key; did you mean 'env_settings'?"),
        ("environment_parameters.a.b=1", "environment_parameters.a.b: 'a' is not listed under environment_parameters"),
        ("behaviors.Ball.max_steps.x=1", "behaviors.Ball.max_steps.x: 'behaviors.Ball.max_steps' is 700000, which"),
        ("pipeline.stages.1.host=main", "pipeline.stages.1.host: the list has 1 items; expected a smaller index"),
        ("debug=yes", "debug: 'yes' is not valid; expected true or false"),
        ("torch_settings.device.kind=cpu", "torch_settings.device: a map is not valid; expected text"),
        ("checkpoint_settings.run_id=[", "checkpoint_settings.run_id: is not YAML"),
        ("debug", "expected path.to.key=value"),
    ],
)
def test_a_mistake_in_set_names_the_argument(mistakes_of, argument: str, expected: str):
    (mistake,) = mistakes_of(BASE, argument)
    assert mistake.startswith(f"--set {argument}: {expected}")


def test_a_contradiction_that_set_brings_names_the_argument(mistakes_of):
    text = "behaviors: {B: {trainer_type: sac, hyperparameters: {batch_size: 64, buffer_size: 128}}}"
    (mistake,) = mistakes_of(text, "behaviors.B.hyperparameters.buffer_size=32")
    assert mistake.startswith("--set behaviors.B.hyperparameters.buffer_size=32: behaviors.B.hyperparameters.buffer")


@pytest.mark.parametrize("name", ["Agent.v1", "a=b", "v1.", "x y", "1.5", "Bob's", "a.b=c.d"])
@pytest.mark.parametrize("quote", "\"'")
def test_set_reaches_names_in_quotes(load, name: str, quote: str):
    if quote in name:
        return
    text = f'behaviors: {{"{name}": {{max_steps: 5}}}}'
    key = f"behaviors.{quote}{name}{quote}"
    assert load(text, f"{key}.max_steps=9").behaviors[name].max_steps == 9
    options = load(BASE, f"environment.options.{quote}{name}{quote}=[1]").to_plain()["environment"]["options"]
    assert options[name] == [1]


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("Agent.v1", "behaviors.Agent.v1.max_steps=9"),
        ("Agent.v1", "behaviors.Agent.v1={max_steps: 9}"),
        ("a=b", "behaviors.a=b.max_steps=9"),
    ],
)
def test_a_name_that_needs_quotes_in_set_is_named_with_them(mistakes_of, name: str, argument: str):
    (mistake,) = mistakes_of(f'behaviors: {{"{name}": {{max_steps: 5}}}}', argument)
    assert mistake.endswith(f"put the name '{name}' in quotes: --set 'behaviors.\"{name}\".…'")


MISSPELT = [
    (
        """
        behaviors:
          Ball:
            trainertype: ppo
            hyperparameters: {buffersize: 512, batch_size: 256}
            max_step: 3000
            maxsteps: 4
        """,
        {
            "3: behaviors.Ball.trainertype: unknown key; did you mean 'trainer_type'?",
            "4: behaviors.Ball.hyperparameters.buffersize: unknown key; did you mean 'buffer_size'?",
            "5: behaviors.Ball.max_step: unknown key; did you mean 'max_steps'?",
            "6: behaviors.Ball.maxsteps: unknown key; did you mean 'max_steps'?",
        },
    ),
    (
        """
        enviroment: {kind: gymnasium, id: CartPole-v1, numenvs: 2, action_repeat: {step: 3}}
        behaviors: {Ball: {trainer_type: pppo}}
        """,
        {
            "1: enviroment: unknown key; did you mean 'environment'?",
            "1: enviroment.numenvs: unknown key; did you mean 'num_envs'?",
            "1: enviroment.action_repeat.step: unknown key; did you mean 'steps'?",
            "2: behaviors.Ball.trainer_type: 'pppo' is not a trainer; expected",
        },
    ),
    (
        """
        default_setings: {trainer_type: ppo, max_step: 5}
        behaviours:
          Ball: {hyperparameters: {bufer_size: 3}, netwrk_settings: {hidden_unit: x}}
        """,
        {
            "1: default_setings: unknown key; did you mean 'default_settings'?",
            "1: default_setings.max_step: unknown key; did you mean 'max_steps'?",
            "2: behaviours: unknown key; did you mean 'behaviors'?",
            "3: behaviours.Ball.hyperparameters.bufer_size: unknown key; did you mean 'buffer_size'?",
            "3: behaviours.Ball.netwrk_settings: unknown key; did you mean 'network_settings'?",
            "3: behaviours.Ball.netwrk_settings.hidden_unit: unknown key; did you mean 'hidden_units'?",
        },
    ),
]


@pytest.mark.parametrize(("text", "expected"), MISSPELT)
def test_mistakes_below_a_misspelt_key_are_reported_with_it_and_without_consequences(
    load, tmp_path, text: str, expected: set[str]
):
    with pytest.raises(ConfigError) as caught:
        load(text)
    found = [str(mistake).removeprefix(f"{tmp_path / 'config.yaml'}:") for mistake in caught.value.mistakes]
    for words in expected:
        assert [mistake for mistake in found if mistake.startswith(words)], (words, found)
    assert len(found) == len(expected), found


# --- default_settings


def test_default_settings_are_merged_into_every_behavior_key_by_key(load):
    config = load(
        """
        default_settings:
          trainer_type: ppo
          hyperparameters: {batch_size: 10, buffer_size: 100}
          self_play: {window: 3}
          reward_signals: {extrinsic: {gamma: 0.5}}
          max_steps: 7
        behaviors:
          A: {hyperparameters: {batch_size: 20}}
          B: {max_steps: 8, self_play: null, reward_signals: {extrinsic: {strength: 2}}}
        """
    )
    a, b = config.behaviors["A"], config.behaviors["B"]
    assert isinstance(a.hyperparameters, PPOHyperparameters)
    assert (a.hyperparameters.batch_size, a.hyperparameters.buffer_size, a.max_steps) == (20, 100, 7)
    assert a.self_play is not None
    assert (a.self_play.window, b.self_play, b.max_steps) == (3, None, 8)
    assert (b.signals["extrinsic"].gamma, b.signals["extrinsic"].strength) == (0.5, 2.0)


def test_schedules_and_intervals_follow_what_was_merged_and_not_the_defaults_own(load):
    config = load(
        """
        default_settings:
          trainer_type: ppo
          hyperparameters: {learning_rate_schedule: constant}
          self_play: {}
        behaviors:
          A: {hyperparameters: {learning_rate_schedule: linear}, self_play: {save_steps: 10}}
        """
    )
    a = config.behaviors["A"]
    assert isinstance(a.hyperparameters, PPOHyperparameters)
    assert a.self_play is not None
    assert (a.hyperparameters.beta_schedule, a.self_play.team_change) == ("linear", 50)


def test_hyperparameters_of_another_trainer_are_not_inherited(load):
    config = load(
        """
        default_settings: {trainer_type: ppo, hyperparameters: {batch_size: 10, beta: 0.1}, max_steps: 7}
        behaviors:
          A: {trainer_type: "mine:Trainer", hyperparameters: {depth: 3}}
        """
    )
    assert config.behaviors["A"].hyperparameters == {"depth": 3}
    assert (config.behaviors["A"].max_steps, config.warnings) == (7, ())


def test_ppo_inherits_the_keys_that_it_has_from_a_trainer_of_the_users_own(load):
    config = load(
        """
        default_settings: {trainer_type: "mine:Trainer", hyperparameters: {batch_size: 10, depth: 3}}
        behaviors: {A: {trainer_type: ppo}}
        """
    )
    hyperparameters = config.behaviors["A"].hyperparameters
    assert isinstance(hyperparameters, PPOHyperparameters)
    assert hyperparameters.batch_size == 10


def test_a_mistake_in_default_settings_is_reported_once(mistakes_of):
    text = """
        default_settings: {trainer_type: ppo, hyperparameters: {beta: -1}, max_stps: 3}
        behaviors: {A: {}, B: {max_steps: 3}}
    """
    assert [line.split(": ")[1] for line in sorted(mistakes_of(text))] == [
        "default_settings.hyperparameters.beta",
        "default_settings.max_stps",
    ]


def test_a_behavior_that_contradicts_what_it_inherits_is_named(mistakes_of):
    text = """
        default_settings: {trainer_type: sac, hyperparameters: {batch_size: 100}}
        behaviors: {A: {hyperparameters: {buffer_size: 50}}}
    """
    (mistake,) = mistakes_of(text)
    assert mistake.startswith("config.yaml:2: behaviors.A.hyperparameters.buffer_size: 50 is smaller than batch_size")


def test_an_unlisted_behavior_has_the_default_settings(load):
    config = load("default_settings: {max_steps: 7}\nbehaviors: {A: {max_steps: 8}}")
    assert (config.behavior_settings("A").max_steps, config.behavior_settings("X").max_steps) == (8, 7)


def test_an_unlisted_behavior_without_default_settings_is_a_mistake(load, tmp_path):
    with pytest.raises(ConfigError, match=r"behaviour 'Balk', which is not listed.*did you mean 'Ball'") as caught:
        load(BASE).behavior_settings("Balk")
    assert caught.value.mistakes[0].file == str(tmp_path / "config.yaml")


# --- warnings

WARNINGS = [
    (
        "behaviors: {Ball: {}, ball: {}}",
        "behaviors.ball: differs from Ball only in upper and lower case, so Windows and",
    ),
    (
        "behaviors: {caf\u00e9: {}, cafe\u0301: {}}",
        "behaviors.cafe\u0301: differs from caf\u00e9 only in the form of its accents (Unicode NFC or NFD), so macOS would",
    ),
    (
        "behaviors: {B: {}}\ncheckpoint_settings: {resume: true, initialize_from: a}",
        "checkpoint_settings.initialize_from: has no effect",
    ),
    (
        "behaviors: {B: {}}\nenvironment_parameters: {p: {curriculum: ["
        "{name: a, value: 1, completion_criteria: {behavior: B, threshold: 1}}, {name: b, value: 2}]}}",
        "environment_parameters.p.curriculum.0.completion_criteria.min_lesson_length: is 0, so the lesson can end",
    ),
]


@pytest.mark.parametrize(("text", "expected"), WARNINGS, ids=[text for text, _ in WARNINGS])
def test_settings_with_an_unintended_effect_give_a_warning(load, text: str, expected: str):
    (warning,) = without_places(load(text).warnings)
    assert warning.startswith(expected)


LONG_TURNS = """
    default_settings: {trainer_type: ppo, hyperparameters: {buffer_size: 100, batch_size: 10}}
    behaviors:
      B:
        max_steps: 3000
        self_play:
          team_change: 8000
"""


def test_a_warning_says_where_its_key_stands_as_a_mistake_does(load):
    config = load(LONG_TURNS)
    (warning,) = config.warnings
    assert warning.startswith(f"{config.path}:6: behaviors.B.self_play.team_change: 8000 steps exceed max_steps")
    assert config.place(("behaviors", "B", "max_steps")) == f"{config.path}:4"


def test_a_warning_about_an_override_names_it(load):
    (warning,) = load(LONG_TURNS, "behaviors.B.self_play.team_change=9000").warnings
    assert warning.startswith("--set behaviors.B.self_play.team_change=9000: behaviors.B.self_play.team_change: 9000")


def test_an_ordinary_configuration_gives_no_warning(load):
    assert load(BASE + "    env_settings: {seed: 3, num_envs: 2}\n    engine_settings: {width: 84}\n").warnings == ()


# --- plain data

FULL = """
    default_settings: {max_steps: 7, keep_checkpoints: 3}
    behaviors:
      A:
        trainer_type: ppo
        hyperparameters: {learning_rate: 1e-4, learning_rate_schedule: constant}
        self_play: {save_steps: 3}
        even_checkpoints: true
        max_steps: 90
      B: {trainer_type: "mine:Trainer", hyperparameters: {deep: {list: [1, 2.5, null, text]}}}
      C:
        trainer_type: sac
        hyperparameters: {steps_per_update: 0.5, save_replay_buffer: true, entropy_coefficient: fixed, init_entcoef: 0.2}
        network_settings:
          normalize: true
          vis_encode_type: match3
          memory: {sequence_length: 16, memory_size: 32}
          goal_conditioning_type: none
          network: "mine:Network"
        reward_signals:
          curiosity: {encoding_size: 32, strength: 0.02}
          gail: {demo_path: "expert/*.stream", use_vail: true, network_settings: {hidden_units: 16}}
          rnd: {gamma: 0.5}
        behavioral_cloning: {demo_path: expert, steps: 10000, samples_per_update: 64, num_epoch: 1}
        init_path: C-5000.pt
      D: {trainer_type: bc, hyperparameters: {teacher: A, held_out: 0.25}}
    environment: {kind: gymnasium, factory: "mine:make", num_envs: 3, options: {a: [1]}, behavior: A}
    environment_parameters:
      x: 1
      y: {curriculum: [{l0: {value: 1, completion_criteria: {behavior: A}}}, {l1: {value: 2}}]}
      z: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0, 1]]}}
    evaluation: {every: 100}
    pipeline:
      deterministic: true
      stages: [{use: "mine:Stage", with: {limit: 1}, behaviors: [A]}]
    record: {edges: [agent_processor], behaviors: [A]}
    replay: {streams: ["a/*"], speed: 2}
"""


def test_plain_data_is_json_and_gives_the_same_configuration_back(load):
    plain = load(FULL).to_plain()
    again = RunConfig.from_plain(json.loads(json.dumps(plain)))
    assert again.to_plain() == plain
    assert again.pipeline.stages[0].with_ == {"limit": 1}
    assert again.behaviors["B"].hyperparameters == {"deep": {"list": [1, 2.5, None, "text"]}}
    assert list(again.behaviors["C"].signals) == ["curiosity", "gail", "rnd"]
    assert again.behaviors == load(FULL).behaviors


def test_plain_data_of_behaviors_that_differ_from_default_settings_gives_no_new_warnings(load):
    config = load(
        "default_settings: {max_steps: 7000000}\nbehaviors: {B: {trainer_type: sac}, C: {trainer_type: 'a:B'}}"
    )
    assert RunConfig.from_plain(config.to_plain()).warnings == config.warnings == ()


def test_default_settings_built_in_python_survive_the_way_to_plain_data_and_back():
    default = BehaviorSettings(hyperparameters=PPOHyperparameters(beta=0.5))
    behaviors = {"B": BehaviorSettings(max_steps=9)}
    config = RunConfig.model_validate({"behaviors": behaviors, "default_settings": default})
    again = RunConfig.from_plain(config.to_plain())
    assert again.default_settings == default
    assert again.behaviors == behaviors


MAPS = st.fixed_dictionaries(
    {
        "max_steps": st.integers(5, 10**12),
        "trainer_type": st.just("ppo"),
        "hyperparameters": st.fixed_dictionaries(
            {"learning_rate": st.floats(1e-30, 1e30), "batch_size": st.integers(1, 100)},
            optional={"buffer_size": st.integers(100, 10**6), "shared_critic": st.booleans()},
        ),
        "even_checkpoints": st.booleans(),
    },
    optional={
        "self_play": st.none() | st.fixed_dictionaries({"save_steps": st.integers(1, 10**6)}),
        "keep_checkpoints": st.integers(1, 5),
        "init_path": st.none() | st.text("ab./\\~ ü").filter(lambda text: not text.startswith("~")),
    },
)


@pytest.mark.lengthy
@examples(20)  # the first example builds the models
@given(st.dictionaries(st.text("abcXYZ_-. ", min_size=3), MAPS, min_size=1), st.none() | MAPS)
def test_any_behaviors_survive_the_way_to_plain_data_and_back(behaviors: dict[str, Any], default: dict[str, Any]):
    names = {f"n{name}": body for name, body in behaviors.items()}
    config = RunConfig.from_plain({"behaviors": names, "default_settings": default})
    assert RunConfig.from_plain(config.to_plain()).to_plain() == config.to_plain()


# fmt: off
WORDS = st.sampled_from([
    "behaviors", "default_settings", "environment", "env_settings", "environment_parameters",
    "checkpoint_settings", "evaluation", "pipeline", "record", "replay", "B", "trainer_type",
    "ppo", "sac", "a:B", "hyperparameters", "batch_size", "buffer_size", "reward_signals",
    "extrinsic", "self_play", "even_checkpoints", "keep_checkpoints", "kind", "gymnasium",
    "builtin", "id", "factory", "curriculum", "completion_criteria", "name", "value",
    "sac", "bc", "gail", "curiosity", "rnd", "demo_path", "teacher", "behavioral_cloning", "memory",
    "network_settings", "sequence_length", "memory_size", "encoding_size", "beta", "tau", "gamma",
    "sampler_type", "uniform", "sampler_parameters", "deterministic", "hosts", "actors", "stages",
    "use", "after", "with", "streams", "speed", "edges", "all", "ghost", "max", "behavior",
])
# fmt: on
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.lengthy
@examples(40)
@given(st.dictionaries(WORDS, ANYTHING, max_size=5), ANYTHING, ANYTHING)
def test_any_data_is_a_configuration_or_a_list_of_mistakes(data: dict[str, Any], behavior: object, default: object):
    plain = {"behaviors": {"B": behavior}, "default_settings": default, **data}
    try:
        config = RunConfig.from_plain(plain)
    except ConfigError as error:
        mistakes = error.mistakes
    else:
        assert RunConfig.from_plain(config.to_plain()).to_plain() == config.to_plain()
        return
    assert 0 < len(mistakes) == len(set(mistakes))


def test_plain_data_that_is_wrong_is_a_config_error_without_a_file():
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_plain({"behaviors": {"B": {"max_stps": 3}}})
    assert str(caught.value) == "behaviors.B.max_stps: unknown key; did you mean 'max_steps'?"


def test_a_configuration_built_in_python_is_checked_and_completed_too():
    config = RunConfig.model_validate({"behaviors": {"B": BehaviorSettings(max_steps=3)}, "environment": ENVIRONMENT})
    assert (config.behaviors["B"].max_steps, config.source_folder, config.path) == (3, None, None)
    assert config.environment is not None
    assert config.environment.behavior == "B"


ENVIRONMENT = {"kind": "gymnasium", "id": "CartPole-v1"}


def test_the_source_folder_is_that_of_the_file_even_when_named_relatively(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.yaml").write_text("behaviors: {B: {}}")
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("deep/mine.yaml"))
    assert (config.source_folder, config.path) == (tmp_path / "deep", Path("deep/mine.yaml"))
    assert RunConfig.from_plain(config.to_plain(), config.path).source_folder == tmp_path / "deep"


# --- files of ML-Agents, and ours

EXAMPLES = Path(__file__).parents[2] / "config" / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_load_without_warnings(path: Path):
    assert load_config(path).warnings == ()


@pytest.mark.lengthy
def test_importing_and_loading_takes_nothing_heavy():
    code = (
        "import sys; from headrace.config import load_config; load_config(sys.argv[1]); print([m for m in ('numpy', "
        "'torch', 'gymnasium', 'grpc', 'headrace.queues', 'headrace.stages') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(EXAMPLES / "cartpole.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=EXAMPLES.parents[1])
    assert done.stdout.strip() == "[]"


# --- what only a run needs


PROGRAMS = [
    ("env_settings: {num_envs: 8}", "env_settings.num_envs: 8 environments need a program to start"),
    ("environment: {kind: godot, num_envs: 4}", "env_settings.num_envs: 4 environments need a program to start"),
    ("environment: {kind: open_protocol, num_envs: 2}", "env_settings.num_envs: 2 environments need a program to"),
    ("pipeline: {hosts: {actors: {replicas: 2}}}", "pipeline.hosts.actors.replicas: 2 actors with separate"),
    ("evaluation: {every: 500}", "evaluation: needs separate"),
]


@pytest.mark.parametrize(("section", "message"), PROGRAMS, ids=[section for section, _ in PROGRAMS])
def test_settings_that_need_a_program_are_refused_unless_an_option_can_still_name_it(tmp_path, section, message):
    path = tmp_path / "a.yaml"
    path.write_text(f"{section}\nbehaviors: {{A: {{trainer_type: ppo}}}}\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(path)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(yaml.safe_load(path.read_text()))
    later = load_config(path, complete=False)
    assert any(message in warning for warning in later.warnings)
    with pytest.raises(RunError, match=re.escape(message)):
        check_run(later)
    converted = convert(path)
    assert converted.text == path.read_text() and any(message in warning for warning in converted.warnings)
    load_config(path, [f"env_settings.env_path={tmp_path}/game"])


def test_a_behavior_that_learns_only_from_demonstrations_is_left_out_if_others_act(tmp_path):
    path = tmp_path / "a.yaml"
    clones = "{trainer_type: bc, hyperparameters: {demo_path: d}}"
    path.write_text(f"behaviors: {{Hall: {clones}, Pupil: {{trainer_type: ppo}}}}\n")
    (warning,) = load_config(path).warnings
    assert "behaviors.Hall: learns only from demonstrations, and Pupil does not, so one run can't train both" in warning
    assert offline_demonstrations(load_config(path)) == {}
    path.write_text(f"behaviors: {{Hall: {clones}, Wall: {clones}}}\n")
    assert load_config(path).warnings == ()
    assert offline_demonstrations(load_config(path)) == {"Hall": "d", "Wall": "d"}


CONFIGURATION = """
default_settings: null
behaviors: !!python/object/apply:mlagents.trainers.settings.DefaultTrainerDict
  args:
  - !!python/name:mlagents.trainers.settings.TrainerSettings ''
  dictitems:
    Runner: {trainer_type: ppo, hyperparameters: {batch_size: 64, buffer_size: 640}, max_steps: 50000000}
"""


def test_a_configuration_with_pythons_tags_is_read_and_converted_to_one_without(tmp_path):
    path, new = tmp_path / "configuration.yaml", tmp_path / "new.yaml"
    path.write_text(CONFIGURATION)
    assert load_config(path).behaviors["Runner"].max_steps == 50000000
    new.write_text(convert(path).text)
    assert "!!" not in new.read_text()
    assert load_config(new).to_plain() == load_config(path).to_plain()
    path.write_text(CONFIGURATION.replace("max_steps", "max_step"))
    with pytest.raises(ConfigError, match=r"configuration\.yaml:7: behaviors\.Runner\.max_step: unknown key"):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("environment: {kind: gymnasium, id: CartPole-v1, num_envs:64}", "num_envs:64: unknown key; write a space"),
        ("environment:\n  num_envs:64", "'num_envs:64' is not valid; expected a map of keys and values; write a"),
    ],
)
def test_a_colon_without_a_space_is_reported(mistakes_of, text: str, words: str):
    assert any(words in mistake for mistake in mistakes_of(f"behaviors: {{A: {{}}}}\n{text}"))


def test_keys_of_ones_own_at_the_top_hold_what_anchors_share(load):
    text = """
        x-common: &common {max_steps: 3000, anything: 1}
        x-steps: &steps 700
        behaviors:
          A: {max_steps: *steps}
    """
    found = load(text)
    assert found.behaviors["A"].max_steps == 700
    assert not [key for key in found.to_plain() if key.startswith("x-")]
    assert load_config({"x-mine": [1], "behaviors": {"A": {}}}).behaviors.keys() == {"A"}


def test_names_that_look_like_numbers_keep_their_form(load):
    for name in ("007", "2024_01_05", "1e3", "0x1F"):
        found = load(f"behaviors: {{A: {{}}}}\ncheckpoint_settings: {{run_id: {name}}}")
        assert found.checkpoint_settings.run_id == name


def test_the_configuration_knows_which_hyperparameters_the_command_sets(load):
    text = "behaviors: {A: {}, B: {trainer_type: ppo, hyperparameters: {beta: 0.1}}}"
    default = ("default_settings.trainer_type=ppo", "default_settings.hyperparameters.beta=0.2")
    sets = (*default, "behaviors.B.hyperparameters.epsilon=0.3")
    for config in (load(text, *sets), load_config(yaml.safe_load(text), sets)):
        known = {
            (name, key): config.is_set_by_command(("behaviors", name, "hyperparameters", key))
            for name in "AB"
            for key in ("beta", "epsilon")
        }
        assert known == {("A", "beta"): True, ("A", "epsilon"): False, ("B", "beta"): False, ("B", "epsilon"): True}
    with pytest.raises(ConfigError, match="--set behaviors.A.max_steps=0: behaviors.A.max_steps: 0 is out of range"):
        load_config(yaml.safe_load(text), ["behaviors.A.max_steps=0"])


def test_a_wildcard_that_matches_no_name_is_refused():
    with pytest.raises(ConfigError, match=r"behaviors\.\*\.max_steps: nothing is listed under 'behaviors'"):
        load_config({"default_settings": {}}, ["behaviors.*.max_steps=500"])
    load_config({"default_settings": {}, "behaviors": {"A": {}}}, ["behaviors.*.max_steps=500"])
