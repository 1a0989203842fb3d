"""Old curricula, in folders, files and sections: each parameter gets its lessons."""

from __future__ import annotations

import pytest
from old_sections import flat

ONE = """
    Jumper:
      measure: progress
      thresholds: [0.1, 0.4]
      min_lesson_length: 30
      signal_smoothing: yes
      parameters:
        low: [0.0, 1.5, 2]
        high: [1, 2, 3]
"""
LESSONS = [("Lesson0", 0.0, 0.1), ("Lesson1", 1.5, 0.4), ("Lesson2", 2.0, None)]
TRAINER = f"default: {flat('ppo')}\nJumper: {{}}\n"


def lessons(config, name: str) -> list[tuple[str, float, float | None]]:
    found = config.environment_parameters[name].curriculum
    return [(each.name, each.value, each.completion_criteria and each.completion_criteria.threshold) for each in found]


def test_a_file_of_curricula_goes_into_the_trainers_file(take, write):
    taken = take(TRAINER, curriculum=write(ONE, "lessons.yaml"))
    assert lessons(taken.config, "low") == LESSONS
    criteria = taken.config.environment_parameters["high"].curriculum[0].completion_criteria
    assert (criteria.behavior, criteria.measure, criteria.min_lesson_length) == ("Jumper", "progress", 30)
    assert criteria.signal_smoothing
    assert criteria.require_reset, "old versions began all environments anew with a lesson"
    assert (
        "lessons.yaml:3: thresholds: is now 'environment_parameters.<name>.curriculum.<n>.completion_criteria"
        in "".join(taken.notes)
    )


def test_a_folder_has_a_file_for_each_behavior(take, write):
    body = (
        '{"measure": "reward", "thresholds": [%s], "min_lesson_length": 5, "signal_smoothing": false, "parameters": '
        "{%s}}"
    )
    folder = write(body % ("1", '"a": [0, 1]'), "lessons/Jumper.json").parent
    write(body.replace(" ", "\t") % ("2, 3", '"b": [0, 1, 2]'), "lessons/Other.json")
    write("not for us", "lessons/Jumper.json.meta")
    taken = take(TRAINER, curriculum=folder)
    assert lessons(taken.config, "a") == [("Lesson0", 0, 1), ("Lesson1", 1, None)]
    assert taken.config.environment_parameters["b"].curriculum[1].completion_criteria.behavior == "Other"


def test_a_file_of_a_single_behavior_is_named_after_it(take, write):
    body = (
        '{"measure": "reward", "thresholds": [1], "min_lesson_length": 5, "signal_smoothing": true, "parameters": '
        '{"a": [0, 1]}}'
    )
    taken = take(TRAINER, curriculum=write(body, "Jumper.json"))
    assert taken.config.environment_parameters["a"].curriculum[0].completion_criteria.behavior == "Jumper"


def test_only_lessons_load_with_the_defaults_and_a_warning(take):
    taken = take(ONE)
    assert lessons(taken.config, "low") == LESSONS
    assert taken.data["behaviors"] == {"Jumper": {"trainer_type": "ppo"}}
    assert any("so behaviours learn with the defaults; see --curriculum" in note for note in taken.notes)


def test_a_block_may_hold_its_curriculum(take):
    inner = "curriculum: {thresholds: [0.5], parameters: {size: [1, 2]}}"
    for text in (f"behaviors: {{Jumper: {{trainer_type: ppo, {inner}}}}}", f"Jumper: {flat('ppo', inner)}"):
        taken = take(text)
        assert lessons(taken.config, "size") == [("Lesson0", 1, 0.5), ("Lesson1", 2, None)]
        assert taken.config.environment_parameters["size"].curriculum[0].completion_criteria.measure == "reward"


def test_curricula_may_be_a_section(take):
    text = (
        "behaviors: {Jumper: {}}\ncurriculum: {Jumper: {measure: progress, thresholds: [0.5], parameters: {size: [1, "
        "2]}}}"
    )
    taken = take(text)
    assert lessons(taken.config, "size") == [("Lesson0", 1, 0.5), ("Lesson1", 2, None)]
    assert "old.yaml:2: curriculum: is now 'environment_parameters.<name>.curriculum'" in taken.notes


def test_lessons_as_the_upgrade_tool_of_ml_agents_writes_them_are_taken(take):
    old = "[{Lesson0: {value: 1, completion_criteria: {behavior: B, min_lesson_length: 1}}}, {Lesson1: {value: 2}}]"
    taken = take(f"behaviors: {{B: {{}}}}\nenvironment_parameters: {{h: {{curriculum: {old}}}, g: 2}}")
    assert lessons(taken.config, "h") == [("Lesson0", 1, 0), ("Lesson1", 2, None)]
    assert taken.config.environment_parameters["g"] == 2
    (note,) = taken.notes
    assert note == "old.yaml:2: environment_parameters.<name>.curriculum: its lessons are now written as '- name: …'"


@pytest.mark.parametrize(("lesson", "names"), [(1, ["Lesson1", "Lesson2"]), (2, ["Lesson2"]), (9, ["Lesson2"])])
def test_a_later_lesson_to_begin_with_leaves_out_those_before(take, write, lesson: int, names: list[str]):
    taken = take(TRAINER, curriculum=write(ONE, "lessons.yaml"), lesson=lesson)
    assert [name for name, _, _ in lessons(taken.config, "low")] == names
    assert any(f"as --lesson {lesson} requests" in note for note in taken.notes)


def test_a_later_lesson_of_a_file_of_today(take, write):
    text = """
        behaviors: {B: {}}
        environment_parameters:
          size:
            curriculum:
              - {name: a, value: 1, completion_criteria: {behavior: B, min_lesson_length: 1}}
              - name: b
                value: 2
                completion_criteria: {behavior: %s, min_lesson_length: 1}
              - {name: c, value: 3}
    """
    assert [name for name, _, _ in lessons(take(text % "B", lesson=1).config, "size")] == ["b", "c"]


def test_mistakes_in_lessons_that_have_moved_are_found_where_they_stand(refuse):
    text = """
        behaviors: {B: {}}
        environment_parameters:
          size:
            curriculum:
              - {name: a, value: 1, completion_criteria: {behavior: B}}
              - name: b
                value: 2
                completion_criteria: {behavior: C}
              - {name: c, value: 3}
    """
    (mistake,) = refuse(text, lesson=1)
    assert mistake.startswith("old.yaml:8: environment_parameters.size.curriculum.0.completion_criteria.behavior: 'C'")


MISTAKES = [
    (ONE.replace("[0.0, 1.5, 2]", "[0, 1]"), "lessons.yaml:7: Jumper.parameters.low: 2 values for 2 thresholds;"),
    (
        ONE.replace("measure: progress", "measure: luck"),
        "lessons.yaml:2: environment_parameters.low.curriculum.0.complet",
    ),
    ("Jumper: {thresholds: [1], parameters: 2}", "lessons.yaml:1: Jumper.parameters: is not valid; expected a map"),
    (ONE.replace("[0.1, 0.4]", "0.1"), "lessons.yaml:3: Jumper.thresholds: is not valid; expected a list"),
    (ONE + ONE.replace("Jumper", "Other").replace("high", "width"), "lessons.yaml:16: Other.parameters.low: already"),
    ("a: 1", "lessons.yaml:1: contains no curricula; expected behaviours, each with measure,"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[expected for _, expected in MISTAKES])
def test_mistakes_in_lessons_are_reported_at_their_place(refuse, write, text: str, expected: str):
    assert refuse(TRAINER, curriculum=write(text, "lessons.yaml"))[0].startswith(expected)


def test_a_folder_without_curricula_is_a_mistake(refuse, tmp_path):
    assert "contains no curricula; expected a file <behaviour>.json" in refuse(TRAINER, curriculum=tmp_path)[0]


def test_lessons_of_a_missing_behavior_are_a_mistake(refuse, write):
    told = refuse(f"Ball: {flat('ppo')}", curriculum=write(ONE, "lessons.yaml"))
    assert "'Jumper' is not listed under behaviors; listed: Ball" in told[0]
