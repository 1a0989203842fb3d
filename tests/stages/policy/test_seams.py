"""A new image encoder or kind of observation is one entry in its table: it is validated, trains, acts and is exported."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from onnx_samples import exported, inputs_for, live_policy, run, seen_by
from trainer_samples import CONTINUOUS, IMAGE, VECTOR, demonstrations, experience, flat_weights, trainer_of

from headrace.config import NetworkSettings, ObservationSettings
from headrace.config.network_settings import IMAGE_ENCODERS, ImageEncoder
from headrace.config.observation_kinds import OBSERVATION_KINDS, ObservationKind
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.environments.spaces.observations import observation_parts
from headrace.stages.environments.spaces.own_space import own_space
from headrace.stages.errors import StageError
from headrace.stages.policy.design import design_of
from headrace.stages.policy.observations import ObservationLayout

CLIP = ObservationSpec("clip", (2, 3, 6, 6), "uint8")


@pytest.fixture
def thin(monkeypatch):
    entry = ImageEncoder("seam_entries:thin", 3, activation="torch.nn:Tanh")
    monkeypatch.setitem(IMAGE_ENCODERS, "thin", entry)


@pytest.fixture
def clips(monkeypatch):
    entry = ObservationKind(
        ranks=(4,),
        description="a clip (rank 4)",
        meaning="pictures that follow each other",
        box_ranks=(4,),
        encoder="seam_entries:ClipEncoder",
    )
    monkeypatch.setitem(OBSERVATION_KINDS, "clip", entry)


def trains_acts_and_is_exported(kind, spec, tmp_path, **network):
    demo = {"demo_path": str(demonstrations(tmp_path / "expert.stream", spec))}
    small = {"network_settings": {"hidden_units": 8, "num_layers": 1, **network}}
    signals = {"extrinsic": {}, "curiosity": small, "rnd": small, "gail": {**demo, **small}}
    trainer = trainer_of(kind, spec, network_settings={"normalize": True, **network}, reward_signals=signals)
    design = design_of(spec, trainer.context.settings)
    before = flat_weights(trainer)
    for seed in range(1 if kind == "sac" else 2):
        trainer.add(experience(spec, [16, 12, 8], seed, squashed=design.squashed))
        while trainer.ready():
            trainer.learn()
    after = flat_weights(trainer)
    assert np.isfinite(after).all()
    assert not np.array_equal(before, after)
    update = trainer.policy()
    seen = seen_by(design, 5)
    acted = live_policy(design, update).act(seen, None, np.random.default_rng(0), deterministic=True)
    played = run(exported(design, update), inputs_for(design, seen))["deterministic_continuous_actions"]
    np.testing.assert_allclose(played, acted.actions.continuous, atol=1e-5)


@pytest.mark.lengthy
def test_an_image_encoder_is_one_entry(thin, tmp_path):
    spec = BehaviorSpec("Test", (VECTOR, IMAGE), CONTINUOUS)
    trains_acts_and_is_exported("ppo", spec, tmp_path, vis_encode_type="thin")


def test_an_image_encoder_is_known_to_the_settings_as_long_as_it_is_in_the_table(thin, monkeypatch):
    assert NetworkSettings.model_validate({"vis_encode_type": "thin"}).vis_encode_type == "thin"
    monkeypatch.delitem(IMAGE_ENCODERS, "thin")
    with pytest.raises(ValueError, match="thin"):
        NetworkSettings.model_validate({"vis_encode_type": "thin"})


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_a_kind_of_observation_is_one_entry(kind, clips, tmp_path):
    spec = BehaviorSpec("Test", (CLIP, VECTOR, IMAGE, ObservationSpec("things", (4, 3))), CONTINUOUS)
    assert [one.kind for one in spec.observations] == ["clip", "vector", "image", "set"]
    trains_acts_and_is_exported(kind, spec, tmp_path)


def test_an_environments_space_is_treated_as_a_kind_of_the_table_if_configured(clips):
    space = gymnasium.spaces.Box(0, 255, CLIP.shape, np.uint8)
    (part,) = observation_parts(
        own_space(space), "Env", {"observation": ObservationSettings.model_validate({"kind": "clip"})}
    )
    assert (part.spec.shape, part.spec.kind) == (CLIP.shape, "clip")
    batch = np.stack([space.sample(), space.sample()])
    np.testing.assert_array_equal(part.extract(batch), batch)


def test_a_rank_of_no_kind_is_refused_with_those_that_there_are():
    spec = BehaviorSpec("Test", (CLIP,), CONTINUOUS)
    expected = r"expected a vector \(rank 1\), a set of elements \(rank 2\) or an image \(rank 3\); reshape it"
    with pytest.raises(StageError, match=expected):
        ObservationLayout(spec)


def test_no_two_kinds_share_a_rank():
    ranks = [rank for kind in OBSERVATION_KINDS.values() for rank in kind.ranks]
    assert len(set(ranks)) == len(ranks)
