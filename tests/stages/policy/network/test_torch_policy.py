"""Policies that need torch: what they see, remember and decide."""

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.config import NetworkSettings
from headrace.queues.columns import decision_columns, memory_column
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import PolicyDesign, policy_layout
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.network.torch_policy import TorchPolicy
from headrace.stages.policy.numpy_policy import NumpyPolicy, make_policy
from headrace.stages.policy.observations import Normalizer, ObservationLayout
from headrace.stages.policy.protocol import ActingPolicy, Recall
from headrace.stages.policy.sampling import action_features, first_action_features

VECTOR = ObservationSpec("vector", (3,))
IMAGE = ObservationSpec("image", (3, 20, 20), "uint8")
THINGS = ObservationSpec("things", (4, 3))
GOAL = ObservationSpec("goal", (2,), goal=True)
HYBRID = ActionSpec(2, (3, 2), masked=True)
MEMORY = {"memory_size": 6, "sequence_length": 4}


def design_for(*observed, actions=HYBRID, squashed=False, **settings):
    network = NetworkSettings.model_validate({"hidden_units": 8, "num_layers": 1, **settings})
    return PolicyDesign(BehaviorSpec("Test", observed, actions), network, squashed)


def make(design, seed=0):
    """A loaded policy, the network whose weights it has, and a normaliser if there is one."""
    random = np.random.default_rng(seed)
    network = seeded(random, lambda: ActorNetwork(design)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.from_numpy(random.normal(0, 0.3, parameter.shape).astype(np.float32)))
    tensors = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}
    normalizer = None
    vectors = ObservationLayout(design.spec).vector_size
    if design.settings.normalize and vectors:
        normalizer = Normalizer(vectors)
        normalizer.update(random.normal(2.0, 3.0, (40, vectors)).astype(np.float32))
        tensors["normalizer.mean"], tensors["normalizer.inverse_std"] = normalizer.tensors()
    policy = TorchPolicy(design)
    policy.load(update_of(tensors, policy_layout(design)))
    return policy, network, normalizer


def update_of(tensors, layout, version=3):
    return PolicyUpdate("Test", version, np.concatenate([tensors[n].reshape(-1) for n, _ in layout]), layout, 0)


def seen_by(design, d, seed=5):
    random = np.random.default_rng(seed)
    return tuple(
        random.integers(0, 256, (d, *o.shape)).astype(np.uint8)
        if o.dtype == "uint8"
        else random.normal(size=(d, *o.shape)).astype(np.float32)
        for o in design.spec.observations
    )


def recall_for(design, d, seed=6):
    random = np.random.default_rng(seed)
    memories = random.normal(size=(d, design.memory_size)).astype(np.float32)
    return Recall(memories, random.normal(size=(d, design.previous_action_size)).astype(np.float32))


KINDS = {
    "image": (VECTOR, IMAGE),
    "image alone": (IMAGE,),
    "set": (VECTOR, THINGS),
    "goal": (VECTOR, GOAL),
}


@pytest.mark.parametrize("memory", [None, MEMORY], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize(
    ("observed", "squashed"), [(each, turn % 2 == 0) for turn, each in enumerate(KINDS.values())], ids=KINDS
)
def test_its_heads_are_those_of_the_network_over_normalised_vectors(observed, memory, squashed):
    design = design_for(*observed, squashed=squashed, memory=memory, normalize=True)
    policy, network, normalizer = make(design)
    seen = seen_by(design, 5)
    recall = recall_for(design, 5) if memory else None
    encoded = ObservationLayout(design.spec).encode(seen)
    vectors = encoded.vectors if normalizer is None else normalizer.apply(encoded.vectors)
    inputs = Inputs(torch.from_numpy(vectors), tuple(torch.from_numpy(other) for other in encoded.others))
    if recall is not None:
        memories = torch.from_numpy(recall.memories)
        inputs = inputs._replace(previous_actions=torch.from_numpy(recall.previous_actions), memories=memories)
    with torch.no_grad():
        expected, after = network(inputs)
    heads, _, remembered = policy.heads(seen, recall)
    np.testing.assert_allclose(heads, expected.numpy(), atol=1e-5)
    assert (remembered is None) == (after is None) == (memory is None)
    if memory:
        np.testing.assert_allclose(remembered, after.numpy(), atol=1e-5)


def test_the_torch_policy_decides_like_the_numpy_policy():
    design = design_for(VECTOR, squashed=True)
    network = seeded(np.random.default_rng(0), lambda: ActorNetwork(design))
    plain, torch_policy = NumpyPolicy(design), TorchPolicy(design)
    update = update_of(network.acting_tensors(), policy_layout(design))
    plain.load(update)
    torch_policy.load(update)
    seen = seen_by(design, 40)
    one, two = (policy.act(seen, None, np.random.default_rng(3)) for policy in (plain, torch_policy))
    for name, column in one.columns.items():
        np.testing.assert_allclose(column, two.columns[name], atol=1e-5)
    np.testing.assert_array_equal(one.actions.discrete, two.actions.discrete)


# Memory. -------------------------------------------------------------------------------------------------------------


def test_a_decision_holds_the_memory_before_it_and_recalls_the_one_after_it_with_the_action():
    design = design_for(VECTOR, memory=MEMORY, actions=ActionSpec(2, (3,), unbounded=(1,)))
    policy, _, _ = make(design)
    seen, recall = seen_by(design, 5), recall_for(design, 5)
    decision = policy.act(seen, None, np.random.default_rng(0), recall=recall)
    np.testing.assert_array_equal(decision.columns["memories"], recall.memories)
    np.testing.assert_array_equal(decision.recall.memories, policy.heads(seen, recall)[2])
    expected = action_features(design.spec.actions, decision.actions.continuous, decision.actions.discrete)
    np.testing.assert_array_equal(decision.recall.previous_actions, expected)
    assert not np.array_equal(expected[:, :2], decision.columns["continuous_actions"]), "as the environment got it"


def test_without_a_recall_agents_are_at_the_start_of_their_episodes():
    design = design_for(VECTOR, memory=MEMORY)
    policy, _, _ = make(design)
    first = np.tile(first_action_features(HYBRID), (4, 1))
    start = Recall(np.zeros((4, 6), np.float32), first)
    seen = seen_by(design, 4)
    one = policy.act(seen, None, np.random.default_rng(1))
    two = policy.act(seen, None, np.random.default_rng(1), recall=start)
    np.testing.assert_array_equal(one.columns["log_probs"], two.columns["log_probs"])
    assert not one.columns["memories"].any()


def test_acting_step_by_step_is_what_the_network_does_with_the_whole_sequence():
    design = design_for(VECTOR, memory=MEMORY, actions=ActionSpec(2))
    policy, network, _ = make(design)
    steps = [seen_by(design, 3, seed) for seed in range(4)]
    heads, fed = [], []
    recall = AgentMemories.for_policy(policy, ActionSpec(2)).recall(np.arange(3), np.zeros(3, np.int64))
    start = recall.memories
    for seen in steps:
        heads.append(policy.heads(seen, recall)[0])
        fed.append(recall.previous_actions)
        recall = policy.act(seen, None, np.random.default_rng(len(heads)), recall=recall).recall
    rows = [np.stack(column, axis=1).reshape(12, -1) for column in ([seen[0] for seen in steps], fed)]
    inputs = Inputs(torch.from_numpy(rows[0]), (), torch.from_numpy(rows[1]), torch.from_numpy(start), 4)
    with torch.no_grad():
        expected, after = network(inputs)
    np.testing.assert_allclose(np.stack(heads, axis=1).reshape(12, -1), expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(recall.memories, after.numpy(), atol=1e-5)


def test_columns_are_those_of_the_column_table_and_the_memory_column():
    design = design_for(VECTOR, IMAGE, memory=MEMORY)
    policy: ActingPolicy = make(design)[0]
    assert (policy.memory_size, policy.previous_action_size) == (6, 2 + 5)
    for d in (0, 1, 6):
        decision = policy.act(seen_by(design, d), None, np.random.default_rng(0))
        table = decision_columns(design.spec, (memory_column(6),))
        expected = {c.name: (np.dtype(c.dtype), (d, *c.shape)) for c in table}
        assert {n: (a.dtype, a.shape) for n, a in decision.columns.items()} == expected
        assert decision.recall.memories.shape == (d, 6)
        assert decision.recall.previous_actions.shape == (d, 7)


# Loading, and the rest of the contract. ------------------------------------------------------------------------------


def test_its_layout_is_the_normaliser_and_the_parameters_of_an_actor():
    design = design_for(VECTOR, IMAGE, normalize=True)
    layout = policy_layout(design)
    assert layout[:2] == (("normalizer.mean", (3,)), ("normalizer.inverse_std", (3,)))
    network = ActorNetwork(design)
    assert dict(layout[2:]) == {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    assert "normalizer.mean" not in dict(policy_layout(design_for(IMAGE, normalize=True)))


def test_finding_a_layout_and_making_a_policy_leave_torch_s_own_randomness_alone():
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    make_policy(design_for(IMAGE))
    assert torch.equal(torch.rand(1), expected)


def test_the_weights_are_copied_on_loading():
    design = design_for(VECTOR, memory=MEMORY, normalize=True)
    policy = TorchPolicy(design)
    layout = policy_layout(design)
    weights = np.random.default_rng(0).normal(size=sum(int(np.prod(s)) for _, s in layout)).astype(np.float32)
    policy.load(PolicyUpdate("Test", 1, weights, layout, 0))
    before = policy.act(seen_by(design, 3), None, np.random.default_rng(0)).columns["log_probs"]
    weights[:] = 0.0
    after = policy.act(seen_by(design, 3), None, np.random.default_rng(0)).columns["log_probs"]
    np.testing.assert_array_equal(before, after)


def test_a_policy_of_another_network_is_refused_by_tensor():
    policy = TorchPolicy(design_for(VECTOR, IMAGE))
    layout = policy_layout(design_for(VECTOR, IMAGE, hidden_units=9))
    size = sum(int(np.prod(shape)) for _, shape in layout)
    with pytest.raises(StageError, match=r"Test: policy version 1 does not fit this network: expected tensor body"):
        policy.load(PolicyUpdate("Test", 1, np.zeros(size, np.float32), layout, 0))


class MadeTensors(TorchDispatchMode):
    """Notes the largest tensor that torch makes in memory."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device.type == "cpu":
            self.largest = max(self.largest, made.nbytes)
        return made


def test_a_network_takes_no_memory_before_weights_of_its_size_are_loaded():
    """A file with a few weights may state any size."""
    small = policy_layout(design_for(IMAGE))
    weights = np.zeros(sum(int(np.prod(shape)) for _, shape in small), np.float32)
    with MadeTensors() as made:
        policy = TorchPolicy(design_for(IMAGE, hidden_units=1024))
        with pytest.raises(StageError, match="does not fit this network"):
            policy.load(PolicyUpdate("Test", 1, weights, small, 0))
    assert made.largest < 100_000, "a layer would have 4 MB"


def test_acting_without_a_policy_is_an_error():
    with pytest.raises(StageError, match="no policy has been loaded"):
        TorchPolicy(design_for(IMAGE)).act(seen_by(design_for(IMAGE), 1), None, np.random.default_rng(0))


def test_a_nan_in_the_observations_is_an_error_that_shows_them():
    design = design_for(VECTOR, THINGS)
    policy, _, _ = make(design)
    seen = seen_by(design, 4)
    seen[0][2, 1] = np.nan
    with pytest.raises(
        NotFiniteError, match=r"Test: the environment gave row 2 of 4 agents an observation that is not finite.*nan"
    ):
        policy.act(seen, None, np.random.default_rng(0))


def test_a_decision_stays_unchanged_when_the_policy_acts_again():
    design = design_for(VECTOR, memory=MEMORY)
    policy, _, _ = make(design)
    random = np.random.default_rng(0)
    first = policy.act(seen_by(design, 8, seed=1), None, random)
    kept = {name: column.copy() for name, column in first.columns.items()}
    memories = first.recall.memories.copy()
    policy.act(seen_by(design, 8, seed=2), None, random, recall=first.recall)
    for name, column in first.columns.items():
        np.testing.assert_array_equal(column, kept[name])
    np.testing.assert_array_equal(first.recall.memories, memories)


def test_decisions_depend_on_the_given_generator_and_not_on_torch_s_seed():
    design = design_for(VECTOR, IMAGE)
    policy, _, _ = make(design)
    decisions = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        decisions.append(policy.act(seen_by(design, 5), None, np.random.default_rng(9)))
    for name, column in decisions[0].columns.items():
        np.testing.assert_array_equal(column, decisions[1].columns[name])


def test_acting_uses_one_thread_and_restores_the_thread_setting():
    design = design_for(VECTOR, IMAGE)
    policy, _, _ = make(design)
    seen_threads = []
    hook = register_module_forward_pre_hook(lambda module, given: seen_threads.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        policy.act(seen_by(design, 2), None, np.random.default_rng(0))
        assert (set(seen_threads), torch.get_num_threads()) == ({1}, 2)
    finally:
        hook.remove()
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("design", "kind"),
    [
        (design_for(VECTOR), NumpyPolicy),
        (design_for(VECTOR, squashed=True), NumpyPolicy),
        (design_for(VECTOR, memory=MEMORY), TorchPolicy),
        (design_for(VECTOR, IMAGE), TorchPolicy),
        (design_for(VECTOR, GOAL), TorchPolicy),
    ],
)
def test_designs_that_are_plain_act_in_numpy_and_the_others_in_torch(design, kind):
    assert type(make_policy(design)) is kind
