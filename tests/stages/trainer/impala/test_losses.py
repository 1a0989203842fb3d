import pytest
import torch
from tensors import assert_close
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from headrace.stages.trainer.impala import log_probs_and_entropy
from headrace.stages.trainer.on_policy.anchor import described, divergence

R, C, BRANCHES = 7, 2, [3, 2]


def heads_and_actions(continuous, branches):
    torch.manual_seed(0)
    log_sigma = torch.randn(C) if continuous else None
    size = C if continuous else 0
    heads = torch.randn(R, size + sum(branches))
    return heads, log_sigma, torch.randn(R, size), tuple(torch.randint(0, n, (R, 1)) for n in branches)


def distributions(heads, log_sigma, branches):
    """torch's own."""
    found, logits = [], heads
    if log_sigma is not None:
        found.append(Independent(Normal(heads[:, :C], log_sigma.exp()), 1))
        logits = heads[:, C:]
    return [*found, *(Categorical(logits=part) for part in torch.split(logits, branches, dim=1))]


@pytest.mark.parametrize(("continuous", "branches"), [(True, []), (False, BRANCHES), (True, BRANCHES)])
def test_log_probabilities_and_entropies_are_those_of_the_joint_distribution(continuous, branches):
    heads, log_sigma, actions, choices = heads_and_actions(continuous, branches)
    log_probs, entropy = log_probs_and_entropy(heads, log_sigma, actions, choices, branches)
    every = [*([actions] if continuous else []), *(chosen.squeeze(1) for chosen in choices)]
    theirs = distributions(heads, log_sigma, branches)
    assert_close(log_probs, sum(one.log_prob(x) for one, x in zip(theirs, every, strict=True)))
    assert_close(entropy, sum(one.entropy() for one in theirs).mean())


def from_acting_policy(heads, log_sigma, recorded, branches):
    size = 0 if log_sigma is None else C
    return divergence(described(recorded, None, size, branches), described(heads, log_sigma, size, branches), size)


@pytest.mark.parametrize(("continuous", "branches"), [(True, []), (False, BRANCHES), (True, BRANCHES)])
def test_the_divergence_is_from_the_policy_that_acted_to_the_one_that_learns(continuous, branches):
    heads, log_sigma, _, _ = heads_and_actions(continuous, branches)
    acted = torch.randn(R, heads.shape[1])
    spread = torch.randn(R, C) if continuous else torch.empty(R, 0)
    size = C if continuous else 0
    recorded = torch.cat([acted[:, :size], spread, acted[:, size:]], dim=1)
    mu = distributions(acted, None, branches) if not continuous else distributions(acted, spread, branches)
    pi = distributions(heads, log_sigma, branches)
    parts = [kl_divergence(one, other) for one, other in zip(mu, pi, strict=True)]
    expected = torch.stack(parts).sum(dim=0)
    assert_close(from_acting_policy(heads, log_sigma, recorded, branches), expected)


def test_a_policy_does_not_diverge_from_itself():
    heads, log_sigma, _, _ = heads_and_actions(True, BRANCHES)
    recorded = torch.cat([heads[:, :C], log_sigma.expand(R, C), heads[:, C:]], dim=1)
    assert_close(from_acting_policy(heads, log_sigma, recorded, BRANCHES), torch.zeros(R))
