"""A person plays in a run's own game, by the page's real socket, and is imitated while playing."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
from page_calls import Page
from run_folders import streams
from runs import PATIENCE_S

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.stream_file import StreamReader

SEAT = "Volley?team=1"
GAME = "headrace.stages.games.volley"
PLAYED = {
    # By its class: of `kind: builtin` there would be a film at the end, which takes a second.
    "environment": {"kind": "gymnasium", "factory": f"{GAME}:VolleyGroup", "behavior": "Volley"},
    "env_settings": {"seed": 3},
    "behaviors": {
        "Volley": {
            "brain": [{"use": "player", "teams": [1]}, {"use": f"{GAME}:ScriptedPlayer", "teams": [0]}],
            "broadcast": True,
            "time_horizon": 8,
        },
        "Student": {
            "trainer_type": "bc",
            "max_steps": 48,
            "summary_freq": 48,
            "hyperparameters": {"teacher": "Volley", "batch_size": 16, "buffer_size": 32},
            "network_settings": {"hidden_units": 16, "num_layers": 1},
        },
    },
    "pipeline": {"hosts": {"learners": {"kind": "inline"}}},
    "record": {"edges": ["agent_processor"]},
}


class Person:
    """Somebody at the page's socket, who holds a key."""

    def __init__(self, socket):
        self._socket = socket
        self._number = 0
        self.state = {}
        self.pictures = []

    @classmethod
    @asynccontextmanager
    async def at(cls, page):
        address = f"{page.origin}/api/runs/live/watch?token={page.token}"
        async with aiohttp.ClientSession() as session, session.ws_connect(address) as socket:
            yield cls(socket)

    async def ask(self, **wish):
        await self._socket.send_json(wish)

    async def hold(self, key, done):
        """Hold a key until something is seen, or the run has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while not done(self):
                self._number += 1
                await self.ask(do="keys", side=SEAT, number=self._number, held=[key])
                try:
                    await self._see(await self._socket.receive(timeout=0.2))
                except TimeoutError:
                    continue

    async def _see(self, message):
        if message.type is aiohttp.WSMsgType.TEXT:
            self.state = message.json()
        elif message.type is aiohttp.WSMsgType.BINARY:
            length = int.from_bytes(message.data[:4], "little")
            self.pictures.append(json.loads(message.data[4 : 4 + length]))
        else:
            self.state = {"status": "ended"}


def place(picture):
    """The x of the right player: of each the body is a disc of this size with an outline."""
    bodies = [shape for shape in picture["shapes"] if shape[0] == "disc" and abs(shape[3] - 0.34) < 0.04 and shape[6]]
    return bodies[1][1]


async def play(page):
    """Play on the right until the run ends."""
    async with Person.at(page) as person:
        await person.hold("ArrowRight", lambda seen: seen.state.get("waits"))
        assert person.state["waits"] == "The run is waiting for a person to play for blue, right."
        await person.ask(do="pace", paused=False, speed=4.0)
        await person.ask(do="take", side=SEAT)
        await person.hold("ArrowRight", lambda seen: seen.pictures and place(seen.pictures[-1]) > 2.5)
        assert place(person.pictures[0]) < 2
        await person.hold("ArrowRight", lambda seen: seen.state["status"] == "ended")


def test_a_run_waits_for_its_player_whom_a_student_imitates(start):
    page = Page(start(PLAYED, "--monitor=0", "--monitor-control"))
    page.command.until(lambda: "is waiting for a person to play for blue, right" in page.command.output, "the wait")
    for command in ("checkpoint", "pause", "resume"):
        assert page.call(f"/api/runs/live/{command}", body={}) == (200, {"done": True})
    page.command.until_checkpoint()
    asyncio.run(play(page))
    assert page.command.wait() == 0, page.command.output
    assert "Student. Step: " in page.command.output
    batches = [frame.message for path in streams(page.command.run_folder) for frame in StreamReader(path)]
    played = [each for each in batches if isinstance(each, TrajectoryBatch) and each.behavior_id == SEAT]
    actions = np.concatenate([each.rows["discrete_actions"] for each in played])
    assert len(actions) >= 20
    assert (actions == [0, 0]).all(), "walks to the right, which is backwards there, as long as the key is held"
