"""What holds for any old file: sections keep what they had, and nothing ends in a traceback."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.config import ConfigError, RunConfig, load_config
from headrace.config.errors import Mistake
from headrace.config.legacy.flat_file import ALL
from headrace.config.load import convert

COUNTS, SHARES = st.integers(1, 90), st.floats(0.01, 1, allow_nan=False)
SIGNALS = st.fixed_dictionaries(
    {},
    optional={
        "extrinsic": st.fixed_dictionaries({"strength": SHARES, "gamma": SHARES}),
        "curiosity": st.fixed_dictionaries({"strength": SHARES, "gamma": SHARES, "encoding_size": COUNTS}),
        "gail": st.fixed_dictionaries(
            {"strength": SHARES, "gamma": SHARES, "demo_path": st.just("d")}, optional={"use_vail": st.booleans()}
        ),
    },
).filter(bool)
SELF_PLAY = st.fixed_dictionaries(
    {},
    optional={
        "window": COUNTS,
        "play_against_current_self_ratio": SHARES,
        "save_steps": COUNTS,
        "swap_steps": COUNTS,
        "team_change": COUNTS,
        "initial_elo": COUNTS,
    },
)
CLONING = st.fixed_dictionaries(
    {"demo_path": st.just("d"), "steps": COUNTS, "strength": SHARES},
    optional={"batch_size": COUNTS, "num_epoch": COUNTS, "samples_per_update": COUNTS},
)
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "trainer": st.sampled_from(["ppo", "sac", "offline_bc", "online_bc"]),
    "demo_path": st.just("d"),
    "brain_to_imitate": st.just("Teacher"),
    "batches_per_epoch": COUNTS,
    "batch_size": COUNTS,
    "buffer_size": st.integers(100, 900),
    "learning_rate": SHARES,
    "learning_rate_schedule": st.sampled_from(["linear", "constant"]),
    "beta": SHARES,
    "lambd": SHARES,
    "num_epoch": COUNTS,
    "tau": SHARES,
    "train_interval": COUNTS,
    "num_update": COUNTS,
    "hidden_units": COUNTS,
    "normalize": st.booleans(),
    "use_recurrent": st.booleans(),
    "sequence_length": st.integers(1, 60),
    "memory_size": st.sampled_from([16, 24]),
    "max_steps": COUNTS,
    "time_horizon": COUNTS,
    "keep_checkpoints": COUNTS,
    "reward_signals": SIGNALS,
    "self_play": SELF_PLAY,
    "pretraining": CLONING,
}
SECTIONS = st.fixed_dictionaries({}, optional=KEYS)
NEEDED = ("trainer", "demo_path", "brain_to_imitate", "batch_size")
DEFAULTS = st.fixed_dictionaries(
    {key: KEYS[key] for key in NEEDED}, optional={key: value for key, value in KEYS.items() if key not in NEEDED}
)


def load(data: dict[str, Any]) -> RunConfig:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.yaml"
        path.write_text(json.dumps(data), encoding="utf-8")  # every JSON text is a YAML text
        return load_config(path)


@pytest.mark.lengthy
@examples(25)
@given(DEFAULTS, st.lists(SECTIONS, min_size=1, max_size=2))
def test_a_section_over_a_default_is_what_it_would_be_written_out(
    default: dict[str, Any], sections: list[dict[str, Any]]
):
    named = {"Teacher": {"trainer": "ppo"}, **{f"S{n}": section for n, section in enumerate(sections)}}
    together = load({"default": default, **named})
    written_out = load({"Alone": default, **{name: {**default, **section} for name, section in named.items()}})
    for name in named:
        assert together.behaviors[name] == written_out.behaviors[name]
    assert together.default_settings == written_out.behaviors["Alone"]


WORDS = st.sampled_from([
    *sorted(ALL),
    "default", "behaviors", "default_settings", "Ball", "ppo", "sac", "offline_bc", "extrinsic", "gail", "curiosity",
    "strength", "encoding_size", "samples_per_update", "reward_signal_num_update", "play_against_current_self_ratio",
    "measure", "thresholds", "min_lesson_length", "signal_smoothing", "parameters", "parameter_randomization",
    "resampling-interval", "sampler-type", "uniform", "min_value", "environment_parameters", "Lesson0", "value",
    "completion_criteria", "checkpoint_settings", "load_model", "save_freq", "lesson", "cpu", "trainer_type", "name",
])  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=14,
)
FILES = st.dictionaries(WORDS, st.dictionaries(WORDS, ANYTHING, max_size=5) | ANYTHING, min_size=1, max_size=4)


@pytest.mark.lengthy
@examples(30)
@given(FILES)
def test_any_old_file_is_converted_or_its_mistakes_are_reported(data: dict[str, Any]):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.yaml"
        path.write_text(json.dumps(data), encoding="utf-8")
        mistakes: tuple[Mistake, ...] = ()
        try:
            text = convert(path).text
        except ConfigError as error:
            text, mistakes = "", error.mistakes
        assert all(each.message and each.file for each in mistakes)
        if not mistakes:
            path.write_text(text, encoding="utf-8")
            assert convert(path).text == text
