"""Mistakes of newcomers: each gives one message, with its place, what is wrong, and what was expected or mends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline.cli import main

GYM = "environment: {kind: gymnasium, id: CartPole-v1}\n"
POLE = GYM + "behaviors:\n  Pole:\n    trainer_type: ppo\n"
BEHAVIORS = "behaviors: {Pole: {trainer_type: ppo}}\n"
PLAIN = ("--validate", "--no-env-check")
TRIED = ("--validate",)

MISTAKES: dict[str, tuple[str | None, tuple[str, ...], tuple[str, str, str]]] = {
    "tab": ("behaviors:\n\tPole: {}\n", PLAIN, ("file.yaml:2: ", "'\\t'", "indent with spaces")),
    "top key": (
        POLE + "enviroment: {}\n",
        PLAIN,
        ("file.yaml:5: enviroment: ", "unknown key", "did you mean 'environment'?"),
    ),
    "key": (
        POLE + "    max_step: 5\n",
        PLAIN,
        ("file.yaml:5: behaviors.Pole.max_step: ", "unknown key", "did you mean 'max_steps'?"),
    ),
    "no space after colon": (
        GYM + "behaviors:\n  Pole:\n    trainer_type:ppo\n",
        PLAIN,
        ("file.yaml:3: behaviors.Pole: ", "'trainer_type:ppo' is not valid", "expected a map of keys and values"),
    ),
    "brace": (
        "behaviors: {Pole: {trainer_type: ppo}\n",
        PLAIN,
        ("file.yaml:2: ", "is not YAML", "expected ',' or '}'"),
    ),
    "indent": (
        "behaviors:\n  Pole:\n    trainer_type: ppo\n   max_steps: 5\n",
        PLAIN,
        ("file.yaml:4: ", "is not YAML", "in the same column"),
    ),
    "empty": ("", PLAIN, ("file.yaml: ", "is empty", "expected at least 'behaviors'")),
    "duplicate": (
        POLE + "    trainer_type: sac\n",
        PLAIN,
        ("file.yaml:5: behaviors.Pole.trainer_type: ", "appears twice here", "first in line 4"),
    ),
    "string number": (
        POLE + "    max_steps: many\n",
        PLAIN,
        ("file.yaml:5: behaviors.Pole.max_steps: ", "'many' is not valid", "expected a whole number"),
    ),
    "trainer": (
        GYM + "behaviors:\n  Pole: {trainer_type: pp0}\n",
        PLAIN,
        ("file.yaml:3: behaviors.Pole.trainer_type: ", "'pp0' is not a trainer", "did you mean 'ppo'?"),
    ),
    "kind": (
        "environment: {kind: gym, id: CartPole-v1}\n" + BEHAVIORS,
        PLAIN,
        ("file.yaml:1: environment.kind: ", "'gym' is not valid", "expected 'builtin', 'gymnasium'"),
    ),
    "no id": (
        "environment: {kind: gymnasium}\n" + BEHAVIORS,
        PLAIN,
        ("file.yaml:1: environment: ", "needs 'id' or 'factory'", "add a line such as 'id: CartPole-v1'"),
    ),
    "id and factory": (
        "environment: {kind: gymnasium, id: CartPole-v1, factory: 'a:b'}\n" + BEHAVIORS,
        PLAIN,
        ("file.yaml:1: environment.factory: ", "can't be combined with 'id'", "keep one of the two"),
    ),
    "negative lr": (
        POLE + "    hyperparameters: {learning_rate: -0.1}\n",
        PLAIN,
        (
            "file.yaml:5: behaviors.Pole.hyperparameters.learning_rate: ",
            "-0.1 is out of range",
            "expected a number greater than 0",
        ),
    ),
    "gamma": (
        POLE + "    reward_signals: {extrinsic: {gamma: 1.5}}\n",
        PLAIN,
        (
            "file.yaml:5: behaviors.Pole.reward_signals.extrinsic.gamma: ",
            "1.5 is out of range",
            "expected a number at most 1",
        ),
    ),
    "sac option in ppo": (
        POLE + "    hyperparameters: {tau: 0.005}\n",
        PLAIN,
        (
            "file.yaml:5: behaviors.Pole.hyperparameters.tau: ",
            "unknown key for this trainer_type",
            "it is valid only for 'sac'",
        ),
    ),
    "layers": (
        POLE + "    network_settings: {num_layers: -2}\n",
        PLAIN,
        (
            "file.yaml:5: behaviors.Pole.network_settings.num_layers: ",
            "-2 is out of range",
            "expected a number greater than 0",
        ),
    ),
    "num_envs": (
        "environment: {kind: gymnasium, num_envs: 0, id: CartPole-v1}\nbehaviors:\n  Pole:\n    trainer_type: ppo\n",
        PLAIN,
        ("file.yaml:1: environment.num_envs: ", "0 is out of range", "expected a number greater than 0"),
    ),
    "schedule": (
        POLE + "    hyperparameters: {learning_rate_schedule: cosine}\n",
        PLAIN,
        (
            "file.yaml:5: behaviors.Pole.hyperparameters.learning_rate_schedule: ",
            "'cosine' is not valid",
            "expected 'linear' or 'constant'",
        ),
    ),
    "bool": (
        POLE + "    network_settings: {normalize: maybe}\n",
        PLAIN,
        ("file.yaml:5: behaviors.Pole.network_settings.normalize: ", "'maybe' is not valid", "expected true or false"),
    ),
    "list for map": (
        GYM + "behaviors: [Pole]\n",
        PLAIN,
        ("file.yaml:2: behaviors: ", "a list is not valid", "expected a map of keys and values"),
    ),
    "kind-foreign key": (
        "environment: {kind: gymnasium, api: aec, id: CartPole-v1}\nbehaviors:\n  Pole:\n    trainer_type: ppo\n",
        PLAIN,
        ("file.yaml:1: environment.api: ", "can't be combined with kind 'gymnasium'", "leave it out"),
    ),
    "two behaviours": (
        GYM + "behaviors: {A: {trainer_type: ppo}, B: {trainer_type: ppo}}\n",
        PLAIN,
        ("file.yaml:1: environment: ", "2 behaviours are listed", "needs 'behavior', the behaviour name of its agents"),
    ),
    "behaviour unlisted": (
        "environment: {kind: gymnasium, id: CartPole-v1, behavior: Pool}\n" + BEHAVIORS,
        PLAIN,
        ("file.yaml:1: environment.behavior: ", "'Pool' is not listed under behaviors", "did you mean 'Pole'?"),
    ),
    "factory without colon": (
        "environment: {kind: gymnasium, factory: mine}\n" + BEHAVIORS,
        PLAIN,
        (
            "file.yaml:1: environment.factory: ",
            "'mine' is not valid; expected module:Name",
            "such as 'my_package.my_module:MyClass'",
        ),
    ),
    "factory module": (
        "environment: {kind: gymnasium, factory: 'mien:make'}\n" + BEHAVIORS,
        PLAIN,
        ("file.yaml:1: ", "no module named 'mien'", "did you mean 'mine'?"),
    ),
    "factory attr": (
        "environment: {kind: gymnasium, factory: 'mine:mak'}\n" + BEHAVIORS,
        PLAIN,
        ("file.yaml:1: ", "has no attribute 'mak'", "did you mean 'make'?"),
    ),
    "factory not callable": (
        "environment: {kind: gymnasium, factory: 'mine:NUMBER'}\n" + BEHAVIORS,
        PLAIN,
        ("file.yaml:1: ", "got 3", "expected a callable that makes an environment"),
    ),
    "module raises": (
        "environment: {kind: gymnasium, factory: 'broken:make'}\n" + BEHAVIORS,
        PLAIN,
        ("file.yaml:1: ", "No module named 'nothing_of_that_name'", "broken.py:1: import nothing_of_that_name"),
    ),
    "stage": (
        POLE + "pipeline: {stages: [{use: 'mine:Stag', after: agent_processor}]}\n",
        PLAIN,
        ("file.yaml:5: pipeline.stages: ", "has no attribute 'Stag'", "it has: make"),
    ),
    "stage place": (
        POLE + "pipeline: {stages: [{use: 'mine:make', after: agent}]}\n",
        PLAIN,
        ("file.yaml:5: pipeline.stages.0.after: ", "'agent' is not valid", "expected 'agent_processor' or 'ghost'"),
    ),
    "missing file": (None, ("missing.yaml", *PLAIN), ("missing.yaml: ", "no such file", "missing.yaml)")),
    "set key": (
        POLE,
        ("--set", "behaviors.Pole.max_step=5", *PLAIN),
        ("--set behaviors.Pole.max_step=5: ", "unknown key", "did you mean 'max_steps'?"),
    ),
    "set form": (
        POLE,
        ("--set", "max_steps", *PLAIN),
        ("--set max_steps: ", "max_steps", "expected path.to.key=value"),
    ),
    "env with gym": (
        POLE,
        ("--env", "Game", *PLAIN),
        ("run-pipeline: --env Game: ", "runs gymnasium CartPole-v1", "keep one of the two"),
    ),
    "resume": (
        POLE,
        ("--resume",),
        ("run-pipeline: ", "there is no run 'ppo' in results", "Omit --resume or --inference"),
    ),
    "inference": (
        POLE,
        ("--inference",),
        ("run-pipeline: ", "there is no run 'ppo' in results", "Omit --resume or --inference"),
    ),
    "taken": (
        POLE,
        (
            "--run-id",
            "taken",
        ),
        ("run-pipeline: results/taken exists", "there is already a run", "Use --resume to resume it"),
    ),
    "init missing": (
        POLE,
        (
            "--initialize-from",
            "nobody",
        ),
        ("run-pipeline: checkpoint_settings.initialize_from: ", "holds no trained policy", "expected the id of a run"),
    ),
    "init_path": (
        POLE + "    init_path: nothing.pt\n",
        (),
        (
            "run-pipeline: behaviors.Pole.init_path: ",
            "there is no file nothing.pt",
            "a bare file name also needs initialize_from",
        ),
    ),
    "replay": (
        POLE,
        (
            "--replay",
            "no.stream",
        ),
        (
            "run-pipeline: replay: ",
            "no stream matches 'no.stream'",
            "expected a stream file, a folder of stream files",
        ),
    ),
    "unity exe": (
        "behaviors: {Ball: {trainer_type: ppo}}\n",
        (
            "--env",
            "Builds/Game",
        ),
        ("run-pipeline: ", "no Unity executable at Builds/Game", "set it with --env"),
    ),
    "memory": (
        POLE + "    network_settings: {memory: {memory_size: 5}}\n",
        PLAIN,
        ("file.yaml:5: behaviors.Pole.network_settings.memory.memory_size: ", "5 is odd", "expected an even number"),
    ),
    "curriculum": (
        POLE + "environment_parameters: {size: {curriculum: []}}\n",
        PLAIN,
        ("file.yaml:5: environment_parameters.size.curriculum: ", "is empty", "expected at least one"),
    ),
    "run id": (
        POLE,
        (
            "--run-id",
            "a/b",
        ),
        ("--run-id a/b: checkpoint_settings.run_id: ", "'a/b' is not a valid folder name", "use letters, digits"),
    ),
    "CartPole-v9": (
        "environment: {kind: gymnasium, id: CartPole-v9}\nbehaviors:\n  Pole:\n    trainer_type: ppo\n",
        TRIED,
        ("file.yaml:1: ", "`v9` for environment `CartPole` doesn't exist", "It provides versioned environments"),
    ),
}
"""The file, the options, and the words of the message: place, mistake, expectation or remedy."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text("NUMBER = 3\n\ndef make(): ...\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    (tmp_path / "results" / "taken").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_more_than_forty_of_them():
    assert len(MISTAKES) > 40


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (MISTAKES[name][1] == TRIED)) for name in MISTAKES]
)
def test_a_mistake_is_one_message_with_place_and_remedy(name, folder, capsys):
    text, options, (place, wrong, remedy) = MISTAKES[name]
    if text is not None:
        (folder / "file.yaml").write_text(text, encoding="utf-8")
        options = ("file.yaml", *options)
    assert main(options) == 2
    out, err = capsys.readouterr()
    told = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert len(told) == 1, err
    assert told[0].startswith(place), err
    assert wrong in told[0], err
    assert remedy in told[0], err
    assert out == ""
    assert [path.name for path in (folder / "results").iterdir()] == ["taken"], "nothing is made for it"
