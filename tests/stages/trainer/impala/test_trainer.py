"""The actor–learner alone: updates by hand, replay, cloning, pre-training of the critic, checkpoints."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence
from trainer_samples import (
    CONTINUOUS,
    DISCRETE,
    HYBRID,
    VECTOR,
    Reported,
    all_weights,
    experience,
    flat_weights,
    played,
    trainer_of,
)

from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.impala import Limits, vtrace

SPEC = BehaviorSpec("Test", (VECTOR,), DISCRETE)
REPLAY = {"batch_size_from_replay": 3, "replay_capacity": 10}
MEMORY = {"memory": {"memory_size": 4, "sequence_length": 4}}


def impala(spec=SPEC, statistics=None, hyperparameters=None, **settings):
    return trainer_of("impala", spec, statistics=statistics, hyperparameters=hyperparameters or {}, **settings)


def learn_once(trainer, batch):
    trainer.add(batch)
    assert trainer.ready()
    return trainer.learn()


class ByHand:
    """The losses of a first update from a batch of one-signal experience, by torch's own distributions."""

    def __init__(self, batch, seed=0, gamma=0.99, limits=None):
        network = impala()._network  # the same seed, so the same weights
        heads, values = network(Inputs(torch.from_numpy(batch.rows["obs_0"])))
        final = network.evaluate(Inputs(torch.from_numpy(batch.trajectories["next_obs_0"])))[0]
        branches = [torch.distributions.Categorical(logits=part) for part in torch.split(heads, [3, 2], dim=1)]
        chosen = torch.from_numpy(batch.rows["discrete_actions"]).T
        log_probs = sum(one.log_prob(choice) for one, choice in zip(branches, chosen, strict=True))
        self.log_ratios = log_probs.detach().numpy() - batch.rows["log_probs"].sum(1)
        self.targets, self.advantages = vtrace(
            self.log_ratios.astype(np.float64),
            batch.rewards[:, None].astype(np.float64),
            values.detach().numpy().astype(np.float64),
            final.detach().numpy().astype(np.float64),
            batch.lengths,
            batch.terminated[:, None],
            np.array([gamma]),
            limits or Limits(),
        )
        self.log_probs = log_probs.detach().numpy()
        self.values = values.detach().numpy()
        self.entropy = float(sum(one.entropy() for one in branches).sum().detach())


def test_an_update_has_the_losses_of_the_paper_summed_over_all_rows():
    batch, reported = experience(SPEC, [4] * 8), Reported()
    assert learn_once(impala(statistics=reported), batch) == 32
    expected = ByHand(batch)
    advantages = expected.advantages[:, 0]
    assert reported.last("loss/policy_gradient") == pytest.approx(-(expected.log_probs * advantages).sum(), rel=1e-4)
    errors = expected.values - expected.targets
    assert reported.last("loss/baseline") == pytest.approx(0.5 * (errors**2).sum(), rel=1e-4)
    assert reported.last("loss/entropy") == pytest.approx(-expected.entropy, rel=1e-4)
    total = reported.last("loss/policy_gradient") + 0.5 * reported.last("loss/baseline")
    assert reported.last("loss/total_loss") == pytest.approx(total + 0.01 * reported.last("loss/entropy"), rel=1e-4)
    ratios = np.exp(expected.log_ratios)
    assert reported.last("Policy/Importance Ratio") == pytest.approx(np.minimum(ratios, 1).mean(), rel=1e-4)
    assert reported.last("Policy/Clipped Ratios") == pytest.approx((ratios > 1).mean())
    assert reported.last("Policy/Ratio Max") == pytest.approx(ratios.max(), rel=1e-4)
    explained = 1 - (expected.targets - expected.values).var() / expected.targets.var()
    assert reported.last("Policy/Extrinsic Explained Variance") == pytest.approx(explained, rel=1e-4)


def test_mean_losses_are_the_sums_over_the_number_of_rows():
    batch, summed, averaged = experience(SPEC, [4] * 8), Reported(), Reported()
    learn_once(impala(statistics=summed), batch)
    learn_once(impala(statistics=averaged, hyperparameters={"loss_reduction": "mean"}), batch)
    for name in ("policy_gradient", "baseline", "entropy", "total_loss"):
        assert averaged.last(f"loss/{name}") == pytest.approx(summed.last(f"loss/{name}") / 32, rel=1e-4)


def test_advantages_are_clipped_if_configured():
    batch, reported = experience(SPEC, [4] * 8), Reported()
    learn_once(impala(statistics=reported, hyperparameters={"clip_advantage": 0.25}), batch)
    expected = ByHand(batch)
    clipped = np.clip(expected.advantages[:, 0], -0.25, 0.25)
    assert reported.last("loss/policy_gradient") == pytest.approx(-(expected.log_probs * clipped).sum(), rel=1e-4)


def test_clip_advantage_true_makes_negative_advantages_zero():
    batch, plain = experience(SPEC, [4] * 8), Reported()
    expected = ByHand(batch)
    advantages = expected.advantages[:, 0]
    assert (advantages < 0).any() and (advantages > 0).any()
    for clip, used in ((True, np.maximum(advantages, 0)), (False, advantages), (None, advantages)):
        learn_once(impala(statistics=plain, hyperparameters={"clip_advantage": clip}), batch)
        assert plain.last("loss/policy_gradient") == pytest.approx(-(expected.log_probs * used).sum(), rel=1e-4)


def test_rewards_are_scaled_before_they_are_clipped():
    batch = experience(SPEC, [4] * 8)
    small = batch.replace(rewards=np.clip(batch.rewards * np.float32(0.5), -1, 1))
    clipped, by_hand = Reported(), Reported()
    scaled = {"reward_signals": {"extrinsic": {"strength": 0.5}}}
    learn_once(impala(statistics=clipped, hyperparameters={"reward_clipping": "abs_one"}, **scaled), batch)
    learn_once(impala(statistics=by_hand), small)
    assert clipped.last("loss/total_loss") == pytest.approx(by_hand.last("loss/total_loss"), rel=1e-5)


def test_rows_of_the_current_policy_have_ratios_of_1():
    reported = Reported()
    trainer = impala(statistics=reported)
    learn_once(trainer, played(trainer, SPEC, 32))
    assert reported.last("Policy/Importance Ratio") == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("network", [{}, MEMORY])
def test_trajectories_of_any_length_are_cut_into_unrolls(network):
    # With 4 rows in an unroll: 3 | 1 4 4 | 1, then 3 4 | 1 3 | 1 and so on.
    memory_size = 4 if network else 0
    whole, cut = (impala(network_settings=network, hyperparameters=REPLAY) for _ in range(2))
    for seed, lengths in enumerate(([3, 9, 8], [1, 13, 6], [20])):
        batch = experience(SPEC, lengths, seed, memory_size)
        assert learn_once(whole, batch) == 20
        for piece in cut_by_hand(batch, 4):
            cut.add(piece)
        cut.learn()
    np.testing.assert_array_equal(all_weights(whole), all_weights(cut))


def cut_by_hand(batch, length):
    """One batch for each piece of a trajectory that lies within `length` rows of the batch."""
    first = 0
    for k, size in enumerate(batch.lengths.tolist()):
        at = first
        while at < first + size:
            until = min(first + size, (at // length + 1) * length)
            rows = {name: column[at:until] for name, column in batch.rows.items()}
            end = {name: column[k : k + 1].copy() for name, column in batch.trajectories.items()}
            end["lengths"][:] = end["credits"][:] = until - at
            if until < first + size:
                end["terminated"][:] = end["truncated"][:] = False
                end["next_obs_0"][:] = batch.rows["obs_0"][until]
            if at > first:
                end["previous_discrete_actions"][:] = batch.rows["discrete_actions"][at - 1]
            yield type(batch)(batch.behavior_id, 0, rows, end)
            at = until
        first += size


def test_replayed_unrolls_join_fresh_ones_and_are_not_counted_as_steps():
    reported = Reported()
    trainer = impala(statistics=reported, hyperparameters=REPLAY)
    assert trainer.rows_per_update == 20
    for seed in range(3):
        assert learn_once(trainer, experience(SPEC, [10, 10], seed)) == 20
    assert trainer.step == 60
    assert reported.values["Policy/Replayed Share"] == [0.0, pytest.approx(3 / 8), pytest.approx(3 / 8)]


def test_values_are_cloned_towards_the_critics_values_of_the_fresh_unroll():
    reported, batch = Reported(), experience(SPEC, [4] * 5)
    trainer = impala(statistics=reported, hyperparameters={**REPLAY, "replay_capacity": 3, "replay_sampling": "fifo"})
    network, rows = trainer._network, torch.from_numpy(batch.rows["obs_0"][8:])
    before = network.evaluate(Inputs(rows))[0].detach()
    learn_once(trainer, batch)
    after = network.evaluate(Inputs(rows))[0].detach()
    learn_once(trainer, experience(SPEC, [4] * 5, seed=1))  # replays the last three unrolls, all that are kept
    assert reported.last("loss/value_cloning") == pytest.approx(float((after - before).square().sum()), rel=1e-4)


@pytest.mark.parametrize("actions", [CONTINUOUS, DISCRETE, HYBRID])
def test_policies_are_cloned_towards_the_one_that_acted(actions):
    spec, reported = BehaviorSpec("Test", (VECTOR,), actions), Reported()
    trainer = impala(spec, reported, {**REPLAY, "replay_capacity": 5, "batch_size_from_replay": 5, "batch_size": 10})
    batch, network = played(trainer, spec, 20), trainer._network
    learn_once(trainer, batch)
    heads = network.heads(Inputs(torch.from_numpy(batch.rows["obs_0"]))).detach()
    expected, log_sigma = 0.0, None if network.log_sigma is None else network.log_sigma.detach()
    of_old, of_new = torch.from_numpy(batch.rows["action_heads"]), heads
    if log_sigma is not None:
        c = actions.continuous_size
        old, new = Normal(of_old[:, :c], of_old[:, c : 2 * c].exp()), Normal(of_new[:, :c], log_sigma.exp())
        expected += float(kl_divergence(old, new).sum())
        of_old, of_new = of_old[:, 2 * c :], of_new[:, c:]
    branches = list(actions.discrete_branches)
    for theirs, ours in zip(torch.split(of_old, branches, 1), torch.split(of_new, branches, 1), strict=True):
        expected += float(kl_divergence(Categorical(logits=theirs), Categorical(logits=ours)).sum())
    learn_once(trainer, experience(spec, [4] * 5, seed=1))
    assert reported.values["loss/policy_cloning"] == [0.0, pytest.approx(expected, rel=1e-3)]


@pytest.mark.parametrize("settings", [{}, {"network_settings": MEMORY}, {"hyperparameters": {"shared_critic": True}}])
def test_the_policy_does_not_change_while_the_critic_is_pretrained(settings):
    reported = Reported()
    hyperparameters = {"critic_pretrain_steps": 64, **settings.pop("hyperparameters", {})}
    trainer = impala(statistics=reported, hyperparameters=hyperparameters, **settings)
    memory_size, before, critic = 4 if settings else 0, flat_weights(trainer), all_weights(trainer)
    for seed in range(2):
        learn_once(trainer, experience(SPEC, [8] * 4, seed, memory_size))
    np.testing.assert_array_equal(flat_weights(trainer), before)
    assert not np.array_equal(all_weights(trainer), critic)
    assert not any(name.startswith("loss/") for name in reported.values)
    assert len(reported.values["critic_pretrain/baseline_loss"]) == 2
    learn_once(trainer, experience(SPEC, [8] * 4, 2, memory_size))
    assert not np.array_equal(flat_weights(trainer), before)
    assert len(reported.values["critic_pretrain/baseline_loss"]) == 2


@pytest.mark.parametrize(
    ("spec", "network"), [(SPEC, {}), (BehaviorSpec("Test", (VECTOR,), HYBRID), MEMORY)], ids=["plain", "memory"]
)
def test_a_resumed_trainer_continues_bit_for_bit_with_its_replay(spec, network, tmp_path):
    memory_size = 4 if network else 0
    first, second = (impala(spec, hyperparameters=REPLAY, network_settings=network) for _ in range(2))
    for seed in range(3):
        learn_once(first, experience(spec, [7, 6, 7], seed, memory_size))
    first.add(experience(spec, [5, 6], 3, memory_size))
    second.load_state_dict(first.state_dict())
    first.save_bulk(tmp_path)
    assert second.load_bulk(tmp_path) is None
    for trainer in (first, second):
        for seed in range(4, 7):
            learn_once(trainer, experience(spec, [9, 11], seed, memory_size))
    np.testing.assert_array_equal(all_weights(first), all_weights(second))


def test_a_loss_that_is_not_finite_is_named_and_undone():
    trainer = impala(hyperparameters=REPLAY)
    learn_once(trainer, experience(SPEC, [4] * 5))
    before = all_weights(trainer)
    batch = experience(SPEC, [4] * 5, 1)
    trainer.add(batch.replace(rewards=np.full(20, 3e38, np.float32)))
    with pytest.raises(
        Exception, match="update at step 40: the policy_gradient of minibatch 1 of 1 is -?(inf|nan); the weights"
    ):
        trainer.learn()
    np.testing.assert_array_equal(all_weights(trainer), before)
    assert trainer.ready()
