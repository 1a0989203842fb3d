"""Children: which are started early, what becomes of them, and what they import."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from run_configs import INLINE, cartpole

from headrace.config import RunConfig
from headrace.pipeline.hosts.early_children import started_early
from headrace.pipeline.hosts.spawn import ChildProcess


class Idle:
    """In place of a child: nothing is started."""

    def __init__(self, name, modules=()):
        self.name, self.modules = name, modules

    def dismiss(self):
        pass


@pytest.fixture
def early():
    """Starts early what a configuration needs; yields the children."""

    @contextmanager
    def early(config):
        children = []

        def start(name, modules):
            children.append(Idle(name, modules))
            return children[-1]

        with started_early(config, start):
            yield children

    return early


def config(**changes):
    return RunConfig.from_plain(cartpole(**changes))


def test_learners_come_first_and_import_torch_and_actors_do_not(early):
    with early(config(pipeline__hosts__actors__replicas=2)) as made:
        assert [child.name for child in made] == ["learner-CartPole", "actor-0", "actor-1"]
        learner, actor, _ = made
        assert learner.modules == ["torch", "headrace.pipeline.roles.learner", "headrace.stages.trainer.ppo"]
        assert actor.modules == ["headrace.pipeline.roles.actor"]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (INLINE, []),
        ({"pipeline__hosts__learners__kind": "inline"}, ["actor-0"]),
        ({"pipeline__hosts__actors__kind": "inline"}, ["learner-CartPole"]),
        ({"pipeline__deterministic": True}, []),
        ({"checkpoint_settings__inference": True}, ["actor-0"]),
    ],
)
def test_only_what_runs_in_a_process_is_started(early, changes, names):
    with early(config(**changes)) as made:
        assert [child.name for child in made] == names


def test_a_dismissed_child_is_no_more():
    child = ChildProcess("nobody", ["this_module_is_not_there"])
    child.dismiss()
    assert not child.alive


@pytest.mark.lengthy
def test_a_child_whose_parent_ends_before_its_start_message_ends_too():
    child = ChildProcess("nobody")
    child.start_socket.close()
    assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT).si_status == 1
    child.dismiss()


def test_a_child_that_dies_before_its_start_message_shows_by_its_exit_status():
    child = ChildProcess("nobody")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    async def live():
        await child.assign({}, [])
        return await child.wait()

    assert asyncio.run(live()) == -9
    child.close()


async def failure_of(child, start_message):
    await child.assign(start_message, [])
    assert await child.wait() == 1
    child.close()
    return child.failure


@pytest.mark.lengthy
def test_a_child_that_can_not_start_says_why():
    half_a_plan = {"role": "actor", "argv": []}
    start_message = {"links": {}, "path": sys.path, "plan": half_a_plan, "orders": 999, "reports": 0}
    failure = asyncio.run(failure_of(ChildProcess("actor-0"), start_message))
    assert failure.stage == "actor-0"
    assert failure.message.startswith("the process of actor-0 ended with status 1:\nTraceback (most recent call last)")
    assert "TypeError" in failure.message.splitlines()[-1]


@pytest.mark.lengthy
def test_the_stack_of_a_child_that_crashes_in_c_is_shown(tmp_path, monkeypatch, caplog):
    (tmp_path / "crashing.py").write_text("import faulthandler\nfaulthandler._sigsegv()\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = ChildProcess("actor-0", ["crashing"])

    async def live():
        await child.assign({"links": {}}, [])
        return await child.wait(), child.failure

    assert asyncio.run(live()) == (-signal.SIGSEGV, None)
    child.close()
    assert "The process of actor-0 has crashed:\nFatal Python error: Segmentation fault" in caplog.text
    assert "crashing.py" in caplog.text


IMPORTED = """
import sys
import headrace.pipeline.hosts.run_host, {}
print(*sorted({{name.partition(".")[0] for name in sys.modules}} | {{name for name in sys.modules if "." in name}}))
"""
UNUSED = {
    "grpc",
    "gymnasium",
    "matplotlib",
    "tensorboard",
    "headrace.config.legacy",
    "headrace.pipeline.run",
    "headrace.pipeline.main",
    "headrace.pipeline.reporting.reporter",
}


def imported(modules: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", IMPORTED.format(modules)], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.lengthy
def test_an_actor_does_not_import_torch_legacy_readers_or_reporting():
    assert not imported("headrace.pipeline.roles.actor") & {*UNUSED, "torch"}


@pytest.mark.lengthy
def test_a_learner_imports_no_environment_no_compiler_and_no_demo_files():
    others = {
        "google.protobuf",
        "headrace.stages.actor",
        "headrace.stages.ghost",
        "headrace.stages.environments.engines.unity",
        "sympy",
        "torch._dynamo",
        "torch.onnx",
    }
    trainers = "headrace.stages.trainer.ppo, headrace.stages.trainer.sac"
    assert not imported(f"headrace.pipeline.roles.learner, {trainers}") & {*UNUSED, *others}
