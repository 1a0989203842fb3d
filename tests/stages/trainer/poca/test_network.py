import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import MemorySettings, NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.poca import GroupCritic, Teams

VECTOR, IMAGE = ObservationSpec("v", (3,)), ObservationSpec("i", (3, 20, 20), "uint8")
SET, GOAL = ObservationSpec("s", (4, 5)), ObservationSpec("g", (2,), goal=True)
ACTIONS = ActionSpec(continuous_size=1, discrete_branches=(2,))
P, S, M = 3, 2, 4


def critic_of(observations=(VECTOR,), memory=None, hidden=8, seed=0):
    settings = NetworkSettings(hidden_units=hidden, num_layers=2, memory=memory)
    design = PolicyDesign(BehaviorSpec("Test", observations, ACTIONS, grouped=True), settings)
    return seeded(np.random.default_rng(seed), lambda: GroupCritic(design, S))


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def teams_of(members, present, vectors, actions, **more):
    members, present = torch.tensor(members), torch.tensor(present)
    size = present.sum(1, keepdim=True) * 1.0 - 1.0
    return Teams(Inputs(vectors), actions, members, present, size, **more)


@pytest.fixture
def critic():
    return critic_of()


def judged(critic, teams):
    with torch.no_grad():
        values, baselines, _ = critic(teams)
    return values, baselines


@pytest.mark.lengthy
def test_an_absent_mate_has_no_influence(critic):
    vectors, actions = normal(1, 4, 3), normal(2, 4, P)
    members, present = [[0, 1, 2], [1, 0, 3]], [[True, True, False], [True, False, False]]
    expected = judged(critic, teams_of(members, present, vectors, actions))
    garbage_vectors, garbage_actions = vectors.clone(), actions.clone()
    garbage_vectors[2:], garbage_actions[2:] = 1e6, -1e6
    for members in ([[0, 1, 2], [1, 3, 3]], [[0, 1, 3], [1, 2, 2]]):
        got = judged(critic, teams_of(members, present, garbage_vectors, garbage_actions))
        for one, other in zip(got, expected, strict=True):
            assert_close(one, other, rtol=0, atol=0)


def test_no_gradient_goes_to_an_absent_mate(critic):
    vectors, actions = normal(1, 3, 3).requires_grad_(), normal(2, 3, P).requires_grad_()
    values, baselines, _ = critic(teams_of([[0, 1, 2]], [[True, True, False]], vectors, actions))
    (values.sum() + baselines.sum()).backward()
    assert (vectors.grad[2] == 0).all()
    assert (actions.grad[2] == 0).all()
    assert (vectors.grad[:2] != 0).any(dim=1).all()


def test_an_absent_agent_leaves_the_value_of_the_others(critic):
    vectors, actions = normal(1, 3, 3), normal(2, 3, P)
    without, _ = judged(critic, teams_of([[0, 1, 2]], [[False, True, True]], vectors, actions))
    vectors[0] = 1e6
    other, _ = judged(critic, teams_of([[0, 1, 2]], [[False, True, True]], vectors, actions))
    of_mate, _ = judged(critic, teams_of([[1, 2, 0]], [[True, True, False]], vectors, actions))
    assert_close(without, other, rtol=0, atol=0)
    assert_close(without, of_mate)


def test_values_without_any_agent_are_finite(critic):
    values, baselines = judged(critic, teams_of([[0, 1]], [[False, False]], normal(1, 2, 3), normal(2, 2, P)))
    assert torch.isfinite(values).all()
    assert torch.isfinite(baselines).all()


def test_the_value_depends_on_no_action_and_the_baseline_only_on_those_of_the_mates(critic):
    vectors, actions = normal(1, 3, 3), normal(2, 3, P).requires_grad_()
    teams = teams_of([[0, 1, 2]], [[True, True, True]], vectors, actions)
    values, baselines, _ = critic(teams)
    (slopes,) = torch.autograd.grad(baselines.sum(), actions, retain_graph=True)
    assert (slopes[0] == 0).all()
    assert (slopes[1:] != 0).any(dim=1).all()
    assert torch.autograd.grad(values.sum(), actions, allow_unused=True)[0].abs().max() == 0


def test_the_order_of_the_mates_does_not_matter_and_all_mates_agree_on_the_value(critic):
    vectors, actions = normal(1, 3, 3), normal(2, 3, P)
    members = [[0, 1, 2], [0, 2, 1], [1, 2, 0]]
    values, baselines = judged(critic, teams_of(members, [[True] * 3] * 3, vectors, actions))
    assert_close(values[0], values[1])
    assert_close(values[0], values[2])
    assert_close(baselines[0], baselines[1])
    assert not torch.allclose(baselines[0], baselines[2])


def test_alone_an_agent_s_baseline_is_its_value(critic):
    values, baselines = judged(critic, teams_of([[0], [1]], [[True], [True]], normal(1, 2, 3), normal(2, 2, P)))
    assert_close(values, baselines)


def test_the_number_of_members_is_known_apart_from_what_they_see(critic):
    """The attention gives a mean over members: two who see the same would look like one."""
    vectors, actions = normal(1, 1, 3), normal(2, 1, P)
    one, _ = judged(critic, teams_of([[0, 0]], [[True, False]], vectors, actions))
    two, _ = judged(critic, teams_of([[0, 0]], [[True, True]], vectors, actions))
    assert not torch.allclose(one, two, atol=1e-4)


@pytest.mark.parametrize("observations", [(VECTOR,), (VECTOR, IMAGE), (IMAGE,), (VECTOR, SET), (VECTOR, GOAL)])
@pytest.mark.parametrize("hidden", [8, 10])
def test_every_parameter_learns_from_whatever_is_seen(observations, hidden):
    critic = critic_of(observations, hidden=hidden)
    vectors = normal(1, 3, sum(o.shape[0] for o in observations if len(o.shape) == 1))
    others = tuple(normal(5, 3, *o.shape).mul(50).clamp(0, 255) for o in observations if len(o.shape) > 1)
    teams = teams_of([[0, 1], [2, 0]], [[True, True], [True, True]], vectors, normal(2, 3, P))
    values, baselines, _ = critic(teams._replace(inputs=Inputs(vectors, others)))
    (values.square().sum() + baselines.square().sum()).backward()
    # A key's bias shifts all scores alike, which softmax does not notice.
    learning = {name: p.grad for name, p in critic.named_parameters() if not name.endswith("key.bias")}
    silent = [name for name, grad in learning.items() if grad is None or not grad.abs().max()]
    assert not silent


def test_memories_of_value_and_baseline_are_kept_apart_along_a_sequence():
    critic = critic_of(memory=MemorySettings(memory_size=M, sequence_length=4))
    vectors, actions, before = normal(1, 8, 3), normal(2, 8, P), normal(3, 1, 2 * M)
    members = [[0, 4], [1, 5], [2, 6], [3, 7]]
    present = [[True, True]] * 4
    with torch.no_grad():
        whole = critic(teams_of(members, present, vectors, actions, memories=before, sequence_length=4))
        memories, values, baselines = before, [], []
        for step in range(4):
            one = teams_of(members[step : step + 1], present[:1], vectors, actions, memories=memories)
            value, baseline, memories = critic(one)
            values.append(value)
            baselines.append(baseline)
    assert_close(whole[0], torch.cat(values))
    assert_close(whole[1], torch.cat(baselines))
    assert_close(whole[2], memories)
    assert not torch.allclose(memories[:, :M], memories[:, M:])
