import numpy as np
import torch
from tensors import assert_close

from headrace.stages.policy.network.body import Memory

INPUTS, SIZE = 5, 6  # a memory of 6 numbers: h and c of 3 units


def memory():
    torch.manual_seed(0)
    return Memory(INPUTS, SIZE)


def by_hand(made, features, before):
    """One row: the gates of Hochreiter & Schmidhuber's cell, in torch's order."""
    w = {name.removeprefix("lstm."): p.detach().numpy() for name, p in made.named_parameters()}
    h, c = before[:3], before[3:]
    gates = w["weight_ih_l0"] @ features + w["bias_ih_l0"] + w["weight_hh_l0"] @ h + w["bias_hh_l0"]
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    entry, forget, cell, out = gates.reshape(4, 3)
    c = sigmoid(forget) * c + sigmoid(entry) * np.tanh(cell)
    h = sigmoid(out) * np.tanh(c)
    return np.concatenate([h, c])


def test_a_step_is_that_of_the_cell_written_out():
    made = memory()
    features, before = torch.randn(4, INPUTS), torch.randn(4, SIZE)
    encoding, after = made(features, before, 1)
    expected = [by_hand(made, features[row].numpy(), before[row].numpy()) for row in range(4)]
    np.testing.assert_allclose(after.detach().numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(encoding.detach().numpy(), np.array(expected)[:, :3], atol=1e-5)


def test_a_sequence_at_once_equals_its_steps_one_by_one_with_the_memory_carried():
    made = memory()
    features, memories = torch.randn(2, 7, INPUTS), torch.randn(2, SIZE)
    encoding, after = made(features.reshape(14, INPUTS), memories, 7)
    for step in range(7):
        single, memories = made(features[:, step], memories, 1)
        assert_close(encoding.view(2, 7, 3)[:, step], single)
    assert_close(after, memories)


def test_no_memory_is_a_memory_of_zeros_and_differs_from_another():
    made, features = memory(), torch.randn(6, INPUTS)
    nothing, _ = made(features, None, 3)
    assert_close(nothing, made(features, torch.zeros(2, SIZE), 3)[0])
    assert not torch.allclose(nothing, made(features, torch.ones(2, SIZE), 3)[0])


def test_sequences_do_not_run_into_one_another():
    made, features = memory(), torch.randn(6, INPUTS)
    assert_close(made(features, None, 3)[0][3:], made(features[3:], None, 3)[0])


def test_gradients_go_back_through_the_sequence_to_its_first_row_and_memory():
    made = memory()
    features, memories = torch.randn(6, INPUTS, requires_grad=True), torch.randn(2, SIZE, requires_grad=True)
    made(features, memories, 3)[0][2].sum().backward()
    assert features.grad[0].all()
    assert memories.grad[0].all()
    assert not features.grad[3:].any()
    assert not memories.grad[1].any()


def test_initial_weights_are_xavier_per_gate_and_the_forget_gate_is_open():
    torch.manual_seed(0)
    made = Memory(100, 128)
    for name, inputs in (("weight_ih_l0", 100), ("weight_hh_l0", 64)):
        bound = np.sqrt(6 / (inputs + 64))  # of a gate's own [64, inputs], not of all four together
        for gate in getattr(made.lstm, name).chunk(4):
            assert 0.98 * bound < gate.abs().max().item() <= bound
    for name in ("bias_ih_l0", "bias_hh_l0"):
        assert [set(gate.tolist()) for gate in getattr(made.lstm, name).chunk(4)] == [{0.0}, {1.0}, {0.0}, {0.0}]
