import numpy as np
import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.flat_parameters import FlatParameters
from headrace.stages.policy.network.layers import fetched, gathered, host_copies, to_device


def test_on_a_cpu_a_tensor_is_handed_on_as_it_is():
    tensor = torch.arange(6.0)
    assert to_device(tensor, "cpu") is tensor
    assert gathered(tensor, torch.tensor([4, 1]), "cpu").tolist() == [4.0, 1.0]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
def test_a_tensor_may_change_as_soon_as_it_has_been_sent_to_a_gpu():
    tensor = torch.arange(1 << 22, dtype=torch.float32)
    there = to_device(tensor, "cuda:0")
    tensor.zero_()
    assert torch.equal(there.cpu(), torch.arange(1 << 22, dtype=torch.float32))


@needs_gpu
def test_rows_are_gathered_on_a_gpu():
    pictures = torch.arange(24, dtype=torch.uint8).view(4, 2, 3)
    assert torch.equal(gathered(pictures, torch.tensor([3, 0]), "cuda").cpu(), pictures[[3, 0]])


def counted():
    fetches = []

    def fetch(vector):
        fetches.append(len(vector))
        return vector.clone()

    return fetches, fetch


def test_views_into_one_vector_are_fetched_in_one_transfer_with_what_lies_between_them():
    vector = torch.arange(100.0)
    views = {
        "transposed": vector[10:22].view(3, 4).T,
        "strided": vector[30:50].view(2, 2, 5)[0],
        "a number": vector[9],
        "none": vector[60:60],
    }
    fetches, fetch = counted()
    copies = fetched(views, fetch)
    assert fetches == [60 - 9]
    assert list(copies) == list(views)
    for name, view in views.items():
        np.testing.assert_array_equal(copies[name], view.numpy())
        assert copies[name].flags.c_contiguous
        assert copies[name].flags.owndata


def test_tensors_of_different_storages_are_fetched_separately():
    fetches, fetch = counted()
    one, other = torch.arange(3.0), torch.arange(4.0)
    copies = fetched({"a": one, "b": other, "c": one[1:]}, fetch)
    assert fetches == [3, 4]
    assert copies["c"].tolist() == [1.0, 2.0]


def test_networks_states_and_policies_come_from_a_gpu_in_one_transfer():
    spec = BehaviorSpec("Test", (ObservationSpec("o", (6,)),), ActionSpec(2, (3,)))
    network = ActorCritic(PolicyDesign(spec, NetworkSettings()), 1, False, np.random.default_rng(0))
    modular = FlatParameters(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)))
    for views in (network.parameters, network.acting_views, modular.parameters):
        fetches, fetch = counted()
        copies = fetched(views, fetch)
        assert len(fetches) == 1
        assert all(np.array_equal(copies[name], host_copies(views)[name]) for name in views)
