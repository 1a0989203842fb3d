"""Games that speak the open protocol train like any other environment: under Node, in a page, in a real engine."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml
from browsers import complaints, needs_browser, opened_browser
from engines import needs_godot3, needs_godot4
from open_runs import GAME, free_port
from runs import run_here

from headrace.pipeline.run import RunOptions

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "browser_game"
INLINE = {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")


def game(*arguments, settings=None, env=None, **sections):
    """A run of the stand-in by a PPO trainer."""
    learns = {
        "trainer_type": "ppo",
        "hyperparameters": {"buffer_size": 512, "batch_size": 64, "learning_rate": 1e-3},
        "max_steps": 1_000,
        "summary_freq": 500,
        "time_horizon": 16,
        "network_settings": {"hidden_units": 32, "num_layers": 1},
        **(settings or {}),
    }
    return {
        "environment": {"kind": "open_protocol"},
        "env_settings": {
            "env_path": sys.executable,  # the system's own need not have msgpack
            "env_args": [str(GAME), "--agents=16", *arguments],
            "base_port": 0,
            "seed": 3,
            **(env or {}),
        },
        "behaviors": {"Agent": learns},
        "pipeline": INLINE,
        **sections,
    }


def trained(tmp_path, plain, **options):
    """Run; returns the result and the mean reward of each summary."""
    rewards = []
    watched = RunOptions(on_summary=lambda summary: rewards.append(summary.mean_reward), **options)
    result = run_here(plain, tmp_path / "results", "run", watched)
    return result, [reward for reward in rewards if reward is not None]


def test_agents_that_come_and_go_and_decide_on_demand_learn(tmp_path):
    hyperparameters = {"buffer_size": 256, "batch_size": 32, "learning_rate": 3e-3}
    settings = {"hyperparameters": hyperparameters, "max_steps": 6_000, "summary_freq": 1_000}
    result, rewards = trained(tmp_path, game("--format=json", settings=settings))
    assert rewards[0] < 7 < 8.5 < rewards[-1]  # of some 9 at most, and 4.5 by chance
    log = (result.folder / "run_logs" / "Game-0.log").read_text()
    assert "WRONG" not in log


@pytest.mark.parametrize("kind", ["reach", "masked", "picture"])
def test_numbers_masks_and_pictures_go_through_a_run(tmp_path, kind):
    result, rewards = trained(tmp_path, game(f"--game={kind}", "--format=msgpack"))
    assert result.behaviors["Agent"].step >= 1_000
    assert rewards
    assert "WRONG" not in (result.folder / "run_logs" / "Game-0.log").read_text()


def test_a_group_is_learned_by_poca(tmp_path):
    result, _ = trained(tmp_path, game("--game=together", settings={"trainer_type": "poca"}))
    assert result.behaviors["Agent"].step >= 1_000


def test_a_game_that_breaks_once_is_restarted_and_the_run_continues(tmp_path, caplog):
    """Each fault is in tests/stages/environments/engines/open_protocol."""
    once = f"--fault_once={tmp_path / 'once'}"
    result, _ = trained(tmp_path, game("--fault=exit5", "--fault_at=20", once, env={"num_envs": 2}))
    assert result.behaviors["Agent"].step >= 1_000
    assert "Restarting Game" in caplog.text
    assert "the others continue" in caplog.text


def test_a_game_that_sends_end_ends_the_run_normally(tmp_path):
    result, _ = trained(tmp_path, game("--fault=end", "--fault_at=20"))
    assert result.behaviors["Agent"].step < 1_000
    assert result.checkpoint >= 0


def example(name, **changes):
    """One of the examples, whose paths start in the repository."""
    plain = yaml.safe_load((EXAMPLE / name).read_text())
    if "env_settings" in plain:
        plain["env_settings"]["env_args"][0] = str(ROOT / plain["env_settings"]["env_args"][0])
    return {**plain, "pipeline": INLINE, **changes}


@pytest.fixture(scope="module")
def catcher(tmp_path_factory):
    """The results folder in which the game in JavaScript was trained under Node."""
    folder = tmp_path_factory.mktemp("catch")
    plain = example("train.yaml")
    plain["behaviors"]["Catcher"]["max_steps"] = 50_000
    plain["behaviors"]["Catcher"]["summary_freq"] = 10_000
    result, rewards = trained(folder, plain)
    assert rewards[0] < 0 < 8 < rewards[-1]  # of 10
    return result.folder


@needs_node
def test_a_game_in_javascript_is_trained_under_node(catcher):
    model = onnxruntime.InferenceSession(catcher / "Catcher.onnx")
    assert model.get_inputs()[0].shape[-1] == 3


@pytest.mark.slow
@needs_node
@needs_browser
def test_the_policy_plays_in_the_page(catcher):
    port = free_port()
    command = [
        *(
            sys.executable,
            str(ROOT / "bin" / "run-pipeline"),
            str(EXAMPLE / "play.yaml"),
            "--inference",
            "--episodes=1",
        ),
        *(f"--results-dir={catcher.parent}", "--run-id=run", f"--base-port={port}"),
    ]
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(EXAMPLE))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as pages,
        opened_browser() as page,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run,
    ):
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        assert run.stdout is not None
        output = [next(line for line in run.stdout if "Listening on port" in line)]
        page.get(f"http://127.0.0.1:{pages.server_port}/index.html?trainer=ws://127.0.0.1:{port}")
        output += run.stdout
        said = page.execute_script("return document.getElementById('said').textContent")
        errors = [each for each in complaints(page) if "favicon" not in each]
        pages.shutdown()
    assert run.returncode == 0, output
    caught, missed = (int(number) for number in re.findall(r"\d+", said))
    assert (caught + missed, missed < 3) == (10, True)
    assert "the trainer has ended" in said
    assert not errors


@pytest.mark.parametrize(
    "file",
    [
        pytest.param("godot/open.yaml", marks=needs_godot3),
        pytest.param("godot4/chase.yaml", marks=needs_godot4),
    ],
)
def test_a_game_in_gdscript_is_trained_in_a_real_engine(tmp_path, file):
    example = ROOT / "examples" / file
    plain = yaml.safe_load(example.read_text())
    plain["env_settings"]["env_path"] = str(example.with_name("build"))
    plain["behaviors"]["Chase"]["max_steps"] = 60_000
    result, rewards = trained(tmp_path, {**plain, "pipeline": INLINE})
    assert rewards[0] < 2 < 6 < rewards[-1]
    assert np.isfinite(rewards).all()
    for build in (0, 1):
        assert "The trainer has sent close" in (result.folder / "run_logs" / f"Game-{build}.log").read_text()
