import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.sets import EMBEDDING, SetEncoder


def encoder(widths=(4,), own=3, spread=0.3):
    torch.manual_seed(0)
    sets = tuple(ObservationSpec(f"set {width}", (5, width)) for width in widths)
    design = PolicyDesign(BehaviorSpec("Test", sets, ActionSpec(1)), NetworkSettings())
    made = SetEncoder(sets, design, own)
    if spread is not None:  # initial weights are so small that attention would hardly show
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn(parameter.shape) * spread)
    return made


def encoding_of(made, sets, own):
    (encoding,) = made(sets, own)
    return encoding


def padded(things, rows):
    return torch.cat([things, torch.zeros(len(things), rows - things.shape[1], things.shape[2])], dim=1)


def norm(x):
    return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()


def by_hand(made, sets, own):
    """One row, thing by thing and head by head; only things that are there take part."""
    swish = lambda x: x * torch.sigmoid(x)  # noqa: E731
    embedded = []
    for embedding, things in zip(made.embeddings, sets, strict=True):
        for thing in things:
            if thing.any():
                beside = [swish(made.own(own))] if own is not None else []
                embedded.append(norm(swish(embedding.linear(torch.cat([*beside, thing])))))
    encoded = []
    for mine in embedded:
        gathered = []
        for head in range(4):
            part = slice(head * 32, head * 32 + 32)
            query = made.query(mine)[part]
            scores = torch.stack([query @ made.key(other)[part] for other in embedded]) / 128**0.5
            weights = scores.exp() / scores.exp().sum()
            gathered.append(sum(w * made.value(other)[part] for w, other in zip(weights, embedded, strict=True)))
        encoded.append(norm(mine + made.out(torch.cat(gathered))))
    return sum(encoded) / len(encoded)


@pytest.mark.parametrize("own", [3, 0])
def test_the_encoding_is_that_of_attention_written_out(own):
    made = encoder((4, 2), own)
    sets = padded(torch.randn(2, 3, 4), 5), padded(torch.randn(2, 2, 2), 3)
    known = torch.randn(2, own) if own else None
    encoding = encoding_of(made, sets, known)
    for row in range(2):
        expected = by_hand(made, [each[row] for each in sets], known[row] if own else None)
        assert_close(encoding[row], expected, rtol=1e-4, atol=1e-5)


def test_more_padding_changes_nothing():
    made, things, own = encoder(), torch.randn(3, 2, 4), torch.randn(3, 3)
    for rows in (3, 9):
        assert_close(encoding_of(made, [padded(things, rows)], own), encoding_of(made, [things], own))


def test_nothing_flows_from_padding_to_the_encoding():
    made = encoder()
    things = padded(torch.randn(3, 2, 4), 6).requires_grad_()
    encoding_of(made, [things], torch.randn(3, 3)).square().sum().backward()
    assert things.grad[:, :2].all()
    assert not things.grad[:, 2:].any()


def test_the_order_of_things_does_not_matter():
    made, things, own = encoder(), torch.randn(3, 5, 4), torch.randn(3, 3)
    things[:, 1] = 0.0
    assert_close(encoding_of(made, [things[:, torch.tensor([3, 1, 4, 0, 2])]], own), encoding_of(made, [things], own))


def test_rows_do_not_influence_one_another():
    made, things, own = encoder(), torch.randn(3, 5, 4), torch.randn(3, 3)
    assert_close(encoding_of(made, [things[1:2]], own[1:2]), encoding_of(made, [things], own)[1:2])


@pytest.mark.parametrize("own", [3, 0])
def test_no_things_at_all_give_zeros_and_finite_gradients(own):
    made = encoder(own=own)
    things = padded(torch.randn(2, 2, 4), 4)
    things[1] = 0.0
    encoding = encoding_of(made, [things], torch.randn(2, own) if own else None)
    assert encoding[0].any()
    assert not encoding[1].any()
    encoding.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in made.parameters())


def test_a_thing_of_small_numbers_is_there_all_the_same():
    # ML-Agents takes a thing for padding if the sum of its squares is below 0.01.
    made, own = encoder(), torch.randn(1, 3)
    things = padded(torch.full((1, 1, 4), 1e-3), 3)
    assert encoding_of(made, [things], own).any()


def test_the_agent_s_own_vector_changes_the_encoding():
    made, things = encoder(), torch.randn(1, 5, 4)
    assert not torch.allclose(
        encoding_of(made, [things], torch.zeros(1, 3)), encoding_of(made, [things], torch.ones(1, 3))
    )


def test_whole_numbers_are_taken_and_only_read():
    made, things, own = encoder(), torch.randint(0, 9, (2, 3, 4)), torch.randn(2, 3)
    before = things.clone()
    assert_close(encoding_of(made, [things], own), encoding_of(made, [things.float()], own))
    assert torch.equal(things, before)


def test_a_set_encoder_has_a_second_derivative():
    made = encoder()
    things = torch.randn(2, 3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(
        encoding_of(made, [things], torch.randn(2, 3)).square().sum(), things, create_graph=True
    )
    slope.square().sum().backward()
    assert made.query.weight.grad.any()


def test_initial_weights_have_the_spread_that_ml_agents_gives_them():
    torch.manual_seed(0)
    made = encoder((40,), 100, spread=None)
    for layer in (made.own, made.embeddings[0].linear, made.query, made.key, made.value, made.out):
        assert layer.weight.std().item() == pytest.approx((0.125 / EMBEDDING) ** 0.5, rel=0.05)
        assert not layer.bias.any()
