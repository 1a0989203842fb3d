"""The protocol by its bytes: field numbers, types and a whole conversation, written by hand and not by our messages."""

from __future__ import annotations

import asyncio
import struct

import grpc.aio

from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.unity import messages
from headrace.stages.environments.engines.unity.game import UnityGame
from headrace.stages.environments.engines.unity.messages import (
    AgentActionProto,
    ListAgentActionProto,
)
from headrace.stages.environments.engines.unity.side_channels import SideChannels

VARINT, LENGTH, FIXED32 = 0, 2, 5
"""Wire types."""


def varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def whole(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def text(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | LENGTH) + varint(len(data)) + data


def single(number: int, value: float) -> bytes:
    return varint(number << 3 | FIXED32) + struct.pack("<f", value)


def floats(number: int, *values: float) -> bytes:
    return text(number, struct.pack(f"<{len(values)}f", *values))


def wholes(number: int, *values: int) -> bytes:
    return text(number, b"".join(map(varint, values)))


HEADER_OK = text(1, whole(1, 200))
"""`header {status: 200}` of a `UnityMessageProto`."""


def test_an_agent_s_message_is_read_from_its_bytes():
    picture = wholes(1, 3, 20, 20) + whole(2, 1) + text(3, b"\x89PNG") + wholes(5, 0, 1, 2) + wholes(6, 1, 2, 2)
    vector = wholes(1, 2) + text(4, floats(1, 0.5, -1.0)) + whole(7, 1) + text(8, "goal")
    agent = single(7, 0.25) + whole(8, 1) + whole(9, 1) + whole(10, 300) + wholes(11, 0, 1, 1)
    agent += text(13, picture) + text(13, vector) + whole(14, 4) + single(15, -2.0)
    info = messages.AgentInfoProto.FromString(agent)
    assert (info.reward, info.done, info.max_step_reached, info.id) == (0.25, True, True, 300)
    assert (list(info.action_mask), info.group_id, info.group_reward) == ([False, True, True], 4, -2.0)
    seen, goal = info.observations
    assert (list(seen.shape), seen.compression_type, seen.compressed_data) == ([3, 20, 20], messages.PNG, b"\x89PNG")
    assert (list(seen.compressed_channel_mapping), list(seen.dimension_properties)) == ([0, 1, 2], [1, 2, 2])
    assert (list(goal.shape), list(goal.float_data.data)) == ([2], [0.5, -1.0])
    assert (goal.observation_type, goal.name) == (messages.GOAL_SIGNAL, "goal")


def test_a_behaviour_is_read_from_its_bytes():
    spec = whole(1, 2) + whole(2, 2) + wholes(3, 3, 4) + text(4, "jump")
    brain = wholes(3, 2) + text(5, "old") + whole(6, 1) + text(7, "Walker?team=1") + whole(8, 1) + text(9, spec)
    read = messages.BrainParametersProto.FromString(brain)
    assert (read.brain_name, read.is_training, read.vector_action_space_type_deprecated) == ("Walker?team=1", True, 1)
    assert (list(read.vector_action_size_deprecated), list(read.vector_action_descriptions_deprecated)) == (
        [2],
        ["old"],
    )
    assert (read.action_spec.num_continuous_actions, read.action_spec.num_discrete_actions) == (2, 2)
    assert (list(read.action_spec.discrete_branch_sizes), list(read.action_spec.action_descriptions)) == (
        [3, 4],
        ["jump"],
    )


def test_a_demonstrations_header_and_pairs_are_read_from_their_bytes():
    meta = whole(1, 1) + text(2, "expert") + whole(3, 150) + whole(4, 9) + single(5, 1.5)
    read = messages.DemonstrationMetaProto.FromString(meta)
    assert (read.api_version, read.demonstration_name, read.number_steps) == (1, "expert", 150)
    assert (read.number_episodes, read.mean_reward) == (9, 1.5)
    pair = text(1, whole(10, 7)) + text(2, floats(1, 0.5) + single(4, 2.0) + floats(6, 0.5) + wholes(7, 3))
    both = messages.AgentInfoActionPairProto.FromString(pair)
    action = both.action_info
    assert (both.agent_info.id, action.value, list(action.vector_actions_deprecated)) == (7, 2.0, [0.5])
    assert (list(action.continuous_actions), list(action.discrete_actions)) == ([0.5], [3])


class TwoWords(SideChannels):
    """Side channels that send some bytes, and keep what they hear."""

    heard = b""

    def outgoing(self) -> bytes:
        return b"engine"

    def incoming(self, data: bytes) -> None:
        self.heard += data


async def test_a_whole_conversation_has_the_protocols_bytes(free_port, listening):
    """What we answer is compared byte by byte, and what Unity says is written by hand."""
    channels = TwoWords()
    game = UnityGame(GameSettings(0, free_port, 300, 60.0), None, 2, lambda: channels)
    async with grpc.aio.insecure_channel(f"localhost:{free_port}") as line, asyncio.TaskGroup() as tasks:
        say = line.unary_unary("/communicator_objects.UnityToExternalProto/Exchange")

        starting = tasks.create_task(game.start())
        await listening.wait()
        capabilities = b"".join(whole(number, 1) for number in range(1, 8))
        greeting = (
            text(1, "Academy") + text(2, "1.4.0") + text(3, "Player.log") + text(7, "2.0.0") + text(8, capabilities)
        )
        greeted = await say(HEADER_OK + text(2, text(2, greeting)))
        asked = say(HEADER_OK)
        await starting
        said = game.greeting
        assert (said.name, said.package_version, said.communication_version) == ("Academy", "2.0.0", "1.4.0")
        assert (len(said.capabilities.ListFields()), said.log_path) == (7, "Player.log")
        ours = whole(1, 300) + text(2, "1.5.0") + text(3, "1.1.0") + text(4, capabilities) + whole(5, 2)
        assert greeted == HEADER_OK + text(3, text(2, ours))

        resetting = tasks.create_task(game.request_reset())
        assert await asked == HEADER_OK + text(3, text(1, whole(4, 1) + text(5, "engine")))

        agent = text(1, single(7, 0.5) + whole(10, 7))
        agents = text(1, text(2, text(1, "B?team=0") + text(2, agent)) + text(3, "news"))
        brain = text(2, text(5, text(7, "B?team=0") + text(9, whole(1, 1) + whole(2, 1) + wholes(3, 4))))
        asked = say(HEADER_OK + text(2, agents + brain))
        output = await resetting
        assert output.rl_output.agentInfos["B?team=0"].value[0].id == 7
        assert output.rl_initialization_output.brain_parameters[0].action_spec.num_continuous_actions == 1

        action = AgentActionProto(continuous_actions=[0.5], discrete_actions=[3], vector_actions_deprecated=[0.5, 3.0])
        stepping = tasks.create_task(game.request_step({"B?team=0": ListAgentActionProto(value=[action])}))
        told = text(1, floats(1, 0.5, 3.0) + floats(6, 0.5) + wholes(7, 3))
        step = text(1, text(1, "B?team=0") + text(2, told)) + text(5, "engine")
        assert await asked == HEADER_OK + text(3, text(1, step)), "STEP is 0, which isn't written"

        asked = say(HEADER_OK + text(2, agents))
        await stepping
        assert channels.heard == b"newsnews"
        await game.close()
        assert await asked == text(1, whole(1, 400))
