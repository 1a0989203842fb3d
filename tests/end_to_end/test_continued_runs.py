"""Runs that go on from Python: by their result, and from the one file in which they were carried."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from run_configs import INLINE, cartpole, changed

from headrace import RunError, RunFolderError, load, load_policy, run


@pytest.mark.lengthy
def test_a_run_is_resumed_saved_loaded_and_resumed_elsewhere(tmp_path):
    plain = changed(cartpole(behaviors__CartPole__max_steps=600), INLINE)
    plain["pipeline"]["monitor_csv"] = True
    plain["checkpoint_settings"] = {"results_dir": tmp_path / "here", "run_id": "run", "force": True}
    first = run(plain)
    reached = first.behaviors["CartPole"].step
    more = first.resume(steps=500)
    assert more.folder == first.folder
    _, _, *rows = (first.folder / "CartPole" / "monitor.csv").read_text().splitlines()
    assert [int(row.split(",")[3]) for row in rows] == [*range(1, len(rows) + 1)]
    assert reached < sum(int(row.split(",")[1]) for row in rows) <= more.behaviors["CartPole"].step
    assert reached + 500 <= more.behaviors["CartPole"].step < reached + 600

    loaded = load(more.save(tmp_path / "pole"), tmp_path / "there", "copy")
    assert loaded.folder == tmp_path / "there" / "copy"
    assert loaded.behaviors["CartPole"].step == more.behaviors["CartPole"].step
    assert loaded.behaviors["CartPole"].version == more.behaviors["CartPole"].version
    assert loaded.behaviors["CartPole"].recent_return == pytest.approx(more.behaviors["CartPole"].recent_return)
    observation = np.array([0.0, 0.1, 0.0, -0.1], np.float32)
    assert load_policy(loaded.folder).predict(observation)[0] == load_policy(more.folder).predict(observation)[0]
    last = loaded.resume(steps=300)
    assert last.behaviors["CartPole"].step >= more.behaviors["CartPole"].step + 300
    assert last.folder == loaded.folder

    assert load(first.folder).behaviors["CartPole"].step == more.behaviors["CartPole"].step
    assert pickle.loads(pickle.dumps(last)).config is None
    with pytest.raises(RunError, match=r"resume\(steps=…\): must be at least 1, got 0"):
        last.resume(steps=0)
    (last.folder / "configuration.yaml").unlink()
    with pytest.raises(RunFolderError, match="configuration.yaml is missing"):
        load(last.folder)
    with pytest.raises(RunError, match="this is a saved run; extract its folder with headrace.load"):
        load_policy(tmp_path / "pole.zip")
