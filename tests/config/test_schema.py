"""The JSON Schema for editors: it accepts what the reader accepts, and finds mistakes by type, name or choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sample_files import FILES, name_of

from headrace.config.schema import OLD_KEYS, as_json
from headrace.config.validation import fields_of
from headrace.config.yaml_reader import read_file, read_text
from headrace.pipeline.cli import main

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "config" / "schema.json"
EXAMPLES = sorted([*(ROOT / "config" / "examples").glob("*.yaml"), *(ROOT / "examples").glob("*/*.yaml")])
for other in ("sweeps/cartpole-space.yaml", "cluster/kuberay.yaml"):  # a search space, and a manifest of Kubernetes
    EXAMPLES.remove(ROOT / "examples" / other)
BALL = "behaviors: {Ball: {trainer_type: ppo, %s}}"
POLE = "environment: {kind: gymnasium, id: CartPole-v1, %s}\nbehaviors: {Pole: {trainer_type: ppo}}"
SIZE = BALL % "" + "\nenvironment_parameters: {size: %s}"

GOOD = {
    "numbers in quotes": BALL % "max_steps: '5e5', hyperparameters: {learning_rate: '1e-3', batch_size: '1_000'}",
    "floats for integers": BALL % "max_steps: 5.0e5, time_horizon: 1e2",
    "a word for a map": "behaviors: {Ball: {brain: random, league: psro}}",
    "one item for a list": "behaviors: {Ball: {self_play: {brains: {use: random, weight: 0.5}}}}",
    "a name for a role": POLE % "observations: {state: image}, wrappers: ['gymnasium.wrappers:FlattenObservation']",
    "numbers as names": BALL % "" + "\ncheckpoint_settings: {run_id: 007, initialize_from: 1e3}",
    "a key that removes an inherited one": "default_settings: {self_play: {}}\nbehaviors: {A: {self_play: null}}",
    "no environment": BALL % "" + "\nenvironment: null",
    "shared keys": "x-shared: &a {max_steps: 5}\nbehaviors: {Ball: {<<: *a}}",
    "a custom trainer": "behaviors: {Ball: {trainer_type: 'my:Trainer', hyperparameters: {anything: [1]}}}",
    "inherited hyperparameters": "default_settings: {trainer_type: sac}\nbehaviors: {A: {hyperparameters: {tau: 0.1}}}",
    "a learner with its own trainer": "behaviors: {A: {league: {learners: {main: {trainer_type: ppo, max_steps: 9}}}}}",
    "a curriculum": SIZE % "{curriculum: [{name: a, value: {sampler_type: uniform, sampler_parameters: {}}}]}",
    "chosen at the start": BALL % "" + "\npipeline: {max_policy_lag: '2', hosts: {actors: {replicas: auto}}}",
    "words for choices": "behaviors: {A: {brain: learning}, B: {brain: scripted}, C: {self_play: {opponents: prioritised}}}",
    "references and paths for choices": "behaviors: {A: {brain: 'my:Player'}, B: {brain: runs/first/Ball.onnx}}",
    "writers": BALL % "" + "\npipeline: {statistics_writers: [csv, 'my:Writer', {use: csv}], max_policy_lag: 0}",
    "widths": BALL % "network_settings: {hidden_units: ['64', 32], critic_hidden_units: '128'}",
    "addresses": BALL % "" + "\nenv_settings: {listen: localhost}\nmonitor: {listen: '127.0.0.1:8000'}",
    "kinds of modules": "plugins: [mine]\nenvironment: {kind: mine}\nbehaviors: {A: {trainer_type: mine}}",
}
MISTAKES = {
    "misspelt key": BALL % "max_step: 5",
    "misspelt section": BALL % "" + "\nenviroment: {kind: gymnasium}",
    "behaviours": "environment: {kind: builtin, id: Volley}\nbehaviours: {Ball: {trainer_type: ppo}}",
    "key without space": "behaviors: {Ball: 'trainer_type:ppo'}",
    "unknown kind": "environment: {kind: gym, id: CartPole-v1}",
    "key of another kind": POLE % "api: aec",
    "key of another engine": POLE % "fixed_fps: 60",
    "unknown trainer": "behaviors: {Ball: {trainer_type: pppo}}",
    "key of another trainer": BALL % "hyperparameters: {tau: 0.1}",
    "key of Stable-Baselines3": BALL % "hyperparameters: {clip_range: 0.2}",
    "misplaced key": BALL % "learning_rate: 0.1",
    "word for a number": BALL % "max_steps: many",
    "fraction for a whole number": BALL % "max_steps: 1.5",
    "negative number": BALL % "max_steps: -5",
    "share above one": BALL % "hyperparameters: {lambd: 1.5}",
    "unknown schedule": BALL % "hyperparameters: {learning_rate_schedule: cosine}",
    "flag in quotes": BALL % "network_settings: {normalize: 'true'}",
    "yes for true": BALL % "network_settings: {normalize: yes}",
    "number for a flag": BALL % "threaded: 1",
    "flag for a number": BALL % "max_steps: true",
    "unknown encoder": BALL % "network_settings: {vis_encode_type: resnet50}",
    "unknown activation": BALL % "network_settings: {activation: gelu5}",
    "list for a map": "behaviors: [Ball]",
    "null for a map": BALL % "network_settings: null",
    "map for a number": BALL % "summary_freq: {every: 5}",
    "memory as a flag": BALL % "network_settings: {memory: true}",
    "misspelt key of memory": BALL % "network_settings: {memory: {size: 64}}",
    "unknown sampler": SIZE % "{sampler_type: normal, sampler_parameters: {}}",
    "key of another sampler": SIZE % "{sampler_type: uniform, sampler_parameters: {mean: 0}}",
    "unknown measure": SIZE % "{curriculum: [{name: a, value: 1, completion_criteria: {measure: luck}}]}",
    "misspelt key of a lesson": SIZE % "{curriculum: [{name: a, valu: 1}]}",
    "unknown host": BALL % "" + "\npipeline: {hosts: {actors: {kind: thread}}}",
    "no actors": BALL % "" + "\npipeline: {hosts: {actors: {replicas: 0}}}",
    "misspelt key of the run": BALL % "" + "\ncheckpoint_settings: {runid: a}",
    "unknown precision": BALL % "" + "\ntorch_settings: {precision: fp16}",
    "word for a width": BALL % "network_settings: {hidden_units: wide}",
    "word for a module": BALL % "network_settings: {network: mine}",
    "unknown preset": "behaviors: {Ball: {league: alphastarr}}",
    "unknown brain": "behaviors: {Ball: {brain: randm}}",
    "unknown opponents": BALL % "self_play: {opponents: strongest}",
    "unknown writer": BALL % "" + "\npipeline: {statistics_writers: [tensorbord]}",
    "negative lag": BALL % "" + "\npipeline: {max_policy_lag: -1}",
    "no threads": BALL % "" + "\npipeline: {hosts: {learners: {threads: 0}}}",
    "unknown speed": BALL % "" + "\nreplay: {path: a.stream, speed: fast}",
    "misspelt reward key": BALL % "reward_signals: {extrinsic: {gama: 0.9}}",
    "section of the wrong parent": BALL % "extrinsic: {gamma: 0.9}",
    "discount above one": BALL % "reward_signals: {extrinsic: {gamma: 1.5}}",
    "flag for a section": BALL % "self_play: true",
    "word for the environment": "environment: CartPole-v1\nbehaviors: {Ball: {trainer_type: ppo}}",
    "old key of ML-Agents": BALL % "network_settings: {use_recurrent: true}",
    "null trainer": "behaviors: {Ball: {trainer_type: null}}",
    "list of parameters": BALL % "" + "\nenvironment_parameters: [size]",
    "misspelt key of an evaluation": BALL % "" + "\nevaluation: {evry: 100}",
    "word for a flag": BALL % "" + "\ncheckpoint_settings: {resume: maybe}",
    "word for a seed": BALL % "" + "\nenv_settings: {seed: random}",
    "number for a folder": BALL % "" + "\ncheckpoint_settings: {results_dir: [a]}",
}


def underlined(data: Any) -> list[str]:
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    return [error.json_path for error in validator.iter_errors(data)]


def test_the_schema_file_is_up_to_date(capsys):
    with pytest.raises(SystemExit):
        main(["--schema"])
    assert SCHEMA.read_text(encoding="utf-8") == capsys.readouterr().out == as_json() + "\n", "run `make docs`"


def test_the_schema_is_valid():
    jsonschema.Draft7Validator.check_schema(json.loads(as_json()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_examples_name_the_schema_and_follow_it(path: Path):
    comment, _, text = path.read_text(encoding="utf-8").partition("\n")
    named = comment.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == SCHEMA
    assert underlined(read_text(text, "").data) == []
    assert underlined(yaml.safe_load(text)) == [], "also with the parser of other tools"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_for_every_version_of_ml_agents_follow_the_schema(path: Path):
    assert underlined(read_file(path).data) == []


@pytest.mark.parametrize("name", GOOD)
def test_what_the_reader_accepts_is_not_underlined(name: str):
    assert underlined(read_text(GOOD[name], "").data) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_underlined_and_refused(name: str, mistakes_of):
    assert mistakes_of(MISTAKES[name])
    assert underlined(read_text(MISTAKES[name], "").data)


def test_old_keys_are_marked_as_deprecated_and_are_not_keys_of_today(load):
    definitions = json.loads(as_json())["definitions"]
    for model, names in OLD_KEYS.items():
        section = definitions[model.__name__]
        keys = section.get("else", section)["properties"]
        assert all(keys[name]["deprecated"] for name in names)
        assert not set(names) & set(fields_of(model))
    sections = "checkpoint_settings: {save_freq: 5, keep_checkpoints: 2, lesson: 0}\ncpu: true\nmulti_gpu: false\n"
    old = "{trainer: ppo, summary_path: a, self_play: {play_against_current_self_ratio: 0.5}}"
    config = load(f"{sections}behaviors: {{Ball: {old}}}")
    assert len(config.warnings) >= 7
