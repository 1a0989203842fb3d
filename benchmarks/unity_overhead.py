"""What Unity's protocol costs us: `python benchmarks/unity_overhead.py [seconds per figure]`.

Prints, for 64 agents with 32 floats each, the milliseconds of our CPU per step: of reading agents into columns, of
writing actions, and of whole exchanges with a client in a process of its own. Then agent steps per second of 1 client
and of 4 whose own step takes 10 ms. CPU time is that of all threads of this process, gRPC's too, and none of the
clients'.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from headrace.config import RunConfig
from headrace.queues.messages import ActionBatch
from headrace.stages.environment.factory import EnvironmentRequest
from headrace.stages.environment.programs.group import ProgramGroup
from headrace.stages.environment.protocol import StepResult
from headrace.stages.environment.unity.making import make_unity_group
from headrace.stages.unity.actions import action_protos
from headrace.stages.unity.columns import BehaviorReader
from headrace.stages.unity.messages import PNG, AgentInfoProto, BrainParametersProto, ListAgentInfoProto
from headrace.stages.unity.png import encode_png

AGENTS = 64
FLOATS = 32
ACTIONS = 4
SIDE = 84
STRETCHES = 5
WARM_UP = 50
CLIENT_STEP_MS = 10
CLIENT = Path(__file__).resolve().parents[1] / "tests" / "unity_client" / "unity_build.x86_64"


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    os.environ["UNITY_CLIENT_PYTHON"] = sys.executable
    print(f"{AGENTS} agents with {FLOATS} floats and {ACTIONS} continuous actions each, ms of our CPU per step:")
    read, write, pictures = columns(seconds)
    print(f"  reading agents into columns    {read:.3f}")
    print(f"  writing actions                {write:.3f}")
    print(f"  all of an exchange with Unity  {asyncio.run(exchange(seconds)):.3f}   (bar: 1.0)")
    print(f"  beside: reading as many PNG pictures of {SIDE}×{SIDE} noisy pixels  {pictures:.1f}")
    one, four = (asyncio.run(agent_steps_per_s(clients, seconds)) for clients in (1, 4))
    print(f"agent steps/s where a client's own step takes {CLIENT_STEP_MS} ms:")
    print(f"  1 client   {one:9,.0f}")
    print(f"  4 clients  {four:9,.0f}   {four / one:.2f} times as many (bar: 3)")


def columns(seconds: float) -> tuple[float, float, float]:
    """Milliseconds of reading, of writing and of reading pictures, as they come from the wire and go to it."""
    brain = BrainParametersProto(brain_name="Many?team=0")
    brain.action_spec.num_continuous_actions = ACTIONS
    numbers = ListAgentInfoProto(value=map(agent, range(AGENTS))).SerializeToString()
    pictures = ListAgentInfoProto(value=map(seeing_agent, range(AGENTS))).SerializeToString()
    reader = BehaviorReader(brain, agent(0), "Unity worker 0")
    seeing = BehaviorReader(brain, seeing_agent(0), "Unity worker 0")
    continuous = np.zeros((AGENTS, ACTIONS), np.float32)
    discrete = np.zeros((AGENTS, 0), np.int32)
    return (
        cpu_ms(lambda: reader.read(ListAgentInfoProto.FromString(numbers).value), seconds),
        cpu_ms(lambda: action_protos(reader.spec, continuous, discrete).SerializeToString(), seconds),
        cpu_ms(lambda: seeing.read(ListAgentInfoProto.FromString(pictures).value), seconds),
    )


def agent(number: int) -> Any:
    info = AgentInfoProto(id=number, reward=0.1)
    sensor = info.observations.add(shape=[FLOATS], dimension_properties=[1], name="numbers")
    sensor.float_data.data.extend(np.random.default_rng(number).random(FLOATS).tolist())
    return info


def seeing_agent(number: int) -> Any:
    pixels = np.random.default_rng(number).integers(0, 64, (3, SIDE, SIDE), np.uint8)
    info = AgentInfoProto(id=number, reward=0.1)
    info.observations.add(
        shape=pixels.shape,
        compression_type=PNG,
        compressed_data=encode_png(pixels),
        dimension_properties=[1, 2, 2],
        name="camera",
    )
    return info


def cpu_ms(call: Callable[[], object], seconds: float) -> float:
    """Median over the stretches."""
    stretches = []
    for _ in range(STRETCHES):
        calls, begin, until = 0, time.process_time(), time.perf_counter() + seconds / STRETCHES
        while time.perf_counter() < until:
            for _ in range(10):
                call()
            calls += 10
        stretches.append((time.process_time() - begin) / calls)
    return 1000 * statistics.median(stretches)


async def exchange(seconds: float) -> float:
    """Milliseconds of our CPU per step of one client, median over the stretches."""
    group = unity_group(1, 0)
    try:
        result = await stepped(group, await group.reset(0), WARM_UP)
        stretches = []
        for _ in range(STRETCHES):
            steps, begin, until = 0, time.process_time(), time.perf_counter() + seconds / STRETCHES
            while time.perf_counter() < until:
                result = await stepped(group, result, 20)
                steps += 20
            stretches.append((time.process_time() - begin) / steps)
        return 1000 * statistics.median(stretches)
    finally:
        await group.close()


async def agent_steps_per_s(clients: int, seconds: float) -> float:
    """Of all clients together."""
    group = unity_group(clients, CLIENT_STEP_MS)
    try:
        result = await stepped(group, await group.reset(0), WARM_UP)
        made, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            made += decisions(result)
            result = await stepped(group, result, 1)
        return made / (time.perf_counter() - begin)
    finally:
        await group.close()


def unity_group(clients: int, step_ms: float) -> ProgramGroup:
    arguments = f"--scene many --agents {AGENTS} --continuous {ACTIONS} --step-ms {step_ms}"
    settings = {"env_path": str(CLIENT), "num_envs": clients, "base_port": 0, "env_args": arguments.split()}
    config = RunConfig.model_validate({"env_settings": settings, "default_settings": {"trainer_type": "ppo"}})
    return make_unity_group(EnvironmentRequest(config))


async def stepped(group: ProgramGroup, result: StepResult, steps: int) -> StepResult:
    """After so many ticks of actions that cost nothing to decide."""
    for _ in range(steps):
        result = await group.step(
            {
                behavior_id: ActionBatch(np.zeros((d, ACTIONS), np.float32), np.zeros((d, 0), np.int32))
                for behavior_id, said in result.steps.items()
                if (d := len(said.agent_ids) - said.ended)
            }
        )
    return result


def decisions(result: StepResult) -> int:
    return sum(len(said.agent_ids) - said.ended for said in result.steps.values())


if __name__ == "__main__":
    main()
