"""Replicas that learn together end in the weights of a single trainer: each kind, on loopback, in double precision."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from trainer_samples import (
    CONTINUOUS,
    DISCRETE,
    HYBRID,
    IMAGE,
    VECTOR,
    Reported,
    context_of,
    experience,
    flat_weights,
)

from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.design import design_of
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.joined_replicas import JoinedReplicas, connect, listen
from headrace.stages.trainer.protocol import SINGLE_TRAINER, ReplicaLostError, Replicas
from headrace.stages.trainer.replay.replay_memory import ReplayMemory
from headrace.stages.trainer.replay.sharded_replay import ReplayShard
from headrace.stages.trainer_lookup import trainer_class

UPDATES = 40
LENGTHY = {"ppo", "sac", "impala"}
"""The cases that are tried at each change; of POCA, the gradient of uneven parts is."""
SHARDS = 2
LENGTHS = [9, 7, 13, 3, 11, 5]  # of no use for equal parts


@pytest.fixture
def double_precision(monkeypatch):
    """Let torch compute in float64, whatever the arrays are that it takes over."""
    taken_over = torch.from_numpy

    def doubled(array: Any) -> torch.Tensor:
        tensor = taken_over(array)
        return tensor.double() if tensor.dtype == torch.float32 else tensor

    made = torch.tensor

    def double_tensor(data: Any, **options: Any) -> torch.Tensor:
        tensor = made(data, **options)
        return tensor.double() if tensor.dtype == torch.float32 else tensor

    monkeypatch.setattr(torch, "from_numpy", doubled)
    monkeypatch.setattr(torch, "tensor", double_tensor)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(context: Any) -> Any:
    """A trainer in the precision that is set; `make_trainer` would set float32."""
    return trainer_class(context.settings.trainer_type, None, ("behaviors", context.behavior))(context)


def all_do(work: Any, size: int) -> list[Any]:
    """What `work` returns, done by each rank in a thread of its own."""
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def joined(size: int, timeout_s: float = 60.0) -> list[Replicas]:
    first = listen(size)

    def join(rank: int) -> Replicas:
        store = first if rank == 0 else connect("127.0.0.1", first.port, size)
        return JoinedReplicas(rank, size, store, timeout_s=timeout_s)

    return all_do(join, size)


def weights(trainer: Any) -> np.ndarray:
    """All weights, of all networks of a trainer, signals' included."""
    state = trainer.state_dict()
    parts = [state["weights"] if "weights" in state else state["update"]["weights"], state["signals"]]
    return np.concatenate([np.ravel(array).astype(np.float64) for array in _arrays(parts)])


def _arrays(tree: Any) -> list[np.ndarray]:
    if isinstance(tree, np.ndarray):
        return [tree] if tree.dtype.kind == "f" else []
    branches = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [array for branch in branches for array in _arrays(branch)]


def learned(
    kind: str,
    spec: BehaviorSpec,
    replicas: list[Replicas],
    settings: dict[str, Any],
    updates: int = UPDATES,
    sharded: bool = False,
) -> list[Any]:
    """The trainers of all ranks after the updates, and what each has reported."""
    reports = [Reported() for _ in replicas]
    trainers: list[Any] = []
    for each, report in zip(replicas, reports, strict=True):
        context = context_of(kind, spec, 3, report, **settings)
        trainers.append(made(replace(context, replicas=each, replay_shards=SHARDS * sharded)))
    steps = 6 if kind == "sac" else 1  # gradient steps in a call of `learn`
    calls = -(-updates // steps)

    def work(rank: int) -> None:
        if sharded:
            asyncio.run(learn_from_shards(trainers[rank], spec, calls))
        else:
            learn(trainers[rank], spec, calls)

    all_do(work, len(replicas))
    return list(zip(trainers, reports, strict=True))


def learn(trainer: Any, spec: BehaviorSpec, updates: int) -> None:
    """Let a trainer make updates until it has made so many."""
    design = design_of(spec, trainer.context.settings)
    while trainer.version < updates:
        trainer.add(experience(spec, LENGTHS, trainer.step // sum(LENGTHS), design.memory_size, design.squashed))
        while trainer.ready() and trainer.version < updates:
            trainer.learn()


async def learn_from_shards(trainer: Any, spec: BehaviorSpec, updates: int) -> None:
    """As `learn`, with shards that all ranks have for themselves, in place of one whose answers all of them get."""
    replay = trainer.replay
    shards = [ReplayShard(ReplayMemory(spec, ObservationLayout(spec), 300), seed) for seed in range(SHARDS)]

    async def carry(number: int) -> None:
        while True:
            item = await replay.outgoing[number].get()
            for answer in shards[number].process(item):
                replay.receive(number, answer)

    carrying = [asyncio.create_task(carry(number)) for number in range(SHARDS)]
    await replay.opened()
    while trainer.version < updates:
        trainer.add(experience(spec, LENGTHS, trainer.step // sum(LENGTHS), squashed=True))
        while trainer.ready() and trainer.version < updates:
            await trainer.prepare()
            trainer.learn()
    for task in carrying:
        task.cancel()


def moments(trainer: Any) -> np.ndarray:
    """First moments of the optimizers; after one gradient step these are a tenth of its gradients."""
    state = trainer.state_dict()
    optimizers = [state["optimizer"]] if "optimizer" in state else [*state["update"]["optimizers"].values()]
    assert {optimizer["steps"] for optimizer in optimizers} == {1}
    return np.concatenate([np.ravel(array) for array in _arrays([each["first_moment"] for each in optimizers])])


MEMORY = {"memory": {"memory_size": 8, "sequence_length": 4}}
CASES: dict[str, tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = {
    "ppo": ("ppo", CONTINUOUS, (VECTOR,), {"hyperparameters": {"batch_size": 15, "max_grad_norm": 0.5}}),
    "ppo, with memory, normalised": ("ppo", HYBRID, (VECTOR,), {"network_settings": {**MEMORY, "normalize": True}}),
    "ppo, with an image and curiosity": (
        "ppo",
        DISCRETE,
        (VECTOR, IMAGE),
        {"reward_signals": {"extrinsic": {}, "curiosity": {}}},
    ),
    "poca": ("poca", HYBRID, (VECTOR,), {"hyperparameters": {"batch_size": 15}}),
    "poca, with memory": ("poca", CONTINUOUS, (VECTOR,), {"network_settings": MEMORY}),
    "sac": ("sac", CONTINUOUS, (VECTOR,), {"hyperparameters": {"batch_size": 15}}),
    "sac, discrete": ("sac", DISCRETE, (VECTOR,), {"hyperparameters": {"batch_size": 15}}),
    "sac, with memory and RND": (
        "sac",
        HYBRID,
        (VECTOR,),
        {"network_settings": MEMORY, "reward_signals": {"extrinsic": {}, "rnd": {}}},
    ),
    "impala": ("impala", HYBRID, (VECTOR,), {"hyperparameters": {"batch_size_from_replay": 2}}),
    "impala, with memory, its losses averaged": (
        "impala",
        DISCRETE,
        (VECTOR,),
        {"network_settings": MEMORY, "hyperparameters": {"loss_reduction": "mean"}},
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.lengthy if case in LENGTHY else pytest.mark.slow) for case in CASES]
)
def test_two_replicas_learn_what_a_single_trainer_learns(case, double_precision):
    kind, actions, observations, settings = CASES[case]
    spec = BehaviorSpec("Test", observations, actions, grouped=kind == "poca")
    ((alone, reported),) = learned(kind, spec, [SINGLE_TRAINER], settings)
    (first, first_reported), (second, _) = learned(kind, spec, joined(2), settings)

    start = flat_weights(made(context_of(kind, spec, 3, **settings)))
    assert np.abs(flat_weights(alone) - start).max() > 0.01
    assert np.abs(weights(first) - weights(alone)).max() < 1e-5
    assert np.array_equal(weights(first), weights(second))
    assert first_reported.values.keys() == reported.values.keys()
    for name, values in reported.values.items():
        assert np.allclose(first_reported.values[name], values, rtol=1e-3, atol=1e-4), name


@pytest.mark.lengthy
def test_two_replicas_learn_from_the_shards_of_a_replay_buffer_what_a_single_trainer_learns(double_precision):
    spec = BehaviorSpec("Test", (VECTOR,), CONTINUOUS)
    settings: dict[str, Any] = {"hyperparameters": {"batch_size": 15}}
    ((alone, _),) = learned("sac", spec, [SINGLE_TRAINER], settings, sharded=True)
    (first, _), (second, _) = learned("sac", spec, joined(2), settings, sharded=True)
    start = flat_weights(made(context_of("sac", spec, 3, **settings)))
    assert np.abs(flat_weights(alone) - start).max() > 0.01
    assert np.abs(weights(first) - weights(alone)).max() < 1e-5
    assert np.array_equal(weights(first), weights(second))


@pytest.mark.lengthy
@pytest.mark.skipif(sys.platform == "win32", reason="under Wine gloo's threads of one process wait for each other")
@pytest.mark.parametrize("kind", ["ppo", "poca"])
def test_replicas_end_an_update_after_the_same_epoch(kind, double_precision):
    spec = BehaviorSpec("Test", (VECTOR,), CONTINUOUS, grouped=kind == "poca")
    settings = {"hyperparameters": {"batch_size": 15, "num_epoch": 9, "target_kl": 0.01}}
    ((_, alone),) = learned(kind, spec, [SINGLE_TRAINER], settings, updates=2)
    (first, reported), (second, _) = learned(kind, spec, joined(2), settings, updates=2)
    assert reported.values["Policy/Epochs"] == alone.values["Policy/Epochs"]
    assert min(reported.values["Policy/Epochs"]) < 9
    assert np.array_equal(weights(first), weights(second))


@pytest.mark.lengthy
@pytest.mark.parametrize(("case", "size"), [(case, 2 + number % 2) for number, case in enumerate(CASES)])
def test_the_gradient_of_uneven_parts_is_that_of_the_whole_minibatch(case, size, double_precision):
    kind, actions, observations, settings = CASES[case]
    spec = BehaviorSpec("Test", observations, actions, grouped=kind == "poca")
    whole = {"impala": {}, "sac": {"steps_per_update": 1000}}.get(kind, {"batch_size": 32})
    settings = {**settings, "hyperparameters": {**settings.get("hyperparameters", {}), **whole}}
    ((alone, _),) = learned(kind, spec, [SINGLE_TRAINER], settings, updates=1)
    (first, _), *_ = learned(kind, spec, joined(size), settings, updates=1)
    expected, found = moments(alone), moments(first)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-15)


@pytest.mark.lengthy
def test_the_wait_for_a_lost_replica_ends_after_the_timeout():
    first, _ = joined(2, timeout_s=1.0)
    with pytest.raises(ReplicaLostError, match="lost a replica of the learner"):
        first.add_up(torch.ones(3))


@pytest.mark.lengthy
def test_a_replica_that_finds_no_other_one_gives_up():
    with pytest.raises(ReplicaLostError, match="could not connect to each other"):
        JoinedReplicas(0, 2, listen(2), timeout_s=1.0)
