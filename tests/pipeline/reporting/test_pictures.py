"""Pictures of runs: which curves they show, which runs are seeds of one configuration, and that they harm no run."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from PIL import Image

from headrace.pipeline import cli
from headrace.pipeline.reporting import pictures
from headrace.pipeline.reporting.pictures import draw_runs, read_run, write_run_picture
from headrace.pipeline.reporting.statistics import Summary
from headrace.pipeline.reporting.writers import TensorboardWriter

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
    runs = [
        read_run(run_folder(tmp_path, name, seed, lr))
        for name, seed, lr in (("p1", 1, 1e-3), ("q1", 1, 1e-2), ("p2", 3, 1e-3))
    ]
    groups = pictures._grouped(runs)
    assert {label: [run.name for run in group] for label, group in groups.items()} == {
        "p1, p2: mean ± SD": ["p1", "p2"],
        "q1": ["q1"],
    }


def test_curves_of_several_runs_are_compared_at_the_steps_that_all_have():
    steps, values = pictures._over_common_steps(
        [{"steps": [0, 100, 200], "values": [0, 1, 2]}, {"steps": [50, 150, 250], "values": [10, 10, 10]}]
    )
    assert steps.tolist() == [50, 100, 150, 200]
    assert values.tolist() == [[0.5, 1, 1.5, 2], [10, 10, 10, 10]]


@pytest.mark.lengthy
def test_more_panels_make_a_larger_picture(tmp_path: Path):
    one = draw_runs([read_run(run_folder(tmp_path, "a"))])
    five = draw_runs([read_run(run_folder(tmp_path, "b", statistics={f"Losses/{name}": 1.0 for name in "wxyz"}))])
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
    assert cli.main(["--plot", "a", str(tmp_path / "results" / "b")]) == 0
    assert capsys.readouterr().out.split() == ["results/a/curves.png", "curves.png"]
    assert Path("results/a/curves.png").is_file()
    assert Path("curves.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--plot", "nope"], "--plot nope: no such run: neither nope nor results/nope is a run folder"),
        (["--plot", "empty"], "--plot: empty has no curves yet; a run writes its first curves after summary_freq"),
        (["--plot", "a", "--plot-file", "there/is/no.png"], "there/is/no.png can't be written: No such file"),
    ],
)
def test_invalid_plot_arguments_are_refused(tmp_path: Path, monkeypatch, capsys, arguments, expected):
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "results", "a")
    run_folder(tmp_path / "results", "empty", points=0)
    assert cli.main(arguments) == 2
    assert expected in capsys.readouterr().err
