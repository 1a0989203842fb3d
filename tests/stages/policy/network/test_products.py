"""Hidden products in bfloat16 are float32's within its 8 bits, by whatever computes them; everything else is float32's."""

import numpy as np
import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network import layers
from headrace.stages.policy.network.actor import ActorNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import HiddenProducts, fast_bf16
from headrace.stages.policy.network.transfers import Inputs
from headrace.stages.trainer.sac.networks import QNetwork

IMAGE, VECTOR = ObservationSpec("image", (3, 20, 24), "uint8"), ObservationSpec("vector", (5,))


@pytest.fixture(params=["the CPU's own", "rounded here"])
def by(request, monkeypatch):
    if request.param == "rounded here":
        monkeypatch.setattr(layers, "_onednn_setting", lambda: None)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("rows", [1, 96])
def test_wide_products_are_those_of_rounded_factors(rows):
    torch.manual_seed(0)
    x, gradient, weight, bias = torch.randn(rows, 160), torch.randn(rows, 192), torch.randn(192, 160), torch.randn(192)
    out, total = torch.empty(rows, 192), torch.ones(192, 160)
    rounded = HiddenProducts(bf16=True)
    rounded.layer(bias, x, weight, out)
    rounded.add_gradient(total, gradient, x)
    found = [out, rounded.below(gradient, weight), total]
    expected = [x @ weight.t() + bias, gradient @ weight, 1.0 + gradient.t() @ x]
    for ours, exact in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, exact, rtol=0.02, atol=0.02 * float(exact.abs().mean()) + 0.1)
    torch.testing.assert_close(x @ weight.t(), expected[0] - bias, rtol=1e-5, atol=1e-4)  # nobody else's are rounded


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("towers", [(), (2,)], ids=["one tower", "two side by side"])
@pytest.mark.parametrize("graph", [True, False], ids=["with a graph", "without"])
def test_a_layer_of_towers_is_rounded_with_a_graph_and_without(towers, graph):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(*towers, 96, 160), torch.randn(*towers, 160, 192), torch.randn(*towers, 1, 192)
    weight.requires_grad_()
    with torch.set_grad_enabled(graph):
        both = [HiddenProducts(bf16).stacked(bias, x, weight) for bf16 in (False, True)]
    assert [one.requires_grad for one in both] == [graph, graph]
    exact, rounded = (one.detach() for one in both)
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert float((exact - rounded).norm()) <= 0.01 * float(exact.norm())


@pytest.mark.parametrize("shape", [(127, 160), (160, 3)])
def test_small_products_are_not_rounded(shape):
    x, weight, bias = torch.randn(64, shape[1]), torch.randn(shape), torch.randn(shape[0])
    found = []
    for bf16 in (False, True):
        out = torch.empty(64, shape[0])
        HiddenProducts(bf16).layer(bias, x, weight, out)
        found.append(out)
    assert torch.equal(*found)


def network(bf16, observation, make, **settings):
    """A network of 256 units, with the same weights in both precisions."""
    spec = BehaviorSpec("Test", (observation,), ActionSpec(2))
    sizes = NetworkSettings(hidden_units=256, num_layers=2, **settings)
    design = PolicyDesign(spec, sizes, squashed=True, bf16=bf16)
    return seeded(np.random.default_rng(1), lambda: make(design))


def outputs_and_gradients(made, *given):
    for parameter in made.parameters():
        parameter.grad = torch.zeros_like(parameter)
    out = made(*given)
    out = out[0] if isinstance(out, tuple) else out
    out.square().mean().backward()
    return [out.detach(), *(parameter.grad for parameter in made.parameters())]


def inputs_of(observation, rows=64):
    random = np.random.default_rng(2)
    if observation is VECTOR:
        return Inputs(torch.from_numpy(random.standard_normal((rows, 5), np.float32)))
    image = torch.from_numpy(random.integers(0, 256, (rows, *observation.shape), np.uint8))
    return Inputs(torch.empty(rows, 0), (image,))


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize(
    ("observation", "make", "settings"),
    [
        (VECTOR, lambda design: QNetwork(design, 1), {"activation": "relu"}),
        (VECTOR, lambda design: QNetwork(design, 1), {"activation": "swish"}),
        (IMAGE, ActorNetwork, {"vis_encode_type": "simple"}),
    ],
    ids=["relu", "swish", "image"],
)
def test_networks_give_outputs_and_gradients_near_those_of_float32(observation, make, settings):
    inputs = inputs_of(observation)
    given = (inputs, torch.linspace(-1, 1, 128).view(64, 2)) if observation is VECTOR else (inputs,)
    plain, rounded = (outputs_and_gradients(network(bf16, observation, make, **settings), *given) for bf16 in (0, 1))
    assert not all(torch.equal(*pair) for pair in zip(plain, rounded, strict=True))
    for ours, theirs in zip(rounded, plain, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm()) <= 0.03 * float(theirs.norm())


def test_parameters_have_the_same_names_types_and_first_values_in_both_precisions():
    plain, rounded = (network(bf16, IMAGE, ActorNetwork).state_dict() for bf16 in (False, True))
    assert list(plain) == list(rounded)
    assert all(torch.equal(plain[name], rounded[name]) and rounded[name].dtype == torch.float32 for name in plain)


@pytest.mark.parametrize(
    ("features", "words"),
    [("fpu amx_bf16 avx512_bf16", "AMX"), ("fpu avx512_bf16", "AVX512-bf16"), ("fpu avx2", None), ("", None)],
)
def test_what_makes_it_fast_is_read_from_the_cpu(features, words, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(features.split(), True), raising=False)
    monkeypatch.setattr(layers.Path, "read_text", lambda *_, **__: "model name : any\n")
    assert fast_bf16("cpu") == words


def test_an_older_torch_reads_it_from_the_system(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(layers.Path, "read_text", lambda *_, **__: "model name\t: any\nFeatures\t: fp asimd bf16\n")
    assert fast_bf16("cpu") == "the ARM bf16 extension"


@pytest.mark.parametrize(("capability", "words"), [((9, 0), "tensor cores"), ((7, 5), None)])
def test_of_gpus_it_is_those_from_ampere_on(capability, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert fast_bf16("cuda:0") == words
    assert fast_bf16("mps") is None
