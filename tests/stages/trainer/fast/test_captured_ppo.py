import numpy as np
import pytest
import torch
from recorded_graphs import RecordedGraphs
from tensors import assert_close

from headrace.config import NetworkSettings, PPOHyperparameters
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.fast.cuda_graphs import WARM_UP
from headrace.stages.trainer.fast.ppo import CapturedPPOUpdate
from headrace.stages.trainer.on_policy.anchor import Anchor
from headrace.stages.trainer.on_policy.rollout import Rollout
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import PPOUpdate

ACTIONS = ActionSpec(2, (3, 2), masked=True)
VECTOR, IMAGE = ObservationSpec("o", (3,)), ObservationSpec("seen", (3, 20, 20), "uint8")
BATCH, ROWS = 8, 28


def made(graphs=None, told=None, images=False, **hyper):
    """An update of the same network as any other; with graphs a captured one."""
    spec = BehaviorSpec("Test", (VECTOR, IMAGE) if images else (VECTOR,), ACTIONS)
    settings = {"batch_size": BATCH, "buffer_size": 24, "num_epoch": 2, "max_grad_norm": 0.5, **hyper}
    design = PolicyDesign(spec, NetworkSettings(hidden_units=8, num_layers=1, activation="tanh"))
    network = make_actor_critic(design, 1, False, np.random.default_rng(0), "cpu")
    hyperparameters = PPOHyperparameters(**settings)
    regularization = hyperparameters.regularization
    anchor = None if regularization is None else Anchor(network, regularization, ACTIONS)
    update = PPOUpdate(network, spec, hyperparameters, anchor=anchor)
    if graphs is not None:
        update = CapturedPPOUpdate(update, graphs, fail if told is None else told.append)
    if update._parts is not None:
        update._parts._runs = None  # norms are limited as on a GPU, not in NumPy
    return update


def fail(reason):
    raise AssertionError(reason)


def rows(seed, images=False, regularized=False):
    random = np.random.default_rng(seed)
    normal = lambda width: random.normal(size=(ROWS, width)).astype(np.float32)  # noqa: E731
    pictures = (random.integers(0, 256, (ROWS, 3, 20, 20)).astype(np.uint8),) if images else ()
    targets = {"continuous": normal(2), "penalties": np.zeros((ROWS, 5), np.float32), "old_log_probs": normal(1) - 4.0}
    targets |= {"advantages": normal(1), "returns": normal(1)}
    if regularized:
        targets["anchor"] = normal(9)
    choices = np.stack([random.integers(0, 3, ROWS), random.integers(0, 2, ROWS)], axis=1)
    return Rollout(Inputs(torch.from_numpy(normal(3)), tuple(map(torch.from_numpy, pictures))), targets, choices)


def learn(update, coefficients, first=0, images=False):
    """One update for each of the coefficients."""
    return [
        update.run(rows(seed, images, update.anchor is not None), each, np.random.default_rng(seed), 0)
        for seed, each in enumerate(coefficients, first)
    ]


FALLING = [Coefficients(1e-2 / (1 + n), 0.1 / (1 + n), 0.2 / (1 + n)) for n in range(4)]


def assert_same(one, other):
    assert_close(one.network.values, other.network.values, rtol=1e-5, atol=1e-6)
    assert one.adam.steps == other.adam.steps
    assert_close(one.adam.second_moment, other.adam.second_moment, rtol=1e-4, atol=1e-9)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "hyper",
    [{}, {"max_grad_norm": None, "ratio_per_dimension": True}, {"images": True, "regularization": {}}],
    ids=str,
)
def test_replayed_steps_learn_what_steps_without_graphs_do_with_all_that_is_scheduled(hyper):
    graphs, images = RecordedGraphs(), hyper.get("images", False)
    eager, captured = made(**hyper), made(graphs, **hyper)
    expected, found = (learn(update, FALLING, images=images) for update in (eager, captured))
    assert_same(captured, eager)
    steps = len(FALLING) * 2 * (ROWS // BATCH)
    assert (graphs.warm_ups, graphs.captures, graphs.replays) == (WARM_UP, 1, steps - WARM_UP)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-6)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["learning_rate", "beta", "epsilon"])
def test_no_scheduled_number_is_frozen_in_a_graph(name):
    """A run whose schedule continues after the capture differs from a run whose schedule stays there."""
    fixed = Coefficients(1e-2, 0.1, 0.2)
    changed = Coefficients(**{"learning_rate": 1e-2, "beta": 0.1, "epsilon": 0.2, name: 1e-3})
    ends = []
    for then in (fixed, changed):
        update = made(RecordedGraphs())
        learn(update, [fixed, then, then])
        ends.append(update)
    assert not torch.equal(ends[0].network.values, ends[1].network.values)
    eager = made()
    learn(eager, [fixed, changed, changed])
    assert_same(ends[1], eager)


@pytest.mark.lengthy
def test_an_entropy_bonus_that_ends_is_another_graph():
    graphs = RecordedGraphs()
    coefficients = [Coefficients(1e-2, beta, 0.2) for beta in (0.1, 0.1, 0.0, 0.0, 0.1)]
    eager, captured = made(), made(graphs)
    learn(eager, coefficients)
    learn(captured, coefficients)
    assert graphs.captures == 2
    assert_same(captured, eager)


def test_target_kl_ends_the_epochs_of_a_captured_update_as_of_any_other():
    coefficients = [Coefficients(0.1, 0.0, 0.2)] * 3
    eager, captured = (made(*graphs, num_epoch=5, target_kl=0.05) for graphs in ((), (RecordedGraphs(),)))
    expected, found = (learn(update, coefficients) for update in (eager, captured))
    epochs = [each["Policy/Epochs"] for each in found]
    assert epochs == [each["Policy/Epochs"] for each in expected]
    assert min(epochs) < 5
    assert_same(captured, eager)


@pytest.mark.lengthy
def test_captured_updates_resume_in_place_from_an_eager_state():
    eager, captured = made(), made(RecordedGraphs())
    for update in (eager, captured):
        learn(update, FALLING[:2])
    weights, state = eager.network.state_dict(), eager.state_dict()
    later = made(RecordedGraphs())
    learn(later, FALLING)  # its graph was captured before the state was loaded
    for update in (later, captured):
        update.network.load(weights)
        update.load_state_dict(state)
    for update in (eager, later, captured):
        learn(update, FALLING[2:], first=2)
    assert_same(later, eager)
    assert_same(captured, eager)
    assert captured.state_dict()["steps"] == eager.state_dict()["steps"] == 4 * 2 * (ROWS // BATCH)


@pytest.mark.lengthy
def test_a_loss_that_is_not_finite_undoes_replayed_steps():
    update = made(RecordedGraphs())
    learn(update, FALLING[:2])
    before, steps = update.network.values.clone(), update.adam.steps
    broken = rows(7)
    broken.block.floats[5, 0] = np.nan
    with pytest.raises(NotFiniteError, match="the policy loss of minibatch"), update.adam.undone_on_failure():
        update.run(broken, FALLING[2], np.random.default_rng(0), 0)
    assert torch.equal(update.network.values, before)
    assert update.adam.steps == steps
    eager = made()
    learn(eager, FALLING[:2])
    learn(eager, FALLING[2:], first=2)
    learn(update, FALLING[2:], first=2)
    assert_same(update, eager)


@pytest.mark.lengthy
def test_if_capturing_fails_training_is_the_same_without_graphs_and_the_reason_is_logged():
    told = []
    eager, refused = made(), made(RecordedGraphs(fails="operation not permitted\nbehind it much else"), told)
    learn(eager, FALLING)
    learn(refused, FALLING)
    assert told == ["operation not permitted"]
    assert_same(refused, eager)


@pytest.mark.lengthy
def test_a_step_that_reads_a_value_can_t_be_captured():
    class Reading(CapturedPPOUpdate):
        def losses(self, batch, coefficients):
            losses, log_ratios = super().losses(batch, coefficients)
            assert losses[0].item() < 1e9
            return losses, log_ratios

    told = []
    reading, eager = Reading(made(), RecordedGraphs(), told.append), made()
    learn(eager, FALLING)
    learn(reading, FALLING)
    assert len(told) == 1
    assert "_local_scalar_dense is not permitted" in told[0]
    assert_same(reading, eager)
