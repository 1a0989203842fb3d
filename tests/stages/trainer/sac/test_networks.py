"""What the networks begin with: it decides how soon they learn (docs/learning.md)."""

from math import sqrt

import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.trainer.sac import Critics, drawn_for

WIDTH = 64
TORCH, XAVIER = 1 / sqrt(WIDTH), sqrt(6 / (WIDTH + 5))
"""The largest weights of a head of 5 values: as torch draws layers, and as ML-Agents draws value heads."""


def q_network(actions):
    settings = NetworkSettings(hidden_units=WIDTH, num_layers=2)
    design = PolicyDesign(BehaviorSpec("Test", (ObservationSpec("o", (6,)),), actions), settings, squashed=True)
    torch.manual_seed(0)
    return drawn_for(actions, Critics(design, 1, values=False)).q1


@pytest.mark.parametrize(
    ("actions", "normal", "largest"),
    [(ActionSpec(2), False, TORCH), (ActionSpec(0, (3, 2)), True, TORCH), (ActionSpec(2, (3, 2)), True, XAVIER)],
    ids=["continuous", "discrete", "both"],
)
def test_the_kinds_of_actions_decide_what_networks_begin_with(actions, normal, largest):
    network = q_network(actions)
    second = network.body.layers[2].weight.detach()
    assert (second.abs().max() > 1.5 * TORCH) == normal, "hidden layers are normal, or uniform within torch's bounds"
    head = network.head.weight.detach()
    assert 0.9 * largest < head.abs().max() <= largest


def test_with_both_kinds_of_actions_and_a_memory_previous_actions_have_no_weight_at_first():
    settings = NetworkSettings(hidden_units=WIDTH, memory={"memory_size": 8, "sequence_length": 4})
    actions = ActionSpec(1, (2,))
    design = PolicyDesign(BehaviorSpec("Test", (ObservationSpec("o", (6,)),), actions), settings, squashed=True)
    critics = drawn_for(actions, Critics(design, 1, values=True))
    for network in (drawn_for(actions, ActorNetwork(design)), critics.q1, critics.q2, critics.value):
        first = network.body.layers[0]
        assert isinstance(first, torch.nn.Linear)
        assert first.weight[:, :6].any()
        assert not first.weight[:, 6:9].any()
