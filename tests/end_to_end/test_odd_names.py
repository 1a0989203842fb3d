"""A behaviour whose name no file on Windows can have: trained, resumed and played as others are, on every system."""

from __future__ import annotations

import pytest
from run_configs import INLINE, cartpole
from runs import run_here

pytestmark = [pytest.mark.lengthy, pytest.mark.windows_too, pytest.mark.timeout(300)]
NAME, FOLDER = "aux.a:b|.", "%61ux.a%3Ab%7C%2E"


def test_a_behaviour_with_an_odd_name_is_trained_resumed_and_played(tmp_path):
    plain = cartpole(behaviors__CartPole__max_steps=600, behaviors__CartPole__checkpoint_interval=300, **INLINE)
    plain["behaviors"] = {NAME: plain["behaviors"].pop("CartPole")}

    trained = run_here(plain, tmp_path, "run").behaviors[NAME]
    plain["behaviors"][NAME]["max_steps"] = 900
    resumed = run_here(plain, tmp_path, "run", resume=True).behaviors[NAME]
    run_here({**plain, "inference": {"episodes": 1}}, tmp_path, "run", inference=True)

    assert resumed.step > trained.step >= 600
    assert resumed.export == tmp_path / "run" / FOLDER / f"{FOLDER}-{resumed.step}.pt"
    assert (tmp_path / "run" / f"{FOLDER}.onnx").is_file()
    assert len([*(tmp_path / "run" / FOLDER).glob("events.*")]) == 2
