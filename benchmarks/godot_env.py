"""`headrace.godot.GodotEnv` beside Godot RL Agents' own class: agent-steps by the clock and per CPU second.

    python -m venv peer && peer/bin/pip install godot-rl==0.8.2
    python benchmarks/godot_env.py --peer peer/bin/python

Both step the same canned client, in turn: it reads each action and answers with the same bytes, so that what is left
is the class's own work: sockets, JSON, lists. The sockets alone are measured as well, without and with JSON. With 8
numbers an observation and 2 continuous actions.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEADER = struct.Struct("<I")
WIDTH, ACTIONS = 8, 2


def answer_canned(port: int, agents: int) -> None:
    """Be the game: the same answers, whatever is asked."""
    observed = [{"obs": [round(0.123456 * (index + 1), 6) for index in range(WIDTH)]} for _ in range(agents)]
    answers: dict[str, dict[str, Any]] = {
        "env_info": {
            "observation_space": [{"obs": {"space": "box", "size": [WIDTH]}}] * agents,
            "action_space": [{"move": {"size": ACTIONS, "action_type": "continuous"}}] * agents,
            "n_agents": agents,
            "agent_policy_names": ["Agent"] * agents,
        },
        "reset": {"obs": observed, "info": [{}] * agents},
        "action": {"obs": observed, "reward": [0.5] * agents, "done": [False] * agents, "info": [{}] * agents},
    }
    texts = {}
    for kind, answer in answers.items():
        text = json.dumps({"type": "step" if kind == "action" else kind, **answer}, separators=(",", ":")).encode()
        texts[kind] = text
    deadline = time.monotonic() + 60
    while True:
        try:
            link = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = link.makefile("rb")

    def send(text: bytes) -> None:
        link.sendall(HEADER.pack(len(text)))  # in two writes, as the addon does
        link.sendall(text)

    while header := stream.read(4):
        content = stream.read(HEADER.unpack(header)[0])
        if b'"action"' in content[:20]:
            send(texts["action"])
        elif b"close" in content:
            return
        elif b"handshake" not in content:
            send(texts[json.loads(content)["type"]])


def step_it(which: str, port: int, agents: int, seconds: float) -> None:
    """Step the class in question; prints agent-steps per second and per CPU second."""
    import numpy as np

    if which == "ours":
        from headrace.godot import GodotEnv
    else:
        from godot_rl.core.godot_env import GodotEnv  # type: ignore[import-not-found, no-redef, unused-ignore]
    env = GodotEnv(port=port)
    env.reset()
    action = [np.random.default_rng(0).uniform(-1, 1, (agents, ACTIONS)).astype(np.float32)]
    for _ in range(200):
        env.step(action)
    steps, began, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        for _ in range(50):
            env.step(action)
        steps += 50
    clock, cpu = time.perf_counter() - began, time.process_time() - used
    print(json.dumps({"clock": steps * agents / clock, "cpu": steps * agents / cpu}), flush=True)
    env.close()


def exchange_bytes(port: int, agents: int, seconds: float, with_json: bool) -> None:
    """Send and receive as many bytes, and nothing else but JSON, if at all; prints as `step_it`."""
    import numpy as np
    import orjson

    moves = np.random.default_rng(0).uniform(-1, 1, (agents, ACTIONS)).astype(np.float32)
    with socket.create_server(("127.0.0.1", port)) as server:
        link, _ = server.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    action = json.dumps({"type": "action", "action": [{"move": [0.123456] * ACTIONS}] * agents}).encode()
    sent = HEADER.pack(len(action)) + action
    buffer = bytearray(2**20)
    steps, began, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        if with_json:
            action = orjson.dumps({"type": "action", "action": [{"move": move} for move in moves.tolist()]})
            sent = HEADER.pack(len(action)) + action
        link.sendall(sent)
        have = link.recv_into(buffer)
        while have < 4 or have < 4 + HEADER.unpack_from(buffer)[0]:
            have += link.recv_into(memoryview(buffer)[have:])
        if with_json:
            orjson.loads(memoryview(buffer)[4:have])
        steps += 1
    clock, cpu = time.perf_counter() - began, time.process_time() - used
    print(json.dumps({"clock": steps * agents / clock, "cpu": steps * agents / cpu}), flush=True)


def measured(python: str, which: str, agents: int, seconds: float) -> dict[str, float]:
    """Agent-steps per second of one run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = [str(Path(__file__)), "--port", str(port), "--agents", str(agents)]
    path = {"PYTHONPATH": str(ROOT)} if which == "ours" else {}
    game = subprocess.Popen([sys.executable, *here, "--client"])
    try:
        command = [python, *here, "--step", which, "--seconds", str(seconds)]
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**plain, **path})
        line = next(line for line in done.stdout.splitlines() if line.startswith('{"clock"'))
        return dict(json.loads(line))
    finally:
        game.kill()
        game.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a Python that has godot-rl")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--agents", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        answer_canned(args.port, args.agents)
    elif args.step in ("bytes", "json"):
        exchange_bytes(args.port, args.agents, args.seconds, args.step == "json")
    elif args.step:
        step_it(args.step, args.port, args.agents, args.seconds)
    elif args.peer is None:
        parser.error("--peer: name a Python that has godot-rl, as above")
    else:
        compare(args.peer, args.pairs, args.seconds)


def compare(peer: str, pairs: int, seconds: float) -> None:
    """Step both classes in turn, with 1, 8 and 64 agents; prints medians and their ratios."""
    for agents in (1, 8, 64):
        found: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": [], "bytes": [], "json": []}
        for _ in range(pairs):
            found["theirs"].append(measured(peer, "theirs", agents, seconds))
            for which in ("ours", "bytes", "json"):
                found[which].append(measured(sys.executable, which, agents, seconds))
        for unit in ("clock", "cpu"):
            ours, theirs, bare, read = (statistics.median(each[unit] for each in runs) for runs in found.values())
            per = "CPU second" if unit == "cpu" else "second"
            print(
                f"{agents} agents, per {per}: {ours:,.0f} agent-steps, theirs {theirs:,.0f}, "
                f"sockets alone {bare:,.0f}, with JSON {read:,.0f}"
            )
            print(f"    {ours / theirs:.2f} times theirs")


if __name__ == "__main__":
    main()
