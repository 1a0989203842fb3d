from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network import layers
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.flat_parameters import FlatParameters
from headrace.stages.policy.network.layers import Lane, fetched, gathered, host_copies, to_device


def test_on_a_cpu_a_tensor_is_handed_on_as_it_is():
    tensor = torch.arange(6.0)
    assert to_device(tensor, "cpu") is tensor
    assert gathered(tensor, torch.tensor([4, 1]), "cpu").tolist() == [4.0, 1.0]


class RecordedCuda:
    """Stands for `torch.cuda`: notes what is asked of streams, in order; tensors stay on the CPU."""

    def __init__(self, monkeypatch):
        self.calls = []
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: self.calls.append(f"kept for {stream}"))
        self.current_stream = lambda device: SimpleNamespace(
            wait_stream=lambda other: self.calls.append(f"the present stream waits for {other}"),
        )

    def Stream(self, device):
        return "the lane"

    def stream(self, stream):
        calls = self.calls

        class Within:
            def __enter__(self):
                calls.append(f"on {stream}")

            def __exit__(self, *_):
                calls.append(f"off {stream}")

        return Within()


def test_what_is_sent_is_copied_on_a_stream_of_its_own_and_awaited_before_it_is_used(monkeypatch):
    cuda = RecordedCuda(monkeypatch)
    sent = Lane(torch.device("cpu"), cuda).send(torch.arange(3.0))
    assert sent.tolist() == [0.0, 1.0, 2.0]
    *before, kept = cuda.calls
    assert before == ["on the lane", "off the lane", "the present stream waits for the lane"]
    assert kept.startswith("kept for ")


@pytest.fixture
def gpu(monkeypatch):
    """Whatever is sent to the GPU, which is not there: it stays here."""
    sent = []

    def send(pinned):
        sent.append(pinned)
        return pinned

    monkeypatch.setattr(layers, "lane_to", lambda device: SimpleNamespace(send=send))
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    plain = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **rest: plain(*shape, **rest))
    return sent


def test_a_tensor_may_be_changed_as_soon_as_it_was_sent_to_a_gpu(gpu):
    tensor = torch.arange(3.0)
    there = to_device(tensor, "cuda:0")
    tensor.zero_()
    assert there.tolist() == [0.0, 1.0, 2.0]
    assert len(gpu) == 1


def test_rows_are_gathered_where_the_gpu_can_fetch_them(gpu):
    pictures = torch.arange(24, dtype=torch.uint8).view(4, 2, 3)
    there = gathered(pictures, torch.tensor([3, 0]), "cuda")
    assert there is gpu[0]
    assert torch.equal(there, pictures[[3, 0]])


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


def test_what_lies_apart_is_fetched_apart():
    fetches, fetch = counted()
    one, other = torch.arange(3.0), torch.arange(4.0)
    copies = fetched({"a": one, "b": other, "c": one[1:]}, fetch)
    assert fetches == [3, 4]
    assert copies["c"].tolist() == [1.0, 2.0]


def test_networks_states_and_policies_come_from_a_gpu_in_one_transfer():
    spec = BehaviorSpec("Test", (ObservationSpec("o", (6,)),), ActionSpec(2, (3,)))
    network = ActorCritic(PolicyDesign(spec, NetworkSettings()), 1, False, np.random.default_rng(0))
    modular = FlatParameters(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)))
    for views in (network.parameters, network._acting_views(network.parameters), modular.parameters):
        fetches, fetch = counted()
        copies = fetched(views, fetch)
        assert len(fetches) == 1
        assert all(np.array_equal(copies[name], host_copies(views)[name]) for name in views)
