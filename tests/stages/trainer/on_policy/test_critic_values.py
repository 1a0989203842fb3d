from functools import partial

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import MemorySettings, NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.on_policy.trainer import gathered_sequences
from headrace.stages.trainer.ppo import evaluate_rows, evaluate_sequences
from headrace.stages.trainer.trajectories import Chains, SequenceCuts

VECTOR = ObservationSpec("v", (3,))
MEMORY = 4
PREVIOUS = 2


def network(observations=(VECTOR,), memory=None, shared=False, signals=2):
    settings = NetworkSettings(hidden_units=8, num_layers=1, memory=memory)
    design = PolicyDesign(BehaviorSpec("Test", observations, ActionSpec(PREVIOUS)), settings)
    return make_actor_critic(design, signals, shared, np.random.default_rng(0))


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def one_by_one(critic, vectors, previous, memories):
    """The straightforward way: row after row of one agent."""
    values, before = [], []
    for vector, action in zip(vectors, previous, strict=True):
        before.append(memories)
        inputs = Inputs(torch.from_numpy(vector[None]), (), torch.from_numpy(action[None]), memories)
        with torch.no_grad():
            value, memories = critic.evaluate(inputs)
        values.append(value[0].numpy())
    return np.array(values), before, memories


@pytest.mark.parametrize("length", [1, 4, 5, 20])
def test_values_and_memories_are_those_of_one_long_walk_per_agent(length):
    """Agent 1 has trajectories 0, 2 and 3 of 7, 5 and 2 rows of one episode; agent 2 ends in trajectory 1, of 6 rows."""
    critic = network(memory=MemorySettings(memory_size=MEMORY, sequence_length=length))
    lengths = np.array([7, 6, 5, 2])
    vectors, previous = normal(1, 20, 3), normal(2, 20, PREVIOUS)
    after, last = normal(3, 4, 3), normal(4, 4, PREVIOUS)
    initial = torch.from_numpy(normal(5, 4, MEMORY))
    chains = Chains.of(np.array([1, 2, 1, 1]), np.zeros(4, np.int64), np.array([False, True, False, False]))
    cuts = SequenceCuts.of(lengths, length)
    rows = Inputs(torch.from_numpy(vectors), (), torch.from_numpy(previous))
    finals = Inputs(torch.from_numpy(after), (), torch.from_numpy(last))
    gather = partial(gathered_sequences, rows), partial(gathered_sequences, finals)
    found = evaluate_sequences(critic, *gather, lengths, cuts, chains, initial, 4096)

    first = np.array([*range(7), *range(13, 20)])
    second = np.arange(7, 13)
    expected_memories = np.empty((20, MEMORY), np.float32)
    for numbers, start, ends in ((first, 0, [(0, 7), (2, 12), (3, 14)]), (second, 1, [(1, 6)])):
        values, before, end = one_by_one(critic, vectors[numbers], previous[numbers], initial[start : start + 1])
        np.testing.assert_allclose(found.values[numbers], values, rtol=1e-4, atol=1e-6)
        expected_memories[numbers] = torch.cat(before).numpy()
        for k, rows_before in ends:
            there = end if rows_before == len(numbers) else before[rows_before]
            value, _, _ = one_by_one(critic, after[k : k + 1], last[k : k + 1], there)
            np.testing.assert_allclose(found.final_values[k], value[0], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(found.memories_after[k].numpy(), there[0].numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.memories.numpy(), expected_memories[cuts.starts], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "laid_out", [torch.contiguous_format, torch.channels_last], ids=["as it came", "channels innermost"]
)
@pytest.mark.parametrize("block", [4, 100])
def test_without_memory_rows_and_final_observations_are_valued_in_blocks(block, laid_out, shared):
    image = ObservationSpec("i", (3, 20, 20), "uint8")
    critic = network((VECTOR, image), shared=shared)
    images = np.random.default_rng(0).integers(0, 256, (13, 3, 20, 20)).astype(np.uint8)
    vectors = normal(1, 13, 3)
    pictures = torch.from_numpy(images).contiguous(memory_format=laid_out)
    rows = Inputs(torch.from_numpy(vectors[:10]), (pictures[:10],))
    finals = Inputs(torch.from_numpy(vectors[10:]), (pictures[10:],))
    found, with_heads = (evaluate_rows(critic, rows, finals, block, heads=heads) for heads in (False, True))
    with torch.no_grad():
        heads, values = critic(Inputs(torch.from_numpy(vectors), (torch.from_numpy(images),)))
    expected = values.numpy()
    assert found.heads is None
    assert_close(with_heads.heads, heads[:10], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(with_heads.values, found.values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.values, expected[:10], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.final_values, expected[10:], rtol=1e-4, atol=1e-5)
