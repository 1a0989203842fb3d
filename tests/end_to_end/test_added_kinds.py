"""A kind that a script or a YAML's module adds is known in all processes of a run; test_users_modules.py has one that a package adds."""

from __future__ import annotations

import os
import subprocess
import sys

from run_configs import cartpole
from runs import COMMAND

KIND = """
import dataclasses
from headrace import ENVIRONMENT_KINDS
from headrace.stages.environments.gymnasium.making import make_gymnasium_group

ENVIRONMENT_KINDS["poles"] = dataclasses.replace(ENVIRONMENT_KINDS["gymnasium"], meaning="poles", group="train:make")


def make(request):
    return make_gymnasium_group(request)
"""
PLAIN = cartpole(
    behaviors__CartPole__max_steps=600,
    environment__kind="poles",
    pipeline__hosts__learners__kind="inline",  # which knows of no environment
    checkpoint_settings={"run_id": "poles"},
)
SCRIPT = f"""
import sys; sys.path.append({str(COMMAND.parents[1])!r})
{KIND}

if __name__ == "__main__":
    import headrace
    print(headrace.run({PLAIN!r}).behaviors["CartPole"].step)
"""


def test_an_environment_kind_that_a_script_adds_is_known_in_process_hosts(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.splitlines()[-1]) >= 600


def test_an_environment_kind_of_a_module_beside_the_yaml_is_known_in_process_hosts(start, tmp_path):
    module = tmp_path / "modules" / "poles.py"
    module.parent.mkdir()
    module.write_text(KIND.replace("train:make", "poles:make"))
    command = start({"plugins": ["poles"], **PLAIN}, beside=[module])
    assert command.wait() == 0, command.output
    assert "CartPole: 6" in command.output
