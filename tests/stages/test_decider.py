"""The central decider: what many actors ask is decided together, and as each of them would have decided it."""

import numpy as np
import pytest
from fakes import EchoPolicy, answer_to, policy_update
from oracles import passed

from headrace.config import NetworkSettings
from headrace.queues.messages import DecisionRequest, PolicyQuestion, PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.inference import CentralDecider
from headrace.stages.policy.design import PolicyDesign, policy_layout
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.protocol import Recall

SPEC = BehaviorSpec("Ball", (ObservationSpec("who", (4,), "int64"),), ActionSpec(0, (3,)))
SEEN = BehaviorSpec("Ball", (ObservationSpec("vector", (3,)), ObservationSpec("more", (2,))), ActionSpec(2, (3,), True))


def decider_of(make, spec=SPEC, actors=2):
    decider = CentralDecider(make, np.random.default_rng(0), actors)
    decider.add_behavior(spec)
    return decider


def who(*agents):
    return np.array([[agent, 0, 0, 0] for agent in agents], np.int64)


def question(*agents, snapshot=-1, version=0, held=(), greedy=True):
    return PolicyQuestion("Ball", snapshot, version, greedy, held, {"obs_0": who(*agents)})


def test_questions_of_several_actors_are_decided_in_one_pass():
    calls = []

    class Counting(EchoPolicy):
        def act(self, observations, *rest):
            calls.append(len(observations[0]))
            return super().act(observations, *rest)

    decider = decider_of(Counting)
    decider.load(policy_update("Ball", 4))
    decider.receive("actor-0", DecisionRequest(7, (question(1, 2),)))
    decider.receive("actor-1", DecisionRequest(3, (question(5),)))
    assert len(decider) == 2
    answers = dict(decider.answer())
    assert calls == [3]
    assert (answers["actor-0"].number, answers["actor-1"].number) == (7, 3)
    for actor, agents in (("actor-0", (1, 2)), ("actor-1", (5,))):
        (answer,) = answers[actor].answers
        assert answer.version == 4
        assert answer.columns["discrete"][:, 0].tolist() == answer_to(who(*agents)).tolist()
        assert set(answer.columns["decision/acted_version"].tolist()) == {4}
    assert len(decider) == 0


def test_a_newer_request_takes_the_place_of_one_that_an_actor_gave_up():
    decider = decider_of(EchoPolicy)
    decider.load(policy_update("Ball", 1))
    decider.receive("actor-0", DecisionRequest(1, (question(1),)))
    decider.receive("actor-0", DecisionRequest(2, (question(1, 2),)))
    ((_, answer),) = decider.answer()
    assert answer.number == 2


@pytest.mark.parametrize("memory", [None, {"memory_size": 6, "sequence_length": 4}], ids=["none", "memory"])
def test_the_decider_equals_a_policy_in_the_actor(memory):
    settings = NetworkSettings.model_validate({"hidden_units": 8, "num_layers": 1, "memory": memory})
    design = PolicyDesign(SEEN, settings)
    network = seeded(np.random.default_rng(1), lambda: ActorNetwork(design))
    layout = policy_layout(design)
    tensors = network.acting_tensors()
    weights = np.concatenate([np.ravel(tensors[name]) for name, _ in layout])
    update = PolicyUpdate("Ball", 2, weights, layout, 0)
    near = make_policy(design)
    near.load(update)
    decider = decider_of(lambda spec: make_policy(design), SEEN)
    decider.load(update)
    random = np.random.default_rng(2)
    asked = {}
    for actor, count in (("actor-0", 3), ("actor-1", 2)):
        columns = {
            "obs_0": random.normal(size=(count, 3)).astype(np.float32),
            "obs_1": random.normal(size=(count, 2)).astype(np.float32),
            "masks": np.array([[True, actor == "actor-1", True]] * count),
        }
        if memory is not None:
            columns["memories"] = random.normal(size=(count, 6)).astype(np.float32)
            columns["previous_actions"] = random.normal(size=(count, 5)).astype(np.float32)
        asked[actor] = columns
        decider.receive(actor, passed(DecisionRequest(0, (PolicyQuestion("Ball", -1, 2, True, (), columns),))))
    for actor, answer in decider.answer():
        columns = asked[actor]
        recall = Recall(columns["memories"], columns["previous_actions"]) if memory is not None else None
        seen = columns["obs_0"], columns["obs_1"]
        meant = near.act(seen, columns["masks"], np.random.default_rng(0), True, recall)
        found = passed(answer).answers[0].columns
        np.testing.assert_allclose(found["continuous"], meant.actions.continuous, atol=1e-6)
        assert found["discrete"].tolist() == meant.actions.discrete.tolist()
        kept = {name.removeprefix("decision/") for name in found if name.startswith("decision/")}
        assert kept == meant.columns.keys() - {"memories", "action_masks"}
        for name in kept:
            np.testing.assert_allclose(found[f"decision/{name}"], meant.columns[name], atol=1e-6)
        if memory is not None:
            np.testing.assert_allclose(found["memories"], meant.recall.memories, atol=1e-6)
            np.testing.assert_allclose(found["previous_actions"], meant.recall.previous_actions, atol=1e-6)


def test_a_trainer_s_newest_policy_answers_with_its_version():
    decider = decider_of(EchoPolicy)
    for version in (1, 2):
        decider.load(policy_update("Ball", version))
    decider.receive("actor-0", DecisionRequest(0, (question(1, version=1),)))
    ((_, answer),) = decider.answer()
    assert answer.answers[0].version == 2
    assert decider.kept("Ball") == 1


def test_a_snapshot_stays_until_every_actor_plays_by_a_later_one():
    decider = decider_of(EchoPolicy)
    for snapshot in (3, 4, 5):
        decider.load(policy_update("Ball", snapshot, snapshot=snapshot))

    def ask(actor, snapshot, *held):
        decider.receive(actor, DecisionRequest(0, (question(1, snapshot=snapshot, version=snapshot, held=held),)))
        ((_, answer),) = decider.answer()
        assert answer.answers[0].columns["decision/acted_snapshot"].tolist() == [snapshot]

    ask("actor-0", 5, 5)
    assert decider.kept("Ball") == 3  # the other actor has not asked yet, and may want any
    ask("actor-1", 3, 3, 4)
    assert decider.kept("Ball") == 3
    ask("actor-1", 4, 4)
    assert decider.kept("Ball") == 2
    ask("actor-1", 4, 4)
    decider.load(policy_update("Ball", 6, snapshot=6))  # on its way to both
    ask("actor-1", 5, 5)
    assert decider.kept("Ball") == 2
    with pytest.raises(StageError, match="snapshot 3 of its policy, but that is not available"):
        ask("actor-0", 3, 3)
