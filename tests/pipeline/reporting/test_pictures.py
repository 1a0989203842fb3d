"""Pictures of runs: which curves they show, which runs are seeds of one configuration, and that they harm no run."""

from __future__ import annotations

import io
import itertools
import shutil
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.pipeline import cli
from headrace.pipeline.reporting import pictures
from headrace.pipeline.reporting.pictures import (
    bootstrap_interval,
    draw_runs,
    interquartile_mean,
    read_runs,
    write_run_picture,
)
from headrace.pipeline.reporting.statistics import Summary
from headrace.pipeline.reporting.writers import TensorboardWriter

SB3_LOGS = Path(__file__).parents[2] / "data" / "stable_baselines3"
REWARD = "Environment/Cumulative Reward"


def run_folder(
    results: Path,
    name: str,
    seed: int = 0,
    lr: float = 1e-3,
    points: int = 5,
    statistics: Mapping[str, float] = MappingProxyType({}),
) -> Path:
    """A run's folder as a run leaves it, with straight lines for curves."""
    folder = results / name
    folder.mkdir(parents=True)
    plain = {
        "behaviors": {"Ball": {"hyperparameters": {"learning_rate": lr}}},
        "env_settings": {"seed": seed},
        "checkpoint_settings": {"run_id": name},
    }
    (folder / "configuration.yaml").write_text(yaml.safe_dump(plain))
    writer = TensorboardWriter(folder, resume=False)
    for step in range(1000, 1000 * points + 1, 1000):
        values = {REWARD: seed + step / 1000, **statistics}
        writer.write("Ball", {n: Summary("mean", v, v, 0.0, 1, v) for n, v in values.items()}, step)
        writer.write("Pipeline", {"Losses/none": Summary("mean", 1, 1, 0.0, 1, 1)}, step)
    writer.close()
    return folder


def size(png: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(png)).size


def test_runs_that_differ_in_their_seeds_alone_are_one_curve(tmp_path: Path):
    runs = read_runs(
        run_folder(tmp_path, name, seed, lr) for name, seed, lr in (("p1", 1, 1e-3), ("q1", 1, 1e-2), ("p2", 3, 1e-3))
    )
    groups = pictures._grouped(runs)
    assert {label: [run.name for run in group] for label, group in groups.items()} == {
        "p1, p2: IQM, 95 % interval": ["p1", "p2"],
        "q1": ["q1"],
    }


def test_curves_of_several_runs_are_compared_at_the_steps_that_all_have():
    curves = [{"steps": [0.0, 100, 200], "values": [0.0, 1, 2]}, {"steps": [50.0, 150, 250], "values": [10.0] * 3}]
    steps, values = pictures._over_common_range(curves, "steps")
    assert steps.tolist() == [50, 100, 150, 200]
    assert values.tolist() == [[0.5, 1, 1.5, 2], [10, 10, 10, 10]]


def test_the_interquartile_mean_is_that_of_the_middle_half_of_the_runs():
    of = np.array([9.0, 1, 2, 3, 4, 5, 6, 100])[:, None]
    assert interquartile_mean(of) == [4.5]  # 3, 4, 5, 6
    assert interquartile_mean(of[:7]) == [4.0]  # 2 to 6: a quarter of 7 runs, rounded down, is one run at each end
    assert interquartile_mean(of[:3]) == [4.0]


def test_the_interval_is_that_of_all_samples_of_the_runs_with_replacement():
    values = np.array([[1.0, 5], [2, 5], [4, 5], [8, 5]])
    exact = [interquartile_mean(np.array(sample))[0] for sample in itertools.product(values, repeat=4)]
    low, high = bootstrap_interval(values)
    assert [low[0], high[0]] == pytest.approx(np.quantile(exact, [0.025, 0.975]), abs=0.5)
    assert [low[1], high[1]] == [5, 5]
    assert bootstrap_interval(values[:2]).tolist() == [[1, 5], [2, 5]]  # two seeds span their interval


def cleanrl_log(logs: Path, seed: int) -> Path:
    """Write a log under CleanRL's names, as it does: with torch's writer, one value for each episode."""
    with warnings.catch_warnings(action="ignore"):
        from torch.utils.tensorboard.writer import SummaryWriter
    with SummaryWriter(str(logs / f"CartPole-v1__ppo__{seed}__170000000{seed}")) as writer:
        for episode in range(1, 151):
            writer.add_scalar("charts/episodic_return", episode + seed, 20 * episode)
            writer.add_scalar("charts/SPS", 1000, 20 * episode)
        writer.add_scalar("losses/value_loss", 0.5, 3000)
    return logs


def test_logs_of_other_libraries_share_the_panels_of_a_run(tmp_path: Path):
    logs = cleanrl_log(cleanrl_log(tmp_path / "runs", 1), 2)
    runs = read_runs([run_folder(tmp_path, "a"), SB3_LOGS, logs])
    assert [*pictures._grouped(runs)] == [
        "a",
        "PPO_1, PPO_2: IQM, 95 % interval",
        "CartPole-v1__ppo__1__1700000001, CartPole-v1__ppo__2__1700000002: IQM, 95 % interval",
    ]
    _, sb3, _, cleanrl, _ = (run.curves["Ball"] for run in runs)
    events = EventAccumulator(str(SB3_LOGS / "PPO_1")).Reload().Scalars("rollout/ep_rew_mean")
    assert sb3[REWARD]["steps"] == [event.step for event in events] == [512, 1024, 1536, 2048, 2560]
    assert sb3[REWARD]["values"] == pytest.approx([event.value for event in events], rel=1e-5)
    assert sb3[REWARD]["times"] == pytest.approx([event.wall_time - 1796033856.4 for event in events], abs=0.2)
    assert sb3["Policy/Entropy"]["values"][0] == pytest.approx(0.69, abs=0.01)  # of two nearly equal actions
    assert cleanrl[REWARD]["values"][:3] == [2, 2.5, 3]
    assert cleanrl[REWARD]["values"][-1] == np.mean(np.arange(51, 151) + 1)  # of the last 100 episodes, as in SB3
    assert cleanrl["Losses/Value Loss"]["values"] == [1]  # CleanRL logs half of the squared error
    assert size(draw_runs(runs, "times") or b"") > (400, 300)


def test_logs_of_other_libraries_have_panels_of_their_own_beside_several_behaviours(tmp_path: Path):
    runs = read_runs([run_folder(tmp_path, "a"), two_behaviours(tmp_path, "b"), SB3_LOGS / "PPO_1"])
    assert [*pictures._panels(runs)] == ["Ball", "Goalie", "log of another library"]


def two_behaviours(results: Path, name: str) -> Path:
    folder = run_folder(results, name)
    shutil.copytree(folder / "Ball", folder / "Goalie")
    return folder


def test_runs_of_the_same_name_are_told_apart_and_the_same_run_counts_once(tmp_path: Path):
    one, two = run_folder(tmp_path / "x", "a"), run_folder(tmp_path / "y", "a", lr=1e-2)
    assert [run.name for run in read_runs([one, two, one])] == ["x/a", "y/a"]


@pytest.mark.lengthy
def test_more_panels_make_a_larger_picture(tmp_path: Path):
    one = draw_runs(read_runs([run_folder(tmp_path, "a")]))
    five = draw_runs(read_runs([run_folder(tmp_path, "b", statistics={f"Losses/{name}": 1.0 for name in "wxyz"})]))
    assert one is not None
    assert five is not None
    assert size(five) > size(one)


@pytest.mark.lengthy
def test_a_run_that_ends_has_its_picture_in_its_folder(tmp_path: Path):
    folder = run_folder(tmp_path, "a")
    write_run_picture(folder)
    assert min(size((folder / "curves.png").read_bytes())) > 200


@pytest.mark.parametrize("points", [1, 4])
def test_a_run_of_few_summaries_has_no_picture(tmp_path: Path, points: int):
    folder = run_folder(tmp_path, "a", points=points)
    write_run_picture(folder)
    assert not (folder / "curves.png").exists()


def test_without_matplotlib_no_picture_is_tried_and_the_option_names_the_extra(tmp_path: Path, monkeypatch, capsys):
    folder = run_folder(tmp_path, "a")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_run_picture(folder)
    assert not (folder / "curves.png").exists()
    assert cli.main(["--plot", str(folder)]) == 2
    assert 'pip install "headrace[plot]"' in capsys.readouterr().err


# The option. ---------------------------------------------------------------------------------------------------------


@pytest.mark.lengthy
def test_a_plot_of_one_run_goes_to_its_folder_and_of_several_to_the_working_directory(
    tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "results", "a")
    run_folder(tmp_path / "results", "b")
    assert cli.main(["--plot", "a"]) == 0
    assert cli.main(["--plot", "a", str(tmp_path / "results" / "b"), "--x", "time"]) == 0
    assert capsys.readouterr().out.split() == ["results/a/curves.png", "curves.png"]
    assert Path("results/a/curves.png").is_file()
    assert Path("curves.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--plot", "nope"], "--plot nope: no such run: neither nope nor results/nope is a run folder"),
        (["--plot", "empty"], "--plot: empty has no curves yet; a run writes its first curves after summary_freq"),
        (["--view", "a", "--x", "time"], "--x works only with --plot"),
        (["--plot", "a", "--plot-file", "there/is/no.png"], "there/is/no.png can't be written: No such file"),
    ],
)
def test_invalid_plot_arguments_are_refused(tmp_path: Path, monkeypatch, capsys, arguments, expected):
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "results", "a")
    run_folder(tmp_path / "results", "empty", points=0)
    assert cli.main(arguments) == 2
    assert expected in capsys.readouterr().err
