"""`--to-demo`: what is written where, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from imitation_spec import SPEC
from trainer_samples import experience

from headrace.pipeline.cli import main
from headrace.pipeline.policies.demo_files import write_demos
from headrace.queues.specs import ActionSpec
from headrace.queues.stream_file import StreamHeader, StreamWriter
from headrace.stages.environments.engines.unity.demo_steps import DemoReader
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.loading import load_demonstrations

OTHER = replace(SPEC, behavior_id="Other?team=1", actions=ActionSpec(0, (4,)))


@pytest.fixture
def record(tmp_path):
    """Writes a stream of random experience, one batch for each spec."""

    def write(*batches, specs, name="a.stream"):
        with StreamWriter(tmp_path / name, StreamHeader.of("expert", 1.7e9, ("trainer",), specs)) as writer:
            for batch in batches:
                writer.write("trainer", batch, 0.0)
        return str(tmp_path / name)

    return write


def test_a_recording_becomes_a_demo_file_that_holds_the_same_steps(record, tmp_path):
    source = record(experience(SPEC, [3, 2]), specs=[SPEC])
    target = tmp_path / "new" / "Expert.demo"
    (written,) = write_demos(source, target)
    assert written == target
    stream, demo = load_demonstrations(source, "Test"), load_demonstrations(str(target), "Test")
    np.testing.assert_array_equal(demo.observations[0], stream.observations[0])
    np.testing.assert_array_equal(demo.continuous, stream.continuous)
    assert demo.lengths.tolist() == [3, 2]
    meta = DemoReader(target).meta
    assert (meta.demonstration_name, meta.number_steps, meta.number_episodes) == ("Test", 7, 2)


def test_a_folder_gets_a_file_for_each_recorded_behaviour(record, tmp_path):
    source = record(experience(SPEC, [3]), experience(OTHER, [2]), specs=[SPEC, OTHER])
    written = write_demos(source, tmp_path / "demos")
    assert [path.name for path in written] == ["Other.demo", "Test.demo"]
    assert [len(found) for found in written.values()] == [2, 3]
    assert len(load_demonstrations(str(tmp_path / "demos" / "Other.demo"), "Other")) == 2


def test_several_behaviours_do_not_go_into_one_file(record, tmp_path):
    source = record(experience(SPEC, [3]), experience(OTHER, [2]), specs=[SPEC, OTHER])
    with pytest.raises(
        StageError, match=r"a\.demo: a \.demo file holds only one behaviour, but .* has Other, Test; give a"
    ):
        write_demos(source, tmp_path / "a.demo")


def test_a_behaviour_of_which_nothing_was_recorded_is_left_out_with_a_word(record, tmp_path, caplog):
    source = record(experience(SPEC, [3]), specs=[SPEC, OTHER])
    assert [path.name for path in write_demos(source, tmp_path / "demos")] == ["Test.demo"]
    assert "the recording contains no steps of Other" in caplog.text


def test_several_recordings_become_one_demo_file(record, tmp_path):
    record(experience(SPEC, [3]), specs=[SPEC])
    record(experience(SPEC, [2]), specs=[SPEC], name="b.stream")
    for source in (tmp_path, tmp_path / "*.stream"):
        target = tmp_path / source.name / "Test.demo"
        assert [len(found) for found in write_demos(str(source), target).values()] == [5]


def test_demo_files_can_be_joined(record, tmp_path):
    source = record(experience(SPEC, [3]), specs=[SPEC])
    for name in ("one", "two"):
        write_demos(source, tmp_path / "parts" / f"{name}.demo")
    (found,) = write_demos(str(tmp_path / "parts"), tmp_path / "Joined.demo").values()
    assert (found.spec.name, len(found)) == ("Joined", 6)


def test_the_command_says_what_it_wrote_or_why_it_did_not(record, tmp_path, capsys):
    source, target = record(experience(SPEC, [3, 2]), specs=[SPEC]), str(tmp_path / "a.demo")
    assert main(["--to-demo", source, target]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"{target}: 5 steps of Test in 2 episodes"
    assert main(["--to-demo", source, target]) == 2
    assert f"run-pipeline: {target}: the file already exists" in capsys.readouterr().err
    (tmp_path / "bad.stream").write_text("no stream")
    assert main(["--to-demo", str(tmp_path / "bad.stream"), str(tmp_path / "b.demo")]) == 2
    assert "bad.stream: not a stream" in capsys.readouterr().err
    assert main(["--to-demo", "nowhere.stream", str(tmp_path / "b.demo")]) == 2
    assert "no file or folder matches" in capsys.readouterr().err
