"""What ML-Agents' own C# package said, played to the low-level interface and to its wrappers."""

from __future__ import annotations

import numpy as np
import pytest
from demo_samples import delimited
from recorded_unity import FOLDER, NAMES, PlayedRecording, said
from unity_runs import free_port

from headrace.stages.environments.engines.unity.columns import BehaviorReader
from headrace.stages.environments.engines.unity.demo_steps import META_ROOM, read_demo
from headrace.stages.environments.engines.unity.messages import (
    AgentActionProto,
    AgentInfoActionPairProto,
    DemonstrationMetaProto,
)
from headrace.stages.errors import StageError
from headrace.unity import UnityCommunicatorStoppedException, UnityEnvironment, UnityParallelEnv


class Recorded(UnityEnvironment):
    """A low-level environment on a played recording."""

    def __init__(self, name: str) -> None:
        self.DEFAULT_EDITOR_PORT = free_port()
        self.recording = PlayedRecording(name, self.DEFAULT_EDITOR_PORT)
        super().__init__()


@pytest.mark.parametrize("name", NAMES)
def test_each_agent_of_a_recording_gets_its_action(name, caplog):
    env = Recorded(name)
    try:
        with pytest.raises(UnityCommunicatorStoppedException):
            while True:
                env.step()
    finally:
        env.close()
    assert env.recording.wrong() == []
    unread = [message for message in caplog.messages if "sends messages on the side channel" in message]
    assert sum("StatsSideChannel" in message for message in unread) == (name in ("basic", "late", "two"))
    assert len(unread) == {"basic": 1, "late": 1, "two": 2}.get(name, 0)


@pytest.mark.parametrize("name", ["basic", "flick5", "late"])
def test_agents_keep_their_number_and_possible_agents_stay_few(name):
    pytest.importorskip("pettingzoo")
    env = UnityParallelEnv(recorded := Recorded(name))
    most = 0
    try:
        env.reset()
        while env.agents:
            before = set(env.agents)
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            assert set(env.agents) <= set(env.possible_agents)
            most = max(most, len(env.possible_agents) - len(before))
    except UnityCommunicatorStoppedException:
        pass
    finally:
        env.close()
    assert recorded.recording.wrong() == []
    assert most <= 8, "four agents live at a time, and each has ended at most once in a step"


def pictures(name: str, sensor: str, package: str) -> set[bytes]:
    """Return the different pictures of a sensor in a recording, as bytes from 0 to 255."""
    brains, seen = {}, set()
    for message in said(name):
        output = message.unity_output
        brains |= {brain.brain_name: brain for brain in output.rl_initialization_output.brain_parameters}
        for behavior, infos in output.rl_output.agentInfos.items():
            if infos.value:
                reader = BehaviorReader(brains[behavior], infos.value[0], "Unity", package)
                index = [spec.name for spec in reader.spec.observations].index(sensor)
                images = reader.read(infos.value).observations[index]
                assert images.shape[1:] == (3, 20, 20)
                whole = images if images.dtype == np.uint8 else np.rint(images * 255).astype(np.uint8)
                seen |= {image.tobytes() for image in whole}
    return seen


@pytest.mark.parametrize("package", ["3.0.0-exp.1", "3.0.0"])
def test_an_uncompressed_image_equals_the_same_image_in_png_although_these_packages_mix_up_its_pixels(package):
    assert pictures("visraw", "raw", package) == pictures("vispng", "png", package)


@pytest.mark.parametrize("package", ["2.3.0-exp.3", "4.0.0"])
def test_the_images_of_other_packages_keep_the_order_of_their_shape(package):
    stated = pictures("visraw", "raw", package)
    in_pixels = {np.frombuffer(one, np.uint8).reshape(20, 20, 3).transpose(2, 0, 1).tobytes() for one in stated}
    assert in_pixels == pictures("vispng", "png", package)


def test_a_recorded_demonstration_is_read():
    steps = read_demo(FOLDER / "basic_1.demo")
    assert (steps.spec.name, len(steps), int(steps.ended.sum())) == ("Basic", 456, 57)


def test_uncompressed_images_in_a_demonstration_are_warned_of(tmp_path, caplog):
    first = next(m for m in said("visraw") if "Hybrid?team=0" in m.unity_output.rl_output.agentInfos)
    info = first.unity_output.rl_output.agentInfos["Hybrid?team=0"].value[0]
    brain = first.unity_output.rl_initialization_output.brain_parameters[0]
    action = AgentActionProto(continuous_actions=[0.0], discrete_actions=[0, 0])
    pairs = [AgentInfoActionPairProto(agent_info=info, action_info=action)] * 2
    head = delimited(DemonstrationMetaProto(api_version=1)).ljust(META_ROOM, b"\0")
    (tmp_path / "raw.demo").write_bytes(b"".join([head, delimited(brain), *map(delimited, pairs)]))
    read_demo(tmp_path / "raw.demo")
    assert (
        "raw.demo: holds uncompressed images (raw). If it was recorded with com.unity.ml-agents 3.0.0-exp.1 or 3.0.0"
        in caplog.text
    )


def test_a_recording_without_a_step_is_named_so():
    with pytest.raises(StageError, match=r"zero_steps\.demo: it contains no steps, because the recording ended before"):
        read_demo(FOLDER / "zero_steps.demo")
