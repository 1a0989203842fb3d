"""The checks of a run before anything is started: what the configuration names has to be on the disk."""

from __future__ import annotations

import pytest
import torch

from config import RunConfig
from pipeline.common.errors import RunError
from pipeline.main.preflight import check_run

PENDULUM = {"environment": {"kind": "gymnasium", "id": "Pendulum-v1"}}
CLONES = {"trainer_type": "bc", "hyperparameters": {"demo_path": "expert.demo"}}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"behaviors": {"A": {}}, "env_settings": {"env_path": "Builds/Absent"}}, "Builds/Absent"),
        ({"behaviors": {"A": {}}, "replay": {"streams": ["absent.stream"]}}, r"absent\.stream"),
        ({**PENDULUM, "behaviors": {"A": {"init_path": "absent.pt"}}}, r"A\.init_path: there is no file absent\.pt"),
        ({"behaviors": {"A": CLONES, "B": {}}}, "A learns from demonstrations alone, and B does not"),
    ],
)
def test_what_a_run_lacks_is_named_before_it_starts(plain, message):
    with pytest.raises(RunError, match=message):
        check_run(RunConfig.from_plain(plain))


def test_a_run_of_ml_agents_is_not_resumed(tmp_path):
    (tmp_path / "ppo" / "Ball").mkdir(parents=True)
    torch.save({"Policy": {}}, tmp_path / "ppo" / "Ball" / "checkpoint.pt")
    settings = {"run_id": "ppo", "results_dir": str(tmp_path), "resume": True}
    with pytest.raises(RunError, match="is a run of ML-Agents, which can't be resumed here"):
        check_run(RunConfig.from_plain({**PENDULUM, "behaviors": {"Ball": {}}, "checkpoint_settings": settings}))


def test_demonstrations_need_no_environment():
    plain = {"behaviors": {"A": CLONES}, "env_settings": {"env_path": "Builds/Absent"}}
    check_run(RunConfig.from_plain(plain))
