"""Which file a behaviour starts from."""

import pytest

from config import RunConfig
from pipeline.errors import RunError
from pipeline.warm_start import initial_policy


def starting_from(results, **more):
    settings = {"results_dir": str(results), "initialize_from": "first"}
    return RunConfig.from_plain({"checkpoint_settings": settings, **more})


@pytest.fixture
def trained(tmp_path):
    """A run of two behaviours with a few exports each."""
    for name in ("Listed", "Unlisted"):
        (tmp_path / "first" / name).mkdir(parents=True)
        for step in (900, 1000):
            (tmp_path / "first" / name / f"{name}-{step}.pt").write_bytes(b"")
    return tmp_path


def test_a_behaviour_that_only_default_settings_describe_starts_from_the_other_run_too(trained):
    config = starting_from(trained, default_settings={"max_steps": 10}, behaviors={"Listed": {}})
    for name in ("Listed", "Unlisted"):
        assert initial_policy(config, name) == trained / "first" / name / f"{name}-1000.pt"


def test_a_behaviour_that_the_other_run_has_not_trained_is_named(trained):
    with pytest.raises(RunError, match=r"initialize_from: .*Other holds no trained policy \(Other-<step>\.pt\)"):
        initial_policy(starting_from(trained, default_settings={}), "Other")


def test_a_behaviour_with_a_slash_in_its_name_starts_from_the_folder_that_it_was_saved_in(tmp_path):
    (tmp_path / "first" / "Team_Ball").mkdir(parents=True)
    (tmp_path / "first" / "Team_Ball" / "Team_Ball-50.pt").write_bytes(b"")
    config = starting_from(tmp_path, default_settings={})
    assert initial_policy(config, "Team/Ball") == tmp_path / "first" / "Team_Ball" / "Team_Ball-50.pt"
