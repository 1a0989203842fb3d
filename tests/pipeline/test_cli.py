"""The command line: what it prints, its exit status, and that it imports nothing heavy without need."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_configs import INLINE, cartpole
from runs import COMMAND

from headrace.config import load_config
from headrace.pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))
GOOD = """\
environment: {kind: gymnasium, id: CartPole-v1}
behaviors:
  Pole:
    trainer_type: ppo
    max_steps: 5000
"""
THREE_MISTAKES = """\
environment: {kind: gymnasium, id: CartPole-v1}
behaviors:
  Pole:
    trainer_type: ppo
    max_step: 5000
    time_horizon: -1
pipelines: {}
"""

WATCHED_MAIN = """
import json, sys

class Refuse:
    tried = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "grpc", "gymnasium", "tensorboard"}:
            self.tried.append(name)
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, Refuse())
from headrace.pipeline.cli import main
statuses = []
for arguments in json.loads(sys.argv[1]):
    try:
        statuses.append(main(arguments))
    except SystemExit as end:
        statuses.append(end.code or 0)
print(json.dumps({"statuses": statuses, "tried": Refuse.tried}), file=sys.stderr)
"""
"""`main` where the heavy packages can't be imported; notes also attempts that somebody catches."""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD, encoding="utf-8")
    return path


@pytest.mark.lengthy
def test_help_and_validation_import_nothing_heavy_and_write_nothing(good, tmp_path):
    asked = [
        ["--help"],
        ["--version"],
        ["no-such-file.yaml"],
        [str(good), "--validate", "--set", "nonsense=1"],
        [str(good), "--validate", "--no-env-check"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_MAIN, json.dumps(asked)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert [each.name for each in tmp_path.iterdir()] == ["good.yaml"]
    assert json.loads(done.stderr.splitlines()[-1]) == {"statuses": [0, 0, 2, 2, 0], "tried": []}, done.stderr
    assert "behavior Pole" in done.stdout


def test_the_version_is_that_of_headrace(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("headrace ")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid_and_shows_its_pipeline(example, capsys):
    environment = load_config(example).environment
    module, _, name = str(getattr(environment, "id", "")).partition(":")
    if name:  # of a package that is none of ours
        pytest.importorskip(module)
    if environment is not None and environment.kind == "open_spiel":
        pytest.importorskip("pyspiel")
    assert main([str(example), "--validate", "--no-env-check"]) == 0
    shown = capsys.readouterr()
    config = load_config(example)
    assert shown.err == ""
    assert "environment → agent_processor" in shown.out or "demonstrations for" in shown.out
    for behavior, settings in config.behaviors.items():
        assert f"behavior {behavior}:" in shown.out
        assert f"max_steps {settings.max_steps}" in shown.out


def test_environment_parameters_are_shown(tmp_path, capsys):
    path = tmp_path / "told.yaml"
    path.write_text(
        "behaviors: {Pole: {trainer_type: ppo}}\n"
        "environment: {kind: gymnasium, id: CartPole-v1}\n"
        "environment_parameters:\n"
        "  gravity: 9.5\n"
        "  mass: {sampler_type: uniform, sampler_parameters: {min_value: 1, max_value: 2, seed: 3}}\n"
        "  length:\n"
        "    curriculum:\n"
        "      - {name: Short, value: 1, completion_criteria: {behavior: Pole, min_lesson_length: 9}}\n"
        "      - {name: Long, value: 2}\n",
        encoding="utf-8",
    )
    assert main([str(path), "--validate", "--no-env-check"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "parameter" in line] == [
        "environment parameter gravity: 9.5",
        "environment parameter mass: uniform, min_value 1.0, max_value 2.0",
        "environment parameter length: lessons Short → Long",
    ]


def test_a_mistake_stops_a_run_before_it_starts(tmp_path, monkeypatch, in_this_process):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.yaml"
    path.write_text(THREE_MISTAKES, encoding="utf-8")
    assert f"{path}:5: " in in_this_process(main, str(path), status=2)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("arguments", [["--seed", "soon"], ["--no-such-option"], ["--seed"]])
def test_a_wrong_command_exits_with_status_2_and_says_how_it_is_used(arguments, good, capsys):
    with pytest.raises(SystemExit) as end:
        main([str(good), *arguments])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: run-pipeline")


@pytest.mark.lengthy
def test_a_run_that_can_not_start_says_why_without_a_traceback_and_makes_no_folder(
    good, tmp_path, monkeypatch, in_this_process
):
    """Other reasons are in test_newcomers_mistakes.py."""
    monkeypatch.chdir(tmp_path)
    said = in_this_process(main, str(good), "--replay", "good.yaml", status=2)
    assert "good.yaml" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == [good]


def test_without_a_file_everything_has_its_default_with_a_warning(capsys):
    assert main(["--validate"]) == 0
    assert "warning: no configuration file was given" in capsys.readouterr().err


def test_a_mistake_in_an_option_is_reported_with_the_option(good, capsys):
    assert main([str(good), "--validate", "--num-envs", "0", "--torch-device", "cuda:x"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in told] == ["--num-envs 0", "--num-envs 0", "--torch-device cuda:x"]
    assert "torch_settings.device: 'cuda:x' is not a torch device" in told[-1]


def test_a_unity_executable_is_refused_if_the_file_has_an_environment(good, capsys):
    assert main([str(good), "--validate", "--env", "Builds/Ball"]) == 2
    assert "--env Builds/Ball: the configuration's 'environment' section" in capsys.readouterr().err


def test_the_name_under_which_it_was_called_is_the_name_that_it_uses(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/mlagents-learn"])
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.startswith("usage: mlagents-learn [CONFIG] [options]")
    assert main(["--multi-gpu", "--validate"]) == 2
    assert capsys.readouterr().err.startswith("mlagents-learn: --multi-gpu: ")


def test_only_an_old_file_in_todays_form_is_printed(tmp_path, capsys):
    path = tmp_path / "old.yaml"
    path.write_text("default: {trainer: ppo}\nBall: {batch_size: 64, buffer_size: 640}\n", encoding="utf-8")
    assert main(["--convert", str(path)]) == 0
    shown = capsys.readouterr()
    converted = yaml.safe_load(shown.out)
    assert converted["behaviors"]["Ball"]["hyperparameters"] == {"batch_size": 64, "buffer_size": 640}
    assert "trainer: is now 'trainer_type'" in shown.err
    assert list(tmp_path.iterdir()) == [path]


def test_an_entry_of_rl_zoo_is_printed_as_a_run_and_omitted_keys_have_their_own_exit_status(tmp_path, capsys):
    path = tmp_path / "sac.yml"
    path.write_text("Own-v0: {n_timesteps: 9000}\nHard-v0: {n_timesteps: 9000, n_steps: 3}\n", encoding="utf-8")
    assert main(["--convert", str(path), "--id", "Own-v0"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["behaviors"]["Own"]["trainer_type"] == "sac"
    assert main(["--convert", str(path), "--id", "Hard-v0"]) == 1
    shown = capsys.readouterr()
    assert yaml.safe_load(shown.out)["behaviors"]["Hard"]["trainer_type"] == "sac"
    assert "sac.yml:2: n_steps: 3: has no equivalent" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--convert", "FILE"], "name the environment, as in 'run-pipeline --convert"),
        (["FILE", "--validate"], "is an rl-baselines3-zoo file; convert one of its entries first"),
        (["FILE", "--id", "Own-v0"], "--id and --algo work only with --convert"),
        (["--convert", "FILE", "--id", "Own-v0", "--lesson", "1"], "--id and --algo are for an rl-baselines3-zoo file"),
    ],
)
def test_an_invalid_request_for_an_entry_is_refused(arguments, message, tmp_path, capsys):
    path = tmp_path / "sac.yml"
    path.write_text("Own-v0: {n_timesteps: 9000}\n", encoding="utf-8")
    assert main([str(path) if word == "FILE" else word for word in arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, message in shown.err) == ("", True)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "asked", [pytest.param(("--validate", "--no-env-check"), marks=pytest.mark.slow), ("--convert",)]
)
def test_a_reader_that_closes_the_pipe_is_not_a_failure(asked, good, tmp_path):
    read, write = os.pipe()
    os.close(read)
    arguments = [sys.executable, ROOT / "bin" / "run-pipeline", *asked, str(good)]
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(arguments, stdout=closed, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.lengthy
def test_a_tournament_prints_a_rated_table_and_names_its_files(tmp_path, capsys):
    path = tmp_path / "volley.yaml"
    path.write_text("environment: {kind: builtin, id: Volley, options: {points_to_win: 1}}\nbehaviors: {Volley: {}}\n")
    where = ["--results-dir", str(tmp_path / "results"), "--run-id", "cup", "--seed", "1"]
    assert main([str(path), "--episodes", "4", *where, "--tournament", "random", "scripted"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^player +ELO \(95 %\)", printed, re.MULTILINE)
    assert re.search(r"^scripted +\d+ ± \d+", printed, re.MULTILINE)
    assert str(tmp_path / "results" / "cup" / "tournament.json") in printed
    assert (tmp_path / "results" / "cup" / "tournament.png").is_file()


def test_a_tournament_with_an_unknown_game_or_player_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--tournament", "random", "scripted"]) == 2
    assert "the game is unknown" in capsys.readouterr().err
    path = tmp_path / "volley.yaml"
    path.write_text("environment: {kind: builtin, id: Volley}\nbehaviors: {Volley: {}}\n")
    assert main([str(path), "--tournament", "random", "nobody"]) == 2
    assert "--tournament nobody: unknown player" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--run_id", "r"], "unrecognized arguments: --run_id r; did you mean '--run-id'?"),
        (["--resum"], "unrecognized arguments: --resum; did you mean '--resume'?"),
        (["--run", "r"], "unrecognized arguments: --run r; did you mean '--run-id'?"),
        (["--nm-envs=4"], "unrecognized arguments: --nm-envs=4; did you mean '--num-envs'?"),
        (["--nothing-like-it"], "unrecognized arguments: --nothing-like-it\n"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_one_that_was_meant_and_none_is_abbreviated(capsys, words, hint):
    with pytest.raises(SystemExit) as end:
        main(["some.yaml", *words])
    assert end.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.lengthy
def test_a_run_logs_json_lines_with_its_name_and_the_behaviours_steps(tmp_path, in_this_process):
    config = tmp_path / "pole.yaml"
    hosts = INLINE | {"pipeline__hosts__learners__kind": "process"}
    config.write_text(yaml.safe_dump(cartpole(**hosts)), encoding="utf-8")
    said = in_this_process(
        main, str(config), "--log-format", "json", "--run-id", "logged", "--results-dir", str(tmp_path)
    )
    lines = [json.loads(line) for line in said.splitlines()]
    assert {line["run_id"] for line in lines} == {"logged"}
    assert [line["step"] for line in lines if "Mean Reward" in line["message"]] == [1000, 2000, 3000]
    about = [
        line
        for line in lines
        if line["message"].startswith(("CartPole", "Connected", "Starting", "Exported", "Copied"))
    ]
    assert [line["message"] for line in about if line.get("behavior") != "CartPole"] == []
    assert lines[-1]["message"].startswith("CartPole: 3")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
@pytest.mark.parametrize("action", ["--validate --no-env-check", "--convert"])
def test_a_configuration_is_read_once_from_a_pipe_or_from_standard_input(tmp_path, action):
    text = "environment: {kind: gymnasium, id: CartPole-v1}\nbehaviors: {CartPole: {max_steps: 77}}\n"
    for config in ("-", "/dev/fd/0"):
        command = [sys.executable, str(COMMAND), *action.split(), config]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=100, cwd=tmp_path)
        assert (done.returncode, "77" in done.stdout) == (0, True), done.stderr
