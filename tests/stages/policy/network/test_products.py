"""Wide products are the same by every provider, and in bfloat16 within its 8 bits; everything else is torch's default."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import BF16, TORCHS_OWN, PolicyDesign, ProductSettings
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.network.products import PROVIDERS, HiddenProducts, Provider, fastest, measure_fastest
from headrace.stages.trainer.sac import QNetwork

IMAGE, VECTOR = ObservationSpec("image", (3, 20, 24), "uint8"), ObservationSpec("vector", (5,))


by_each = pytest.mark.parametrize("bf16", [BF16, replace(BF16, onednn=False)], ids=["the CPU's own", "rounded here"])


@by_each
@pytest.mark.parametrize("rows", [1, 96])
def test_wide_products_are_those_of_rounded_factors(rows, bf16):
    torch.manual_seed(0)
    x, gradient, weight, bias = torch.randn(rows, 160), torch.randn(rows, 192), torch.randn(192, 160), torch.randn(192)
    out, below, of_weight = torch.empty(rows, 192), torch.empty(rows, 160), torch.empty(192, 160)
    rounded = HiddenProducts(bf16)
    rounded.layer(bias, x, weight, out)
    rounded.product(gradient, weight, below, weight)
    rounded.product(gradient.t(), x, of_weight, weight)
    expected = [x @ weight.t() + bias, gradient @ weight, gradient.t() @ x]
    for ours, exact in zip([out, below, of_weight], expected, strict=True):
        assert ours.dtype == torch.float32
        assert_close(ours, exact, rtol=0.02, atol=0.02 * float(exact.abs().mean()) + 0.1)
    assert_close(x @ weight.t(), expected[0] - bias, rtol=1e-5, atol=1e-4)  # nobody else's are rounded


@by_each
@pytest.mark.parametrize("towers", [(), (2,)], ids=["one tower", "two side by side"])
@pytest.mark.parametrize("graph", [True, False], ids=["with a graph", "without"])
def test_a_layer_of_towers_is_rounded_with_a_graph_and_without(towers, graph, bf16):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(*towers, 96, 160), torch.randn(*towers, 160, 192), torch.randn(*towers, 1, 192)
    weight.requires_grad_()
    with torch.set_grad_enabled(graph):
        both = [HiddenProducts(settings).stacked(bias, x, weight) for settings in (TORCHS_OWN, bf16)]
    assert [one.requires_grad for one in both] == [graph, graph]
    exact, rounded = (one.detach() for one in both)
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert float((exact - rounded).norm()) <= 0.01 * float(exact.norm())


@pytest.mark.parametrize("shape", [(127, 160), (160, 3)])
def test_small_products_are_not_rounded(shape):
    x, weight, bias = torch.randn(64, shape[1]), torch.randn(shape), torch.randn(shape[0])
    found = []
    for settings in (TORCHS_OWN, BF16):
        out = torch.empty(64, shape[0])
        HiddenProducts(settings).layer(bias, x, weight, out)
        found.append(out)
    assert torch.equal(*found)


def network(products, observation, make, **settings):
    """A network of 256 units, with the same weights whatever computes its products."""
    spec = BehaviorSpec("Test", (observation,), ActionSpec(2))
    sizes = NetworkSettings(hidden_units=256, num_layers=2, **settings)
    design = PolicyDesign(spec, sizes, squashed=True, products=products)
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


@by_each
@pytest.mark.parametrize(
    ("observation", "make", "settings"),
    [
        (VECTOR, lambda design: QNetwork(design, 1), {"activation": "relu"}),
        (VECTOR, lambda design: QNetwork(design, 1), {"activation": "swish"}),
        (IMAGE, ActorNetwork, {"vis_encode_type": "simple"}),
    ],
    ids=["relu", "swish", "image"],
)
def test_networks_give_outputs_and_gradients_near_those_of_float32(observation, make, settings, bf16):
    inputs = inputs_of(observation)
    given = (inputs, torch.linspace(-1, 1, 128).view(64, 2)) if observation is VECTOR else (inputs,)
    plain, rounded = (
        outputs_and_gradients(network(by, observation, make, **settings), *given) for by in (TORCHS_OWN, bf16)
    )
    assert not all(torch.equal(*pair) for pair in zip(plain, rounded, strict=True))
    for ours, theirs in zip(rounded, plain, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm()) <= 0.03 * float(theirs.norm())


def test_parameters_have_the_same_names_types_and_first_values_in_both_precisions():
    plain, rounded = (network(each, IMAGE, ActorNetwork).state_dict() for each in (TORCHS_OWN, BF16))
    assert list(plain) == list(rounded)
    assert all(torch.equal(plain[name], rounded[name]) and rounded[name].dtype == torch.float32 for name in plain)


@pytest.fixture
def unmeasured():
    fastest.cache_clear()
    yield
    fastest.cache_clear()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("towers", [(), (2,)], ids=["one tower", "two side by side"])
def test_every_provider_computes_the_products_of_a_layer(provider, towers):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(*towers, 96, 160), torch.randn(*towers, 160, 192), torch.randn(*towers, 1, 192)
    above, ours = torch.randn(*towers, 96, 192), HiddenProducts(ProductSettings(provider))
    found = [torch.empty(*towers, 96, 192), torch.empty(*towers, 96, 160), torch.empty(*towers, 160, 192)]
    with torch.no_grad():
        found[0] = ours.stacked(bias, x, weight)
        ours.product(above, weight.mT, found[1], weight)
        ours.product(x.mT, above, found[2], weight)
    for one, exact in zip(found, [x @ weight + bias, above @ weight.mT, x.mT @ above], strict=True):
        assert_close(one, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_computes_an_off_policy_layer(provider):
    torch.manual_seed(0)
    x, weight, bias, out = torch.randn(96, 160), torch.randn(192, 160), torch.randn(192), torch.empty(96, 192)
    HiddenProducts(ProductSettings(provider)).layer(bias, x, weight, out)
    assert_close(out, x @ weight.t() + bias, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "torch"])
@pytest.mark.parametrize(
    ("observation", "make", "settings"),
    [(VECTOR, lambda design: QNetwork(design, 1), {}), (IMAGE, ActorNetwork, {"vis_encode_type": "simple"})],
    ids=["vector", "image"],
)
def test_networks_have_the_same_gradients_by_autograd_with_every_provider(provider, observation, make, settings):
    inputs = inputs_of(observation)
    given = (inputs, torch.linspace(-1, 1, 128).view(64, 2)) if observation is VECTOR else (inputs,)
    both = [
        outputs_and_gradients(network(ProductSettings(each), observation, make, **settings), *given)
        for each in ("torch", provider)
    ]
    for ours, theirs in zip(*both, strict=True):
        assert float((ours - theirs).norm()) <= 1e-4 * float(theirs.norm())


def slowed(provider, calls):
    """A provider that others beat, because it multiplies over and over."""
    return provider._replace(multiply=lambda a, b, out: [provider.multiply(a, b, out=out) for _ in range(calls)])


def test_the_fastest_provider_is_found_by_measuring_and_logged(caplog):
    caplog.set_level("INFO")
    slow = {name: provider if name == "numpy" else slowed(provider, 10) for name, provider in PROVIDERS.items()}
    assert measure_fastest(slow, 64, 128, 160) == "numpy"
    (message,) = [record.message for record in caplog.records]
    assert message.startswith("Layers of 128 × 160 use NumPy. Forward and backward pass with 64 rows: torch ")


@pytest.mark.usefixtures("unmeasured")
def test_a_weights_size_is_measured_once(caplog):
    caplog.set_level("INFO")
    assert fastest(64, 128, 160) == fastest(64, 128, 160)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("fault", ["raises", "is wrong"])
def test_a_provider_that_fails_or_disagrees_is_excluded(fault):
    def multiply(a, b, out):
        if fault == "raises":
            raise RuntimeError("could not create a primitive")
        out.fill_(1.0)

    slow, faulty = slowed(PROVIDERS["torch"], 10), Provider("NumPy", multiply, PROVIDERS["numpy"].layer)
    assert measure_fastest({"torch": slow, "numpy": faulty}, 64, 128, 160) == "torch"


def test_narrow_products_and_other_dtypes_always_use_torch():
    ours = HiddenProducts(ProductSettings("numpy"))
    assert ours.provider(torch.empty(160, 64)) is PROVIDERS["torch"]
    assert ours.provider(torch.empty(160, 160, dtype=torch.float64)) is PROVIDERS["torch"]
    assert ours.provider(torch.empty(160, 160)) is PROVIDERS["numpy"]
