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
        ("file.yaml:1: ", "No module named 'nothing_of_that_name'", "broken.py:1, in <module>"),
    ),
    "stage": (
        POLE + "pipeline: {stages: [{use: 'mine:Stag', after: agent_processor}]}\n",
        PLAIN,
        ("file.yaml:5: pipeline.stages: ", "has no attribute 'Stag'", "it has: make"),
    ),
    "missing file": (None, ("missing.yaml", *PLAIN), ("missing.yaml: ", "no such file", "missing.yaml)")),
    "set key": (
        POLE,
        ("--set", "behaviors.Pole.max_step=5", *PLAIN),
        ("--set behaviors.Pole.max_step=5: ", "unknown key", "did you mean 'max_steps'?"),
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
    "taken": (
        POLE,
        ("--run-id", "taken"),
        ("run-pipeline: results/taken exists", "there is already a run", "Use --resume to resume it"),
    ),
    "init missing": (
        POLE,
        ("--initialize-from", "nobody"),
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
        ("--replay", "no.stream"),
        ("run-pipeline: replay: ", "no stream matches 'no.stream'", "expected a stream file, a folder of stream files"),
    ),
    "unity exe": (
        "behaviors: {Ball: {trainer_type: ppo}}\n",
        ("--env", "Builds/Game"),
        ("run-pipeline: ", "no executable at Builds/Game", "Set it with --env"),
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
