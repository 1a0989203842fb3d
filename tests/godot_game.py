"""A game that speaks the protocol of Godot's addon, as a program of its own, in all its generations and with faults.

It is strict: a request of another type or order, one that comes before the last is answered, a missing key, a number of
the wrong kind or beyond its range ends it with status 3 and a line that says what was wrong. Like the addon it tries to connect once, answers a reset and applies
the action after it one window later, and resets nothing by itself: an agent that is done begins anew in the next frame.

    python tests/godot_game.py --port=11008 --game=switch --generation=names --agents=4 [--fault=…] [--fault_at=N]

Games: `switch` (a discrete choice that must match the observed one), `reach` (a continuous action that must match the
observed number), `mixed` (both), `picture` (the brighter half of a picture), `duel` (two teams, the higher number wins).
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import struct
import sys
import time
from typing import Any

EPISODE = 10
SIDE = 36


def arguments():
    given = {}
    words = iter(sys.argv[1:])
    for word in words:
        if word in ("--fixed-fps",):
            given["fixed_fps"] = next(words)
        elif word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            given[name] = value if sign else "true"
    return given


class Game:
    """The agents of one game: what each observes, and what an action earns."""

    def __init__(self, kind, count, seed):
        self.kind, self.count, self.random = kind, count, random.Random(seed)
        self.done = [False] * count
        self.age = [0] * count
        self.infos = [{} for _ in range(count)]
        self.hidden = [0.0] * count
        self.lesson = 0
        for agent in range(count):
            self.begin(agent)

    def begin(self, agent):
        # Agents end at different times.
        self.age[agent] = self.random.randrange(3) if self.kind != "duel" else 0
        self.draw(agent)

    def draw(self, agent):
        self.hidden[agent] = (
            self.random.choice((0.0, 1.0)) if self.kind in ("switch", "picture") else self.random.uniform(-1, 1)
        )

    def names(self):
        if self.kind == "duel":
            return [f"Duel?team={agent % 2}" for agent in range(self.count)]
        return ["Réd" if self.kind == "latin" else "Agent"] * self.count

    def spaces(self):
        if self.kind == "picture":
            return {"camera_2d": {"space": "box", "size": [3.0, float(SIDE), float(SIDE)]}}, {"side": CHOICE}
        observed: dict[str, Any] = {"obs": {"space": "box", "size": [2]}}
        if self.kind == "mixed":
            observed["phase"] = {"space": "discrete", "size": 3}
        actions = {
            "switch": {"press": CHOICE},
            "mixed": {"push": {"size": 1, "action_type": "continuous"}, "jump": CHOICE},
        }
        return observed, actions.get(self.kind, {"move": {"size": 1, "action_type": "continuous"}})

    def observe(self, agent):
        if self.kind == "picture":
            bright = bytearray(SIDE * SIDE * 3)
            half = SIDE // 2 * 3
            for row in range(SIDE):
                begin = row * SIDE * 3 + (half if self.hidden[agent] else 0)
                bright[begin : begin + half] = b"\xff" * half
            return {"camera_2d": bright.hex()}
        seen = {"obs": [round(self.hidden[agent], 6), self.age[agent] / EPISODE]}
        if self.kind == "mixed":
            seen["phase"] = self.age[agent] % 3
        return seen

    def act(self, actions):
        rewards = []
        for agent, action in enumerate(actions):
            hidden = self.hidden[agent]
            if self.kind in ("switch", "picture"):
                (chosen,) = action.values()
                reward = 1.0 if chosen == int(hidden) else 0.0
            elif self.kind == "mixed":
                reward = 0.5 - abs(action["push"][0] - hidden) / 2 + (0.5 if action["jump"] == int(hidden > 0) else 0)
            elif self.kind == "duel":
                reward = 0.0
            else:
                reward = 1 - abs(action["move"][0] - hidden)
            rewards.append(reward)
        if self.kind == "duel":
            self.fight(actions, rewards)
        for agent in range(self.count):
            self.age[agent] += 1
            over = self.age[agent] >= EPISODE
            self.infos[agent] = {}
            self.draw(agent)
            if over:
                self.done[agent] = True
                self.infos[agent] = {"is_success": rewards[agent] > 0.5}
                if self.kind == "reach":
                    self.infos[agent] |= {"TimeLimit.truncated": True, "terminal_observation": self.observe(agent)}
                self.begin(agent)
        return rewards

    def fight(self, actions, rewards):
        for first in range(0, self.count, 2):
            if self.age[first] + 1 >= EPISODE:
                edge = actions[first]["move"][0] - actions[first + 1]["move"][0]
                rewards[first], rewards[first + 1] = (1.0, -1.0) if edge > 0 else (-1.0, 1.0)


CHOICE = {"size": 2, "action_type": "discrete"}


def wrong(what):
    print(f"WRONG: {what}", flush=True)
    os._exit(3)


def checked(action, spaces):
    if sorted(action) != sorted(spaces):
        wrong(f"action keys {sorted(action)}, expected {sorted(spaces)}")
    for key, space in spaces.items():
        value = action[key]
        if space["action_type"] == "discrete":
            if type(value) is not int or not 0 <= value < space["size"]:
                wrong(f"{key}: {value!r} is no whole number below {space['size']}")
        elif type(value) is not list or len(value) != space["size"]:
            wrong(f"{key}: {value!r} is no list of {space['size']}")
        elif not all(type(number) in (int, float) and -1 <= number <= 1 for number in value):
            wrong(f"{key}: {value!r} is beyond -1 and 1")
    return action


class Link:
    """The connection with the trainer: framing, and the engine's own way of writing JSON."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self):
        data = self.exactly(struct.unpack("<I", self.exactly(4))[0])
        if any(byte > 126 for byte in data):
            wrong("a message beyond ASCII")
        return json.loads(data)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                os._exit(0)
            data += part
        return data

    def send(self, text, cut=None):
        if select.select([self.socket], [], [], 0)[0] and self.socket.recv(1, socket.MSG_PEEK):
            wrong("a message before the last one was answered")
        data = text.encode("latin-1")
        self.socket.sendall(struct.pack("<I", len(data)))
        self.socket.sendall(data if cut is None else data[:cut])

    def send_twice(self, text):
        data = text.encode("latin-1")
        # In one write: between two, the trainer's next request could come.
        self.socket.sendall(2 * (struct.pack("<I", len(data)) + data))


def fail(fault, link, text, given):
    """Do the fault in place of an answer; returns the answer still to send, None for none."""
    if fault.startswith("exit"):
        os._exit(int(fault[4:] or 0))
    if fault == "hang":
        time.sleep(3600)
    if fault == "close":
        link.socket.close()
        time.sleep(3600)
    if fault == "cut":
        link.send(text, cut=len(text) // 2)
        os._exit(1)
    if fault == "garbage":
        return "]]" + text
    if fault == "binary":
        link.socket.sendall(b"\xff" * 4096)
        time.sleep(3600)
    if fault == "type":
        return json.dumps({"type": "surprise"})
    if fault == "twice":
        link.send_twice(text)
        return None
    if fault in ("nan", "null"):
        at = text.index('"obs": [', text.index('"obs": [') + 1) + len('"obs": [')
        return text[:at] + fault + text[text.index(",", at) :]
    return json.dumps(damaged(fault, json.loads(text)))


def damaged(fault, message):
    """An answer with the fault in it."""
    if fault == "few":
        message["obs"].pop()
    elif fault == "reward":
        message["reward"][0] = None
    elif fault == "done":
        message["done"][-1] = "no"
    elif fault == "info":
        message["info"][-1] = "won"
    elif fault == "limit":
        message["done"][-1], message["info"][-1] = True, {"TimeLimit.truncated": "yes"}
    else:
        wrong(f"no fault {fault!r}")
    return message


def announcement(game, generation):
    observed, actions = game.spaces()
    if generation == "size":
        return {"obs_size": 2, "action_space": actions, "n_agents": game.count}
    if generation == "dict":
        return {"observation_space": observed, "action_space": dict(sorted(actions.items())), "n_agents": game.count}
    lists = {"observation_space": [observed] * game.count, "action_space": [actions] * game.count}
    return {**lists, "n_agents": float(game.count), "agent_policy_names": game.names()}


def main():
    given = arguments()
    kind, generation = given.get("game", "switch"), given.get("generation", "info")
    fault, fault_at = given.get("fault", ""), int(given.get("fault_at", 5))
    if "fault_once" in given:
        try:
            os.close(os.open(given["fault_once"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            fault = ""
    print("arguments:", *sys.argv[1:], flush=True)
    if fault == "start":
        os._exit(int(given.get("status", 1)))
    if fault == "mute":
        time.sleep(3600)
    game = Game(kind, int(given.get("agents", 4)), int(given.get("env_seed", 1)))
    link = Link(int(given.get("port", 11008)))
    first = link.receive()
    versions = [first.get(f"{part}_version") for part in ("major", "minor")]
    if first.get("type") != "handshake" or not all(type(version) is str for version in versions):
        wrong(f"a handshake {first}")
    if link.receive() != {"type": "env_info"}:
        wrong("no env_info after the handshake")
    announced = announcement(game, generation) | json.loads(given.get("announce", "{}"))
    text = json.dumps({"type": "env_info", **announced}, ensure_ascii=False)
    link.send(fail(fault, link, text, given) if fault_at == 0 and fault else text)
    serve(link, game, generation, fault, fault_at, given)


def serve(link, game, generation, fault, fault_at, given):
    spaces, steps, step_s = game.spaces()[1], 0, float(given.get("step_ms", 0)) / 1000
    begun = False
    while True:
        message = link.receive()
        what = message.get("type")
        if what == "close":
            os._exit(0)
        if what == "call":
            method = message["method"]
            if method.startswith("set_lesson_"):
                game.lesson = int(method.removeprefix("set_lesson_"))
                print(f"lesson {game.lesson}", flush=True)
            lacks = method.startswith("lacked")  # the addon stops at the first agent that lacks a method
            if lacks:
                print(f"SCRIPT ERROR: Invalid call. Nonexistent function '{method}'.", flush=True)
            link.send(json.dumps({"type": "call", "returns": None if lacks else [method] * game.count}))
            continue
        if what == "reset":
            begun = True
            for agent in range(game.count):
                game.begin(agent)
            answer = {"type": "reset", "obs": [game.observe(agent) for agent in range(game.count)]}
            if generation == "info":
                answer["info"] = [{}] * game.count
        elif what == "action":
            if not begun:
                wrong("an action before the first reset")
            if len(message["action"]) != game.count:
                wrong(f"{len(message['action'])} actions for {game.count} agents")
            time.sleep(step_s)
            rewards = game.act([checked(action, spaces) for action in message["action"]])
            answer = {"type": "step", "obs": [game.observe(agent) for agent in range(game.count)]}
            answer |= {"reward": rewards, "done": game.done}
            if generation == "info":
                answer["info"] = game.infos
            steps += 1
        else:
            time.sleep(3600)  # the addon's tree stays paused for ever
        text = json.dumps(answer)
        game.done = [False] * game.count
        if fault and steps == fault_at and what == "action":
            text = fail(fault, link, text, given)
        if text is not None:
            link.send(text)


if __name__ == "__main__":
    main()
