"""The checks of a run before anything is started: what the configuration names has to be on the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.main.preflight import check_run, missing_parts

ONNX = Path(__file__).parents[2] / "data" / "ml_agents" / "ppo_hybrid" / "Simple.onnx"
PENDULUM = {"environment": {"kind": "gymnasium", "id": "Pendulum-v1"}}
CLONES = {"trainer_type": "bc", "hyperparameters": {"demo_path": "expert.demo"}}
GAIL = {"reward_signals": {"gail": {"demo_path": "expert.demo"}}}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"behaviors": {"A": {}}, "env_settings": {"env_path": "Builds/Absent"}}, "Builds/Absent"),
        ({"behaviors": {"A": {}}, "replay": {"streams": ["absent.stream"]}}, r"absent\.stream"),
        ({**PENDULUM, "behaviors": {"A": {"init_path": "absent.pt"}}}, r"A\.init_path: there is no file absent\.pt"),
        ({"behaviors": {"A": CLONES}}, r"A: demo_path 'expert\.demo': no file or folder matches"),
        ({**PENDULUM, "behaviors": {"A": GAIL}}, r"A: demo_path 'expert\.demo': no file or folder matches"),
    ],
)
def test_missing_files_of_a_run_are_named_before_it_starts(plain, message):
    with pytest.raises(RunError, match=message):
        check_run(RunConfig.from_plain(plain))


def test_a_stream_to_imitate_that_is_not_one_is_named_before_a_run_starts(tmp_path):
    (tmp_path / "a.stream").write_bytes(b"text")
    clones = {"trainer_type": "bc", "hyperparameters": {"demo_path": str(tmp_path / "a.stream")}}
    with pytest.raises(RunError, match=r"a\.stream: not a stream"):
        check_run(RunConfig.from_plain({"behaviors": {"A": clones}}))


def test_a_damaged_policy_to_start_from_is_named_before_a_run_starts(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"weights": torch.ones(100)}, path)
    data = path.read_bytes()
    path.write_bytes(data.replace(torch.ones(1).numpy().tobytes(), torch.zeros(1).numpy().tobytes(), 1))
    with pytest.raises(RunError, match=r"checkpoint\.pt is damaged: the checksum"):
        check_run(RunConfig.from_plain({**PENDULUM, "behaviors": {"A": {"init_path": str(path)}}}))


def test_all_that_is_missing_is_found_at_once(tmp_path):
    plain = {**PENDULUM, "behaviors": {"A": {**GAIL, "init_path": "absent.pt"}}}
    demonstration, start = missing_parts(RunConfig.from_plain(plain))
    assert "A: demo_path 'expert.demo': no file or folder matches" in demonstration
    assert "A.init_path: there is no file absent.pt" in start
    resumed = {**PENDULUM, "checkpoint_settings": {"resume": True, "run_id": "nobody", "results_dir": str(tmp_path)}}
    (nobody,) = missing_parts(RunConfig.from_plain({**resumed, "behaviors": {"A": {}}}))
    assert "there is no run 'nobody'" in nobody


VOLLEY = {"environment": {"kind": "builtin", "id": "Volley"}, "behaviors": {"Volley": {"brain": "player"}}}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (
            VOLLEY,
            r"behaviors\.Volley\.brain: 'player' stands for a person on the live page: start the run with --monitor-control",
        ),
        ({**VOLLEY, "monitor": {}}, "--monitor-control"),
        ({"behaviors": {"A": {"brain": "player"}}, "monitor": {"control": True}}, "A.brain: .* Unity shows its games"),
        (
            {"default_settings": {"brain": "player"}, "environment": VOLLEY["environment"]},
            "default_settings.brain: 'pl",
        ),
    ],
)
def test_the_error_for_a_person_who_can_not_play_explains_the_fix(plain, message):
    with pytest.raises(RunError, match=message):
        check_run(RunConfig.from_plain(plain))
    check_run(RunConfig.from_plain({**VOLLEY, "monitor": {"control": True}}))


def test_without_ray_a_run_on_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    plain = {**PENDULUM, "behaviors": {"A": {}}, "pipeline": {"hosts": {"actors": {"kind": "ray"}}}}
    with pytest.raises(
        RunError, match=r"hosts.actors.kind: 'ray' needs the package ray, .*pip install .headrace\[ray\]."
    ):
        check_run(RunConfig.from_plain(plain))


def test_without_torch_a_run_that_trains_says_which_extra_has_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for wanted in ({**PENDULUM, "behaviors": {"A": {}}}, {"default_settings": {}}):
        with pytest.raises(RunError, match=r'^training needs PyTorch, .*pip install "headrace\[train\]"`$'):
            check_run(RunConfig.from_plain(wanted))
    played = {"A": {"init_path": str(ONNX)}}
    check_run(RunConfig.from_plain({**PENDULUM, "behaviors": played, "checkpoint_settings": {"inference": True}}))
    check_run(RunConfig.from_plain({**PENDULUM, "behaviors": {"A": {"brain": "random"}}}))


@pytest.fixture
def left(tmp_path):
    """Asks about a run that ML-Agents left, with this checkpoint."""

    def check(content, **how):
        (tmp_path / "ppo" / "Ball").mkdir(parents=True)
        torch.save(content, tmp_path / "ppo" / "Ball" / "checkpoint.pt")
        settings = {"run_id": "ppo", "results_dir": str(tmp_path), "resume": True, **how}
        check_run(RunConfig.from_plain({**PENDULUM, "behaviors": {"Ball": {}}, "checkpoint_settings": settings}))

    return check


def test_a_run_of_ml_agents_that_can_not_be_resumed_is_refused_before_anything_is_written(left):
    with pytest.raises(
        RunError, match=r"--resume: .*Ball/checkpoint\.pt is not an ML-Agents checkpoint of ppo, sac or poca"
    ):
        left({"Policy": {}})


def test_a_run_of_ml_agents_is_played_whatever_its_checkpoint_holds(left):
    left({"Policy": {}}, inference=True)


def test_demonstrations_need_no_environment(tmp_path, monkeypatch):
    (tmp_path / "expert.demo").touch()
    monkeypatch.chdir(tmp_path)
    plain = {"behaviors": {"A": CLONES}, "env_settings": {"env_path": "Builds/Absent"}}
    check_run(RunConfig.from_plain(plain))


FILES = """
import resource, sys
from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.main.preflight import check_run
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
plain = {"environment": {"kind": "gymnasium", "id": "CartPole-v1", "behavior": "B"}, "behaviors": {"B": {}}}
plain["pipeline"] = {"hosts": {"actors": {"kind": "process", "replicas": int(sys.argv[1])}}}
try:
    check_run(RunConfig.from_plain(plain))
except RunError as error:
    print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of open files")
def test_the_limit_of_open_files_is_raised_for_many_actors_or_the_run_is_refused_before_it_starts():
    few, many = (
        subprocess.run([sys.executable, "-c", FILES, actors], capture_output=True, text=True, timeout=100, check=True)
        for actors in ("4", "12")
    )
    assert few.stdout == "860\n"
    assert many.stdout == (
        "pipeline.hosts.actors.replicas: 12 actors need 1230 open files in main, but the system allows "
        "1024: raise the hard limit (`ulimit -Hn`), or run fewer actors\n1024\n"
    )
