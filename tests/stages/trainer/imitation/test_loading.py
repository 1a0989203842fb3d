"""What a `demo_path` may be, and what is refused before training starts."""

from dataclasses import replace

import numpy as np
import pytest
from imitation_spec import SPEC

from headrace.pipeline.policies.demo_files import write_demos
from headrace.queues.errors import StreamError
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.loading import load_demonstrations


def test_a_file_is_found_next_to_the_yaml_first_and_then_in_the_working_directory(
    record, expert, tmp_path, monkeypatch
):
    beside = tmp_path / "yaml"
    record([expert([2])], "demo.stream")
    record([expert([5])], "yaml/demo.stream")
    record([expert([3])], "other.stream")
    monkeypatch.chdir(tmp_path)
    assert len(load_demonstrations("demo.stream", SPEC, beside)) == 5
    assert len(load_demonstrations("other.stream", SPEC, beside)) == 3
    assert len(load_demonstrations("demo.stream", SPEC)) == 2
    assert len(load_demonstrations(str(tmp_path / "other.stream"), SPEC, beside)) == 3


def test_a_demo_path_may_be_a_folder_or_a_pattern(record, expert, tmp_path):
    record([expert([2], seed=1)], "demos/a1.stream")
    record([expert([3], seed=2)], "demos/a2.stream")
    record([expert([4], seed=3)], "demos/b.stream")
    (tmp_path / "demos" / "notes.txt").write_text("of the expert")
    assert load_demonstrations("demos", SPEC, tmp_path).lengths.tolist() == [2, 3, 4]
    assert load_demonstrations("demos/a*", SPEC, tmp_path).lengths.tolist() == [2, 3]
    assert load_demonstrations("demos/*", SPEC, tmp_path).lengths.tolist() == [2, 3, 4]


def test_demonstrations_of_several_files_are_joined_in_order(record, expert, tmp_path):
    first, second = expert([2], seed=1), expert([3], seed=2)
    record([first], "demos/a.stream")
    record([second], "demos/b.stream")
    both = load_demonstrations("demos", SPEC, tmp_path)
    for column, found in (("obs_0", both.observations[0]), ("rewards", both.rewards)):
        np.testing.assert_array_equal(found, np.concatenate([first.rows[column], second.rows[column]]))
    np.testing.assert_array_equal(both.final_observations[0][1], second.trajectories["next_obs_0"][0] * 0)
    assert both.starts_episode.all()


def test_a_run_recorded_at_both_edges_counts_once(record, expert, tmp_path):
    record([expert([2])], "demos/at_trainer.stream", edge="trainer")
    record([expert([2])], "demos/at_processor.stream", edge="agent_processor")
    record([expert([3])], "demos/other_run.stream", edge="agent_processor", run_id="other")
    assert load_demonstrations("demos", SPEC, tmp_path).lengths.tolist() == [2, 3]


def test_a_script_beside_a_learner_is_found_whichever_edges_were_recorded(record, expert, tmp_path):
    learner, script = SPEC, replace(SPEC, behavior_id="Script")
    blocks = {"Script": {"trainer_type": "ppo", "brain": "random", "broadcast": True}, "Test": {"trainer_type": "ppo"}}
    both = {"specs": (learner, script), "config": {"behaviors": blocks}}
    batches = [expert([2], learner), expert([3], script, learning=[False])]
    record(batches, "demos/actor.stream", edge="agent_processor", **both)
    assert load_demonstrations("demos", replace(SPEC, behavior_id="Script"), tmp_path).lengths.tolist() == [3]
    record(batches[:1], "demos/trainer.stream", config=both["config"])
    assert load_demonstrations("demos", replace(SPEC, behavior_id="Script"), tmp_path).lengths.tolist() == [3]
    assert load_demonstrations("demos", SPEC, tmp_path).lengths.tolist() == [2]


def test_a_script_with_a_student_counts_once(record, expert, tmp_path):
    student, script = replace(SPEC, behavior_id="Student"), replace(SPEC, behavior_id="Script")
    blocks = {
        "Script": {"trainer_type": "ppo", "brain": "random", "broadcast": True},
        "Student": {"trainer_type": "bc", "hyperparameters": {"teacher": "Script"}},
    }
    config = {"behaviors": blocks}
    played = expert([3], script, learning=[False])
    record([played], "demos/actor.stream", spec=script, edge="agent_processor", config=config)
    record([replace(played, behavior_id="Student")], "demos/student.stream", spec=student, config=config)
    for name in ("Script", "Student", "Test"):
        assert load_demonstrations("demos", replace(SPEC, behavior_id=name), tmp_path).lengths.tolist() == [3]


def test_learners_of_one_run_do_not_learn_from_each_others_recordings(record, expert, tmp_path):
    other = replace(SPEC, behavior_id="Other")
    record([expert([2])], "demos/a.stream")
    record([expert([3], other)], "demos/b.stream", spec=other)
    record([expert([4], other)], "demos/c.stream", spec=other, run_id="another")
    assert load_demonstrations("demos", SPEC, tmp_path).lengths.tolist() == [2, 4], "one name of a run, any of others"


def test_a_recording_without_the_steps_of_its_brain_names_the_settings_that_record_them(record, tmp_path):
    blocks = {"Test": {"trainer_type": "ppo", "brain": "random", "broadcast": False}}
    record([], "played.stream", edge="agent_processor", config={"behaviors": blocks})
    with pytest.raises(
        StageError,
        match=r"no steps of Test; if a brain controlled it, .* set broadcast: true .* and record\.edges: "
        r"\[agent_processor\]",
    ):
        load_demonstrations("played.stream", SPEC, tmp_path)


def test_a_demo_next_to_the_stream_of_its_name_counts_once(record, expert, tmp_path):
    record([expert([2, 4])], "demos/played.stream")
    write_demos(str(tmp_path / "demos/played.stream"), tmp_path / "demos/played.demo")
    assert load_demonstrations("demos", SPEC, tmp_path).lengths.tolist() == [2, 4]
    assert load_demonstrations("demos/*.demo", SPEC, tmp_path).lengths.tolist() == [2, 4]


@pytest.mark.parametrize("path", ["nothing.stream", "nowhere/", "no*.stream"])
def test_a_missing_demo_path_is_refused_with_the_folders_searched(path, tmp_path):
    with pytest.raises(
        StageError, match=r"behaviors\.Test: demo_path .*: no file or folder matches; looked in"
    ) as error:
        load_demonstrations(path, SPEC, tmp_path)
    assert str(tmp_path) in str(error.value)


def test_files_of_unknown_kinds_and_empty_folders_are_refused(tmp_path):
    (tmp_path / "demos").mkdir()
    with pytest.raises(StageError, match=r"'demos': expected \.demo, \.stream or \.json files; found an empty folder"):
        load_demonstrations("demos", SPEC, tmp_path)
    (tmp_path / "demos" / "data.csv").write_text("1,2")
    with pytest.raises(StageError, match=r"expected \.demo, \.stream or \.json files; found data\.csv"):
        load_demonstrations("demos/data.csv", SPEC, tmp_path)


def test_a_file_that_is_not_a_stream_is_refused(tmp_path):
    (tmp_path / "fake.stream").write_bytes(b"something else entirely")
    with pytest.raises(StreamError, match="not a stream"):
        load_demonstrations("fake.stream", SPEC, tmp_path)


def test_a_stream_without_a_step_is_refused(record, tmp_path):
    record([], "empty.stream")
    with pytest.raises(StageError, match=r"'empty\.stream': the recording contains no steps of Test"):
        load_demonstrations("empty.stream", SPEC, tmp_path)


VECTOR, IMAGE = ObservationSpec("vector", (3,)), ObservationSpec("eye", (3, 8, 8), "uint8")


@pytest.mark.parametrize(
    ("recorded", "wanted", "message"),
    [
        (
            (ObservationSpec("o", (4,)),),
            (VECTOR,),
            r"observation 0 \('vector'\): expected shape \(3,\).*found shape \(4,\)",
        ),
        ((VECTOR, IMAGE), (VECTOR,), r"the number of observations: expected 1, found 2"),
        ((IMAGE,), (replace(IMAGE, dtype="float32"),), r"expected shape \(3, 8, 8\) of floats, found .* of uint8"),
        (
            (replace(IMAGE, shape=(8, 8, 8), channels_last=True),),
            (replace(IMAGE, shape=(8, 8, 8)),),
            "found .*channels last",
        ),
    ],
)
def test_other_observations_are_refused_with_both_shapes(record, expert, tmp_path, recorded, wanted, message):
    spec = replace(SPEC, observations=recorded)
    record([expert([2], spec)], spec=spec)
    with pytest.raises(StageError, match=r"expert\.stream: demonstrations of Test do not fit Test: .*" + message):
        load_demonstrations("expert.stream", replace(SPEC, observations=wanted), tmp_path)


@pytest.mark.parametrize(
    ("actions", "found"),
    [
        (ActionSpec(3, (3,)), r"3 continuous, discrete branches \[3\]"),
        (ActionSpec(2, (3, 2)), r"2 continuous, discrete branches \[3, 2\]"),
        (ActionSpec(2, (3,), unbounded=(1,)), r"2 continuous, unbounded \[1\], discrete branches \[3\]"),
    ],
)
def test_other_actions_are_refused_with_both_forms(record, expert, tmp_path, actions, found):
    spec = replace(SPEC, actions=actions)
    record([expert([2], spec)], spec=spec)
    with pytest.raises(StageError, match=r"actions: expected 2 continuous, discrete branches \[3\], found " + found):
        load_demonstrations("expert.stream", SPEC, tmp_path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("column", "index", "said"),
    [
        ("obs_0", (4, 1), r"vector\[1\]"),
        ("continuous_actions", (4, 0), r"continuous_actions\[0\]"),
        ("rewards", (4,), "rewards"),
    ],
)
def test_a_number_that_is_not_finite_is_refused_with_where_it_is(record, expert, tmp_path, bad, column, index, said):
    batch = expert([3, 5])
    values = batch.rows[column].copy()
    values[index] = bad
    config = {"behaviors": {"Test": {"trainer_type": "sac"}}}
    record([batch.replace(**{column: values})], config=config)
    with pytest.raises(StageError, match=rf"expert\.stream: trajectory 2, step 2: {said} is {bad}"):
        load_demonstrations("expert.stream", SPEC, tmp_path)


def test_the_observation_after_a_cut_episode_must_be_finite(record, expert, tmp_path):
    batch = expert([3, 5])
    after = np.full_like(batch.trajectories["next_obs_0"], np.nan)
    record([batch.replace(next_obs_0=after, terminated=[True, True])], "good.stream")
    assert not load_demonstrations("good.stream", SPEC, tmp_path).final_observations[0].any()
    record([batch.replace(next_obs_0=after, terminated=[True, False])], "bad.stream")
    with pytest.raises(StageError, match=r"trajectory 2, after its last step: vector\[0\] is nan"):
        load_demonstrations("bad.stream", SPEC, tmp_path)


def test_actions_beyond_the_bounds_are_refused_except_for_rounding(record, expert, tmp_path):
    actions = np.array([[0.5, 1.00005], [-1.00005, 0]], np.float32)
    record([expert([2], continuous_actions=actions)], "rounded.stream")
    assert load_demonstrations("rounded.stream", SPEC, tmp_path).continuous.tolist() == [[0.5, 1], [-1, 0]]
    record([expert([2], continuous_actions=actions * 1.01)], "beyond.stream")
    with pytest.raises(StageError, match=r"trajectory 1, step 1: continuous_actions\[1\] is 1\.01.*in \[-1, 1\]"):
        load_demonstrations("beyond.stream", SPEC, tmp_path)


def test_without_an_environment_the_behaviour_is_the_recorded_one_of_that_name(record, expert, tmp_path):
    team = replace(SPEC, behavior_id="Expert?team=1")
    record([expert([2], team)], "demos/a.stream", spec=team, run_id="another")
    record([expert([3])], "demos/b.stream")
    found = load_demonstrations("demos", "Test", tmp_path)
    assert found.spec == SPEC
    assert found.lengths.tolist() == [2, 3]


def test_files_that_disagree_with_each_other_are_refused(record, expert, tmp_path):
    wide = replace(SPEC, observations=(ObservationSpec("vector", (4,)),))
    record([expert([2])], "demos/a.stream")
    record([expert([3], wide)], "demos/b.stream", spec=wide)
    with pytest.raises(StageError, match=r"b\.stream: demonstrations of Test do not fit Test: observation 0"):
        load_demonstrations("demos", "Test", tmp_path)
