"""Run from the project's folder: `python -m pytest`."""

from gymnasium.utils.env_checker import check_env
from src.ferry import Ferry

from headrace import evaluate, load_config, run


def test_the_environment_keeps_gymnasiums_rules():
    check_env(Ferry(), skip_render_check=True)


def test_a_short_run_learns_to_cross(tmp_path):
    here = [f"checkpoint_settings.results_dir={tmp_path}", "checkpoint_settings.run_id=test", "env_settings.seed=0"]
    inline = ["pipeline.hosts.actors.kind=inline", "pipeline.hosts.learners.kind=inline"]  # starts quickly
    result = run(load_config("train.yaml", here + inline))
    assert evaluate(result.folder, Ferry(), episodes=20, seed=0).mean > 0.8
