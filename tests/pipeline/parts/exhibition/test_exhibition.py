"""The exhibition host: pictures and choices for the page, the newest policies, keys, recordings, and its end."""

import asyncio
from typing import Any

import pytest

from headrace.config import RunConfig
from headrace.pipeline.control import (
    DirectShow,
    HostFailed,
    HostFinished,
    KeysHeld,
    OpenEdge,
    PictureTaken,
    ShowAnnounced,
    Stop,
    local_pair,
)
from headrace.pipeline.hosts.inline import LocalEdges
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.hosts.run_host import serve
from headrace.pipeline.policies.export import export_policy
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import PolicyUpdate
from headrace.stages.games.volley import VolleyGroup
from headrace.stages.trainer.imitation.loading import load_demonstrations
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import TrainerContext

GAME: dict[str, Any] = {"kind": "builtin", "id": "Volley", "num_envs": 64}
LEFT, RIGHT = "Volley?team=0", "Volley?team=1"
PLAIN = {
    "environment": GAME,
    "behaviors": {"Volley": {"network_settings": {"hidden_units": 16, "num_layers": 1}}},
    "env_settings": {"seed": 3},
}


def policy(step, favourite=None):
    """A policy, of which one choice of the first branch is by far the likeliest if it is the favourite."""
    config = RunConfig.from_plain(PLAIN)
    spec = VolleyGroup(1).behavior_specs[LEFT]
    made = PPOTrainer(TrainerContext("Volley", config.behavior_settings("Volley"), spec, seed=1)).policy()
    update = PolicyUpdate("Volley", step, made.weights.copy(), made.layout, step)
    if favourite is not None:
        update.tensors()["action.bias"][favourite] = 100.0
    return update


class Hosted:
    """A running host: `pictures` and `told` are what it has said."""

    def __init__(self, folder, **plain):
        self.control, theirs = local_pair("exhibition")
        self.edges = LocalEdges()
        plan = HostPlan("exhibition", "exhibition", {**PLAIN, **plain}, None, str(folder), 3, run_id="run")
        self.pictures, self.told, self.ends = [], {}, []
        self._task = asyncio.create_task(serve(plan, theirs, self.edges))
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self):
        async for message in self.control.receive():
            match message:
                case PictureTaken():
                    self.pictures.append(message.values)
                case ShowAnnounced():
                    self.told = dict(message.values)
                case HostFailed() | HostFinished():
                    self.ends.append(message)

    def open_policies(self):
        queue = AgentManagerQueue("policies/Volley", 1, "replace_oldest")
        self.edges.ends[queue.name] = queue
        self.control.send(OpenEdge(queue.name, {}))
        return queue

    async def until(self, holds):
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def end(self):
        self.control.send(Stop())
        await self._task
        self.control.close()
        await self._listening
        return self.ends


async def test_the_exhibition_says_who_may_play_and_shows_the_game(tmp_path):
    export_policy(
        tmp_path, policy(500), VolleyGroup(1).behavior_specs[LEFT], RunConfig.from_plain(PLAIN).behaviors["Volley"]
    )
    host = Hosted(tmp_path)
    await host.until(lambda: host.told.get("sides") and len(host.pictures) > 5)
    left, right = host.told["sides"]
    assert (left["id"], left["name"], right["name"]) == (LEFT, "red, left", "blue, right")
    assert left["choices"] == ["newest", "scripted", "random", "step 500"]
    assert left["keys"] == [["ArrowLeft", "a"], ["ArrowRight", "d"], ["ArrowUp", "w", "Space"]]
    assert host.told["display"]["view"] == [-3.0, -0.25, 6.0, 3.0]
    assert [each["number"] for each in host.pictures[:3]] == [1, 2, 3]
    assert [type(end) for end in await host.end()] == [HostFinished]


def place(picture, side):
    """The x of a player: the fifth shape of each begins with its feet, the third is the body."""
    bodies = [shape for shape in picture["shapes"] if shape[0] == "disc" and abs(shape[3] - 0.34) < 0.04 and shape[6]]
    return bodies[side][1]


@pytest.mark.parametrize("player", ["newest", "step 900"])
async def test_a_side_is_played_by_the_requested_policy(tmp_path, player):
    forward = policy(900, favourite=2)
    export_policy(
        tmp_path, forward, VolleyGroup(1).behavior_specs[LEFT], RunConfig.from_plain(PLAIN).behaviors["Volley"]
    )
    host = Hosted(tmp_path)
    if player == "newest":
        host.open_policies().put_nowait(forward)
    host.control.send(DirectShow({LEFT: (player, False)}, speed=4.0))
    await host.until(lambda: any(place(each, 0) > -0.4 for each in host.pictures))  # at the net
    await host.end()


@pytest.mark.lengthy
async def test_the_players_keys_move_the_agent_and_are_recorded(tmp_path):
    host = Hosted(tmp_path)
    parts = {LEFT: ("newest", True), RIGHT: ("scripted", False)}
    host.control.send(DirectShow(parts, speed=4.0, recorded=LEFT))
    sent = 0

    def walked():
        nonlocal sent
        sent += 1
        host.control.send(KeysHeld(LEFT, sent, ("ArrowLeft",)))
        return any(each["recorded"] > 20 for each in host.pictures)

    await host.until(walked)
    assert min(place(each, 0) for each in host.pictures) < -2.5
    host.control.send(DirectShow(parts, recorded=""))
    await host.until(lambda: host.told["saved"])
    await host.end()
    stream = tmp_path / "demonstrations" / "Volley-agent_processor-0001.stream"
    assert f"{tmp_path.name}/demonstrations/{stream.name}" in host.told["saved"]
    for path in (stream, stream.with_suffix(".demo")):
        found = load_demonstrations(str(path), "Volley")
        assert len(found) >= 20
        assert (found.choices == [0, 0]).all()


@pytest.mark.lengthy
async def test_a_recording_without_a_human_player_leaves_no_file(tmp_path):
    host = Hosted(tmp_path)
    await host.until(lambda: host.pictures)
    host.control.send(DirectShow({}, recorded=LEFT))
    await host.until(lambda: len(host.pictures) > 20)
    host.control.send(DirectShow({}))
    await host.until(lambda: host.told.get("saved"))
    assert host.told["saved"] == "nothing was recorded, because no one played"
    await host.end()
    assert list((tmp_path / "demonstrations").iterdir()) == []


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"environment": {**GAME, "keys": {"Volley": {"press": {"a": {"branch": 7, "value": 0}}}}}},
         "environment.keys.Volley.press.a: branch 7 has no choice 0"),
        ({"environment": {"kind": "gymnasium", "id": "Nothing-v9"}}, "Nothing"),
        ({"environment": None}, "Unity shows its games itself"),
    ],
)  # fmt: skip
async def test_a_cause_that_prevents_the_exhibition_is_reported_by_name(tmp_path, plain, words):
    host = Hosted(tmp_path, **plain)
    await host.until(lambda: host.ends)
    assert isinstance(host.ends[0], HostFailed)
    assert words in host.ends[0].message
