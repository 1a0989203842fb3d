"""What games send over plain sockets, and what Godot's addon records, for the table of fuzzed readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from headrace.stages.environments.engines.godot.messages import (
    AgentColumns,
    AgentSpaces,
    behavior_spec,
    read_announcement,
    read_message,
)
from headrace.stages.environments.engines.open_protocol.messages import decode, read_hello, read_state
from headrace.stages.trainer.imitation.loading import load_demonstrations

GODOT_SPACES: dict[str, Any] = {"obs": {"space": "box", "size": [2]}, "mood": {"space": "discrete", "size": 3}}
GODOT_PICTURE: dict[str, Any] = {"eye_2d": {"space": "box", "size": [3, 2, 2]}}
GODOT_ACTIONS = {
    "move": {"size": 2, "action_type": "continuous"},
    "jump": {"size": 2, "action_type": "discrete"},
}
HELLO: dict[str, Any] = {
    "type": "hello",
    "protocol": 1,
    "behaviors": {
        "Ball": {
            "observations": [{"name": "place", "shape": [2]}, {"shape": [2, 2, 1], "type": "uint8"}],
            "actions": {"continuous": 1, "discrete": {"jump": 2}, "masked": True},
            "grouped": True,
        }
    },
}
STATE: dict[str, Any] = {
    "type": "state",
    "number": 1,
    "agents": {
        "Ball": {
            "deciding": {
                "ids": [4, 9],
                "observations": [[[1, 2], [3, 4]], b"\1\2\3\4\5\6\7\7"],
                "rewards": [0.5, -1],
                "masks": [[1, 0], [1, 1]],
                "groups": [1, 1],
            },
            "ended": {"ids": [7], "observations": [[[1, 2]], [[1, 2, 3, 4]]], "truncated": [True]},
        }
    },
}


def godot_messages(folder: Path) -> list[bytes]:
    """An announcement of two policies, and a step of theirs."""
    announced = {
        "type": "env_info",
        "observation_space": [GODOT_SPACES, GODOT_PICTURE],
        "action_space": [GODOT_ACTIONS, GODOT_ACTIONS],
        "n_agents": 2,
        "agent_policy_names": ["Ball", "Eye?team=1"],
    }
    step = {
        "type": "step",
        "obs": [{"obs": [0.5, -1], "mood": 2}, {"eye_2d": "00" * 12}],
        "reward": [1, 0.5],
        "done": [True, False],
        "info": [{"is_success": True, "terminal_observation": {"obs": [0, 0], "mood": 1}}, {}],
    }
    return [json.dumps(each).encode() for each in (announced, step)]


def read_godot_message(folder: Path, content: bytes) -> None:
    message = read_message(content)
    if message["type"] == "env_info":
        announcement = read_announcement(message)
        for agent in announcement.agents:
            behavior_spec(agent.policy, agent, announcement.ordered, "auto", "the game")
        return
    for place, spaces in enumerate((GODOT_SPACES, GODOT_PICTURE)):
        spec = behavior_spec("Ball", AgentSpaces("Ball", spaces, GODOT_ACTIONS), True, "auto", "the game")
        columns = AgentColumns(spec, np.array([place]))
        lists = {key: message.get(key) for key in ("obs", "reward", "done", "info")}
        if not all(isinstance(values, list) and len(values) == 2 for values in lists.values()):
            continue  # the instance refuses these
        columns.observations(lists["obs"])
        columns.rewards(lists["reward"])
        columns.infos(lists["info"], columns.done(lists["done"]).nonzero()[0])


def godot_demos(folder: Path) -> list[bytes]:
    """Two recorded episodes."""
    return [b"[[[[1, 2], [3, 4], [5, 6]], [[0.5, 0, 1], [1, -1, 0]]], [[[1, 2], [3, 4]], [[0, 0, 1.0]]]]\n"]


def read_recorded(folder: Path, content: bytes) -> None:
    (folder / "demos.json").write_bytes(content)
    spaces = AgentSpaces("Ball", {"obs": GODOT_SPACES["obs"]}, GODOT_ACTIONS)
    load_demonstrations(str(folder / "demos.json"), behavior_spec("Ball", spaces, True, "auto", "the game"))


def open_messages(folder: Path) -> list[bytes]:
    """A hello and a state, in both formats."""
    as_text = json.dumps({**STATE, "agents": {"Ball": {"ended": STATE["agents"]["Ball"]["ended"]}}}).encode()
    return [json.dumps(HELLO).encode(), as_text, msgpack.packb(HELLO), msgpack.packb(STATE)]


def read_open_message(folder: Path, content: bytes) -> None:
    message = decode(content)
    if message["type"] == "hello":
        read_hello(message)
        return
    read_state(message, read_hello(HELLO).specs)
