"""A game that speaks the open protocol, as a program of its own, in both formats and with faults.

    python tests/open_game.py --trainer=tcp://127.0.0.1:12008 [--game=…] [--format=msgpack] [--fault=…] [--fault_at=N]

It is strict: a message of another order or form, or one that comes before the last is answered, ends it with status 3
and a line that says what was wrong. Games:
`switch` (a choice that must match what is seen; agents decide at different times, leave and come), `reach` (a number
that must match, cut after ten steps), `masked` (one of three choices is allowed), `picture` (the brighter half of a
picture), `duel` (two teams), `together` (a group).
"""

from __future__ import annotations

import base64
import json
import os
import random
import select
import socket
import struct
import sys
import time
from typing import Any

import msgpack

EPISODE = 10
SIDE = 36


def arguments():
    words = (word[2:].partition("=") for word in sys.argv[1:] if word.startswith("--"))
    return {name: value for name, _, value in words}


def wrong(what):
    print(f"WRONG: {what}", flush=True)
    os._exit(3)


class Agent:
    def __init__(self, number, random_):
        self.number, self.random = number, random_
        self.age = random_.randrange(3)
        self.reward = 0.0
        self.draw()

    def draw(self):
        self.hidden = self.random.choice((0.0, 1.0))
        self.allowed = self.random.randrange(3)


class Game:
    def __init__(self, kind, count, seed):
        self.kind, self.count, self.random = kind, count, random.Random(seed)
        self.next = 0
        self.parameters = {}

    def hello(self):
        observations: list[Any] = [{"name": "seen", "shape": [2]}]
        actions: dict[str, Any] = {"discrete": {"press": 2}}
        if self.kind == "picture":
            observations = [{"name": "camera", "shape": [SIDE, SIDE, 3], "type": "uint8"}]
        if self.kind in ("reach", "duel"):
            actions = {"continuous": ["move"]}
        if self.kind == "masked":
            actions = {"discrete": [3], "masked": True}
        spec = {"observations": observations, "actions": actions, "grouped": self.kind == "together"}
        self.ids = ["Agent", "Agent?team=1"] if self.kind == "duel" else ["Agent"]
        return {"type": "hello", "protocol": 1, "game": self.kind, "behaviors": dict.fromkeys(self.ids, spec)}

    def begin(self, parameters):
        self.parameters = parameters
        self.agents = {}
        for _ in range(self.count):
            self.join()
        return self.state({}, {})

    def join(self):
        self.agents[self.next] = Agent(self.next, self.random)
        self.next += 1

    def team(self, number):
        return self.ids[number % len(self.ids)]

    def act(self, actions):
        ended = {}
        total = 0.0
        moves = {}
        for behavior, part in actions.items():
            column = part["continuous"] if "continuous" in part else part["discrete"]
            for number, (value,) in zip(part["ids"], column, strict=True):
                if self.team(number) != behavior or number not in self.asked:
                    wrong(f"agent {number} of {behavior} has not asked")
                moves[number] = value
        if set(moves) != self.asked:
            wrong(f"actions of {sorted(moves)}, expected {sorted(self.asked)}")
        for number, value in moves.items():
            agent = self.agents[number]
            if self.kind in ("reach", "duel"):
                if type(value) is not float or not -1 <= value <= 1:
                    wrong(f"{value!r} is beyond -1 and 1")
                agent.reward = 1 - abs(value - agent.hidden)
            elif type(value) is not int or not 0 <= value < (3 if self.kind == "masked" else 2):
                wrong(f"{value!r} is no choice")
            elif self.kind == "masked":
                if value != agent.allowed:
                    wrong("a choice that the mask forbids")
                agent.reward = 1.0
            else:
                agent.reward = float(value == agent.hidden)
            total += agent.reward
        if self.kind == "duel":
            self.fight(moves)
        for number in moves:
            agent = self.agents[number]
            agent.age += 1
            agent.draw()
            if agent.age >= EPISODE:
                ended[number] = self.agents.pop(number)
        for _ in ended:
            self.join()  # somebody else comes
        return self.state(ended, {"Game/Total": total})

    def fight(self, moves):
        for agent in self.agents.values():
            agent.reward = 0.0
            agent.age = max(self.agents[number].age for number in self.agents)
        mean = sum(moves.values()) / len(moves)
        if any(self.agents[number].age + 1 >= EPISODE for number in moves):
            for number, value in moves.items():
                self.agents[number].reward = 1.0 if value > mean else -1.0

    def state(self, ended, statistics):
        # Some wait a step, so that not everybody decides at once.
        waits = self.kind == "switch" and self.random.random() < 0.2
        ready = [number for number in self.agents if not waits or number % 2]
        self.asked = set(ready)
        agents = {}
        for behavior in self.ids:
            part = {}
            deciding = {number: self.agents[number] for number in ready if self.team(number) == behavior}
            gone = {number: agent for number, agent in ended.items() if self.team(number) == behavior}
            if deciding:
                part["deciding"] = self.columns(deciding)
                if self.kind == "masked":
                    allowed = [agent.allowed for agent in deciding.values()]
                    part["deciding"]["masks"] = [[int(each == choice) for choice in range(3)] for each in allowed]
            if gone:
                part["ended"] = self.columns(gone)
                if self.kind == "reach":
                    part["ended"]["truncated"] = [True] * len(gone)
            if part:
                agents[behavior] = part
        for agent in self.agents.values():
            if agent.number in self.asked:
                agent.reward = 0.0
        return {"type": "state", "agents": agents, "statistics": statistics}

    def columns(self, agents):
        found = {"ids": list(agents), "observations": [self.observe(list(agents.values()))]}
        found["rewards"] = [agent.reward for agent in agents.values()]
        if self.kind == "together":
            found["groups"] = [1] * len(agents)
            found["group_rewards"] = [sum(found["rewards"]) / len(agents)] * len(agents)
        return found

    def observe(self, agents):
        if self.kind != "picture":
            return [[agent.hidden, agent.age / EPISODE] for agent in agents]
        half = SIDE // 2 * 3
        dark, bright = b"\0" * half, b"\xff" * half
        return b"".join(((dark + bright) if agent.hidden else (bright + dark)) * SIDE for agent in agents)


class Link:
    def __init__(self, url, form):
        host, _, port = url.removeprefix("tcp://").partition(":")
        self.socket = socket.create_connection((host, int(port)), 20)
        self.socket.settimeout(None)
        self.form = form
        self.last = None

    def send(self, message, times=1):
        if self.form == "json":
            data = json.dumps(message, default=lambda each: base64.b64encode(each).decode()).encode()
        else:
            data = msgpack.packb(message)
        self.socket.sendall((struct.pack("<I", len(data)) + data) * times)

    def hears(self):
        return bool(select.select([self.socket], [], [], 0)[0] and self.socket.recv(1, socket.MSG_PEEK))

    def receive(self):
        data = self.exactly(struct.unpack("<I", self.exactly(4))[0])
        return json.loads(data) if self.form == "json" else msgpack.unpackb(data)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                os._exit(0)
            data += part
        return data


def fail(fault, link, message):
    """Do the fault in place of a state; returns the message to send, if any."""
    if fault.startswith("exit"):
        os._exit(int(fault[4:] or 0))
    if fault == "hang":
        time.sleep(3600)
    if fault == "garbage":
        link.socket.sendall(struct.pack("<I", 4) + b"{]]]")
        return None
    if fault == "say":
        return {"type": "error", "message": "the level is broken"}
    if fault == "end":
        return {"type": "close", "reason": "the player has left"}
    if fault == "twice":
        link.send(message, times=2)  # at once, as it can't be seen before it is there
        return None
    if fault == "late":
        link.send(link.last)  # a second time, once the next one is asked for
        return message
    damage(fault, link, message)
    return message


def damage(fault, link, message):
    """Put the fault into a state."""
    part = message["agents"]["Agent"]["deciding"]
    if fault == "key":
        message["statistic"] = message.pop("statistics")
    elif fault == "nan":
        part["observations"][0][0][1] = float("nan") if link.form == "msgpack" else None
    elif fault == "ids":
        part["ids"][1] = part["ids"][0]
    elif fault == "reward":
        part["rewards"][0] = "much"
    elif fault == "stranger":
        message["agents"]["Other"] = {"deciding": part}
    else:
        wrong(f"no fault {fault!r}")


def main():
    given = arguments()
    fault, fault_at = given.get("fault", ""), int(given.get("fault_at", 5))
    if "fault_once" in given:
        try:
            os.close(os.open(given["fault_once"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            fault = ""
    print("arguments:", *sys.argv[1:], flush=True)
    if fault == "start":
        os._exit(5)
    if fault == "mute":
        time.sleep(3600)
    game = Game(given.get("game", "switch"), int(given.get("agents", 8)), int(given.get("seed", 1)))
    link = Link(given["trainer"], given.get("format", "json"))
    hello = game.hello()
    if fault == "version":
        hello["protocol"] = 99
    elif fault == "spec":
        del hello["behaviors"]["Agent"]["actions"]
    greet(link, hello)
    serve(link, game, given, fault, fault_at)


def greet(link, hello):
    link.send(hello)
    welcome = heard(link)
    if (welcome["type"], welcome["protocol"]) != ("welcome", 1):
        wrong(f"{welcome}")


def heard(link):
    message = link.receive()
    if message["type"] == "close":
        os._exit(0)
    if message["type"] == "error":
        print(f"refused: {message['message']}", flush=True)
        os._exit(4)
    return message


def serve(link, game, given, fault, fault_at):
    step_s, steps = float(given.get("step_ms", 0)) / 1000, 0
    while True:
        message = heard(link)
        if message.get("parameters") and message["parameters"] != game.parameters:
            print(f"parameters {json.dumps(message['parameters'])}", flush=True)
            game.parameters = message["parameters"]
        if message["type"] == "reset":
            answer = game.begin(message["parameters"])
        elif message["type"] == "act":
            time.sleep(step_s)
            answer = game.act(message["actions"])
            steps += 1
        else:
            wrong(f"a message of type {message['type']}")
        if link.hears():
            wrong("a message before the last one was answered")
        answer["number"] = message["number"]
        if fault and steps >= fault_at and message["type"] == "act":
            answer = fail(fault, link, answer)
        if answer is not None:
            link.send(answer)
            link.last = answer


if __name__ == "__main__":
    main()
