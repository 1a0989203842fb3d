"""Self-play's bookkeeping, case by case; `test_controller_property` has the schedules that nobody thinks of."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import policy_update, trajectories

from headrace.config import SelfPlaySettings
from headrace.stages.ghost.controller import GhostController

HOME, AWAY = "Ball?team=0", "Ball?team=1"
HIDER, SEEKER = "Hider?team=0", "Seeker?team=1"
DEFAULTS = {"save_steps": 100, "team_change": 1000, "swap_steps": 50, "play_against_latest_model_ratio": 0.0}


def make(*behavior_ids, seed=0, each=None, **settings):
    """A controller that has met these behaviour ids; `each` has settings by behaviour name."""
    controller = GhostController(np.random.default_rng(seed))
    ids = behavior_ids or (HOME, AWAY)
    for name in dict.fromkeys(i.partition("?")[0] for i in ids):
        controller.add_history(name, SelfPlaySettings(**(DEFAULTS | settings | (each or {}).get(name, {}))))
    for behavior_id in ids:
        assert controller.add_behavior(behavior_id) is None, "nobody can play before there is a policy"
    return controller


def policy(step, name="Ball", version=None):
    return policy_update(name, step // 100 if version is None else version, step)


def ghosts(controller, steps, behavior_id=AWAY, generation=None):
    """Steps that an opponent has made, under the assignment in force or an earlier one."""
    generation = controller.generation if generation is None else generation
    batch = trajectories([steps], behavior_id, generation=generation, learning=False)
    return controller.count_steps(batch, controller.learning_mask(batch))


def games(*rows):
    names = ("game_generation", "game_outcome")
    return dict(zip(names, (np.array(column) for column in zip(*rows, strict=True)), strict=True))


def rating(controller, snapshot, name="Ball"):
    return controller.histories[name].records[snapshot].rating


def opponent(matchup):
    return matchup.assignment.opponent


# Policies and assignments. --------------------------------------------------------------------------------------------


def test_the_first_policy_is_assigned_to_all_teams():
    controller = make()
    updates, matchup = controller.receive_policy(policy(0))
    assert updates == []
    assert matchup.assignment.generation == 1
    assert matchup.assignment.learning_team == 0
    assert matchup.assignment.policies == {HOME: (-1, 0), AWAY: (-1, 0)}
    assert [update.behavior_id for update in matchup.policies] == [HOME, AWAY]


def test_later_policies_go_to_the_learning_team_only():
    controller = make()
    controller.receive_policy(policy(0))
    updates, matchup = controller.receive_policy(policy(100))
    assert matchup is None
    assert [(update.behavior_id, update.version, update.snapshot) for update in updates] == [(HOME, 1, -1)]


def test_a_team_that_appears_later_brings_a_new_assignment():
    controller = make(AWAY)
    controller.receive_policy(policy(0))
    matchup = controller.add_behavior(HOME)
    assert matchup.assignment.policies.keys() == {HOME, AWAY}
    assert matchup.assignment.learning_team == 1, "who has begun to learn goes on"
    assert controller.add_behavior(HOME) is None


def test_a_policy_may_come_before_its_behaviour_id_is_known():
    controller = GhostController(np.random.default_rng(0))
    controller.add_history("Ball", SelfPlaySettings(**DEFAULTS))
    assert controller.receive_policy(policy(0)) == ([], None)
    assert controller.add_behavior(HOME).assignment.policies == {HOME: (-1, 0)}


def test_a_single_team_never_rotates_and_logs_one_warning(caplog):
    controller = make(HOME, team_change=1)
    controller.receive_policy(policy(0))
    for step in (5000, 9000):
        updates, matchup = controller.receive_policy(policy(step))
        assert matchup is None
        assert len(updates) == 1
    (warning,) = caplog.messages
    assert warning.startswith("behaviors.Ball.self_play: the environment has only one team (Ball?team=0)")
    assert "such as Ball?team=1" in warning


def test_a_single_team_with_self_play_is_warned_of(caplog):
    bystanders = set()
    controller = GhostController(np.random.default_rng(0), bystanders)
    controller.add_history("Ball", SelfPlaySettings())
    controller.add_behavior(HOME)
    bystanders.add("Wall?team=1")
    for step in (0, 5000):
        controller.receive_policy(policy(step))
    (warning,) = caplog.messages
    assert "all behaviours with self_play are in one team (Ball?team=0)" in warning
    assert "add a self_play block to Wall?team=1 as well" in warning


def test_teams_change_by_trainer_steps_and_the_new_learner_starts_from_the_newest_weights():
    controller = make(team_change=300)
    controller.receive_policy(policy(0))
    assert controller.receive_policy(policy(300))[1] is None
    updates, matchup = controller.receive_policy(policy(400))
    assert updates == []
    assignment = matchup.assignment
    assert assignment.learning_team == controller.learning_team == 1
    assert assignment.policies[AWAY] == (-1, 4)
    assert assignment.policies[HOME][0] == assignment.opponent >= 0, "opponents are swapped at once"


def test_opponents_are_swapped_by_ghost_steps():
    controller = make(swap_steps=50)
    controller.receive_policy(policy(0))
    assert ghosts(controller, 24) is None
    matchup = ghosts(controller, 1)
    assert matchup.assignment.generation == 2
    assert matchup.assignment.policies == {HOME: (-1, 0), AWAY: (0, 0)}
    assert ghosts(controller, 49) is None
    assert ghosts(controller, 1).assignment.generation == 3
    assert controller.histories["Ball"].counters.ghost_step == 75


def test_late_steps_of_the_previous_learner_swap_nothing():
    """Its team plays as a ghost now, but did not then."""
    controller = make(team_change=300, swap_steps=50)
    controller.receive_policy(policy(0))
    controller.receive_policy(policy(400))
    late = trajectories([500], HOME, generation=1, learning=True)
    assert controller.count_steps(late, controller.learning_mask(late)) is None
    assert ghosts(controller, 24, HOME) is None


@pytest.mark.parametrize(("ratio", "opponents"), [(1.0, {-1}), (0.0, {0, 1, 2})])
def test_the_share_of_the_newest_policy_among_opponents_is_the_configured_one(ratio, opponents):
    controller = make(window=3, save_steps=100, play_against_latest_model_ratio=ratio)
    for step in (0, 101, 202):
        controller.receive_policy(policy(step))
    assert {opponent(ghosts(controller, 50)) for _ in range(60)} == opponents


# Several behaviours. --------------------------------------------------------------------------------------------------


def asymmetric(**options):
    """Two behaviours, a team each, that play under generation 1: the hider learns."""
    controller = make(HIDER, SEEKER, **({"save_steps": 10**6} | options))
    assert controller.receive_policy(policy(0, "Seeker")) == ([], None), "the other one has no policy yet"
    _, matchup = controller.receive_policy(policy(0, "Hider"))
    assert matchup.assignment.policies == {HIDER: (-1, 0), SEEKER: (-1, 0)}
    return controller


def test_a_turn_is_counted_in_steps_of_the_learning_team_s_trainer():
    controller = asymmetric(team_change=300)
    assert controller.learning_team == 0
    assert controller.receive_policy(policy(400, "Seeker"))[1] is None, "its steps are no turn of the hider's"
    _, matchup = controller.receive_policy(policy(301, "Hider"))
    assert matchup.assignment.learning_team == 1
    assert matchup.assignment.policies == {HIDER: (0, 0), SEEKER: (-1, 4)}, "the newest weights of its own behaviour"
    assert controller.receive_policy(policy(700, "Seeker"))[1] is None, "300 steps since its turn began"
    assert controller.receive_policy(policy(701, "Seeker"))[1].assignment.learning_team == 0


def test_a_behaviour_s_ghost_steps_swap_its_own_policy_and_leave_the_others_alone():
    controller = make("A?team=0", "B?team=1", "C?team=2", swap_steps=50, window=1)
    for name in "ABC":
        controller.receive_policy(policy(0, name))
    first = ghosts(controller, 50, "B?team=1")
    assert first.assignment.policies == {"A?team=0": (-1, 0), "B?team=1": (0, 0), "C?team=2": (-1, 0)}
    second = ghosts(controller, 50, "C?team=2")
    assert second.assignment.policies == {"A?team=0": (-1, 0), "B?team=1": (0, 0), "C?team=2": (0, 0)}


def test_with_more_than_two_teams_each_opponent_draws_for_itself():
    controller = make(HOME, AWAY, "Ball?team=2", "Ball?team=3", save_steps=1, window=4, swap_steps=1)
    for step in (0, 2, 4, 6):
        controller.receive_policy(policy(step))
    drawn = set()
    for _ in range(50):
        policies = ghosts(controller, 1).assignment.policies
        drawn.add(tuple(number for behavior_id, (number, _) in policies.items() if behavior_id != HOME))
    assert len({numbers for numbers in drawn if len(set(numbers)) > 1}) > 5


def test_all_teams_take_turns():
    controller = make(HOME, AWAY, "Ball?team=7", team_change=100)
    controller.receive_policy(policy(0))
    seen = []
    for step in range(101, 800, 101):
        controller.receive_policy(policy(step))
        seen.append(controller.learning_team)
    assert seen == [1, 7, 0, 1, 7, 0, 1]


def test_a_team_of_two_behaviours_learns_with_both():
    controller = make("Keeper?team=0", "Striker?team=0", "Rival?team=1", team_change=300)
    for name in ("Keeper", "Striker", "Rival"):
        controller.receive_policy(policy(0, name))
    for name in ("Keeper", "Striker"):
        (update,), _ = controller.receive_policy(policy(100, name))
        assert update.behavior_id == f"{name}?team=0"
        assert judged(controller, f"{name}?team=0", 1, [True]) == [True]
    assert judged(controller, "Rival?team=1", 1, [False]) == [False]
    _, matchup = controller.receive_policy(policy(301, "Striker"))
    assert matchup.assignment.learning_team == 1, "whichever of them has had its steps first"


def test_a_finished_trainer_gets_no_more_turns():
    controller = asymmetric(team_change=300)
    assert controller.receive_report("Hider", False) is None
    matchup = controller.receive_report("Hider", True)
    assert matchup.assignment.learning_team == 1, "its turn ends at once"
    assert controller.receive_report("Hider", True) is None
    assert controller.receive_policy(policy(5000, "Seeker"))[1] is None
    assert controller.learning_team == 1
    assert controller.receive_report("Seeker", True) is None, "all are done: nothing changes any more"
    assert controller.learning_team == 1


@pytest.mark.parametrize("report_first", [False, True])
@pytest.mark.parametrize("names", [("Ball", "Ball"), ("Hider", "Seeker")])
def test_the_last_policy_and_the_trainer_s_report_may_come_in_any_order(names, report_first):
    controller = GhostController(np.random.default_rng(0))
    for name in dict.fromkeys(names):
        controller.add_history(name, SelfPlaySettings(**DEFAULTS), max_steps=2000)
    for team, name in enumerate(names):
        controller.add_behavior(f"{name}?team={team}")
    for name in dict.fromkeys(names):
        controller.receive_policy(policy(0, name))
    first = names[0]
    if report_first:
        assert controller.receive_report(first, True, version=20) is None, "it waits for the policy"
        assert controller.learning_team == 0
    controller.receive_policy(policy(2000, first))
    if not report_first:
        assert controller.receive_report(first, True, version=20) is None, "the policy has told already"
    assert controller.learning_team == (1 if names[0] != names[1] else 0)
    assert controller.histories[first].newest.step == 2000


def test_the_turn_of_a_finished_trainer_ends_with_its_last_policy():
    controller = GhostController(np.random.default_rng(0))
    for team, name in enumerate(("Hider", "Seeker")):
        controller.add_history(name, SelfPlaySettings(**DEFAULTS), max_steps=2000)
        controller.add_behavior(f"{name}?team={team}")
    for name in ("Hider", "Seeker"):
        controller.receive_policy(policy(0, name))
    assert controller.receive_report("Hider", True, version=4) is None
    controller.receive_policy(policy(300, "Hider"))
    assert controller.learning_team == 0
    controller.receive_policy(policy(400, "Hider"))
    assert controller.learning_team == 1, "the last one of its trainer, though of fewer than max_steps"


def learned(controller, steps, behavior_id=HOME):
    """Steps that the learning team has made under the assignment in force."""
    batch = trajectories([steps], behavior_id, generation=controller.generation)
    assert controller.count_steps(batch, controller.learning_mask(batch)) is None


def test_after_the_steps_of_a_turn_nothing_is_swapped_until_the_turn_ends():
    controller = make(team_change=300, swap_steps=50)
    controller.receive_policy(policy(0))
    learned(controller, 300)
    assert ghosts(controller, 25) is not None
    learned(controller, 1)
    assert ghosts(controller, 50) is None, "the next policy ends the turn"
    controller.receive_policy(policy(400))
    assert controller.learning_team == 1
    assert ghosts(controller, 25, HOME) is not None


def test_swaps_continue_beyond_team_change_if_no_other_team_can_learn():
    controller = asymmetric(team_change=300, swap_steps=50)
    controller.receive_report("Seeker", True)
    learned(controller, 1000, HIDER)
    assert [ghosts(controller, 25, SEEKER) is not None for _ in range(6)] == [True, False] * 3


# Judging. ------------------------------------------------------------------------------------------------------------


def judged(controller, behavior_id, generation, learning):
    return controller.learning_mask(
        trajectories([1] * len(learning), behavior_id, generation=generation, learning=learning)
    ).tolist()


def test_only_trajectories_of_the_learning_team_are_trained_on():
    controller = make()
    controller.receive_policy(policy(0))
    assert judged(controller, HOME, 1, [True, False]) == [True, False]
    assert judged(controller, AWAY, 1, [False, True]) == [False, False]


def test_after_a_rotation_late_trajectories_of_the_former_learner_are_rejected():
    controller = make(team_change=300)
    controller.receive_policy(policy(0))
    controller.receive_policy(policy(400))
    assert judged(controller, HOME, 1, [True]) == [False]
    assert judged(controller, AWAY, 1, [True]) == [False], "the team learns now, but did not then"
    assert judged(controller, AWAY, 2, [True, False]) == [True, False]


def test_after_a_swap_games_against_the_old_opponent_are_trained_on():
    controller = make()
    controller.receive_policy(policy(0))
    ghosts(controller, 50)
    assert judged(controller, HOME, 1, [True]) == [True]


# Games. --------------------------------------------------------------------------------------------------------------


def test_a_result_counts_for_the_snapshot_that_was_met_not_for_the_current_one():
    controller = make(window=3, save_steps=100)
    for step in (0, 101, 202):
        controller.receive_policy(policy(step))
    met = opponent(ghosts(controller, 50))
    generation = controller.generation
    while opponent(ghosts(controller, 50)) == met:
        pass
    controller.rate_games(games((generation, 0.0)))
    assert [number for number in range(3) if rating(controller, number) != 1200] == [met]
    assert controller.elo("Ball") == 1192.0


def test_a_game_of_the_newest_policy_with_itself_is_not_rated():
    controller = make()
    controller.receive_policy(policy(0))
    assert controller.rate_games(games((1, 1.0))) == []
    assert controller.elo("Ball") == 1200


def test_a_game_that_ends_after_a_rotation_counts_for_those_who_played_it():
    controller = asymmetric(team_change=300, window=1)
    ghosts(controller, 50, SEEKER)
    controller.receive_policy(policy(301, "Hider"))
    assert controller.learning_team == 1
    assert controller.rate_games(games((2, 1.0))) == [("Hider", "Self-play/ELO", 1208.0)]
    assert (controller.elo("Seeker"), rating(controller, 0, "Seeker")) == (1200, 1192)


def test_two_newest_policies_of_different_behaviours_rate_each_other():
    controller = asymmetric()
    told = controller.rate_games(games((1, 1.0)))
    assert told == [("Hider", "Self-play/ELO", 1208.0), ("Seeker", "Self-play/ELO", 1192.0)]


# All teams at once. --------------------------------------------------------------------------------------------------


def at_once(*behavior_ids):
    controller = GhostController(np.random.default_rng(0))
    for name in dict.fromkeys(i.partition("?")[0] for i in behavior_ids):
        controller.add_history(name, SelfPlaySettings(learning_teams="all", save_steps=100), max_steps=1000)
    for behavior_id in behavior_ids:
        controller.add_behavior(behavior_id)
    return controller


def test_all_teams_learn_by_the_newest_policy_and_no_turn_ever_ends():
    controller = at_once(HOME, AWAY)
    _, matchup = controller.receive_policy(policy(0))
    assert matchup.assignment.all_learn
    assert matchup.assignment.policies == {HOME: (-1, 0), AWAY: (-1, 0)}
    for step in (200, 5000, 1_000_000):
        updates, matchup = controller.receive_policy(policy(step))
        assert matchup is None
        assert [update.behavior_id for update in updates] == [HOME, AWAY]
    for behavior_id in (HOME, AWAY):
        batch = trajectories([9], behavior_id, generation=1)
        assert controller.learning_mask(batch).all()
        assert controller.count_steps(batch, controller.learning_mask(batch)) is None
    assert controller.rate_games(games((1, 1.0))) == [], "a policy against itself"
    assert controller.report("Ball")["snapshots"][-1]["step"] == 1_000_000


def test_two_behaviours_that_learn_simultaneously_are_both_rated():
    controller = at_once(HIDER, SEEKER)
    controller.receive_policy(policy(0, "Hider"))
    controller.receive_policy(policy(0, "Seeker"))
    controller.rate_games(games((controller.generation, 1.0)))
    assert (controller.elo("Hider"), controller.elo("Seeker")) == (1208, 1192)
    assert controller.receive_policy(policy(1000, "Hider")) != ([], None)
    assert controller.receive_report("Hider", True) is None
    assert [u.behavior_id for u in controller.receive_policy(policy(300, "Seeker"))[0]] == [SEEKER]


@pytest.mark.parametrize("now", ["all", "turns"])
def test_a_resumed_run_may_go_over_to_the_other_rule(now):
    controller = make() if now == "all" else at_once(HOME, AWAY)
    controller.receive_policy(policy(0))
    again = GhostController(np.random.default_rng(99))
    again.load_state_dict(controller.state_dict())
    again.add_history("Ball", SelfPlaySettings(learning_teams=now))
    for behavior_id in (HOME, AWAY):
        again.add_behavior(behavior_id)
    matchup = stand_where_they_stood(again, "Ball")
    assert matchup.assignment.all_learn == (now == "all")
    assert list(again.opponents) == ([] if now == "all" else [AWAY])


# Checkpoints. --------------------------------------------------------------------------------------------------------


def resumed(controller, *behavior_ids):
    """A controller that goes on from the state of another one, and has met these behaviour ids so far."""
    fresh = GhostController(np.random.default_rng(99))
    fresh.load_state_dict(controller.state_dict())
    for name in dict.fromkeys(i.partition("?")[0] for i in behavior_ids):
        fresh.add_history(name, controller.histories[name].settings)
    for behavior_id in behavior_ids:
        assert fresh.add_behavior(behavior_id) is None, "nobody can play before the trainers have spoken"
    return fresh


def stand_where_they_stood(controller, *names):
    """The trainers say what they said before the checkpoint; returns what the last word brings about."""
    for name in names:
        newest = controller.histories[name].newest
        assert controller.receive_policy(policy(newest.step, name, newest.version)) == ([], None)
        matchup = controller.receive_report(name, False)
    return matchup


def test_a_resumed_run_publishes_nothing_before_all_trainers_have_said_where_they_stand():
    controller = asymmetric()
    before = ghosts(controller, 50, SEEKER)
    again = resumed(controller, HIDER, SEEKER)
    assert again.receive_policy(policy(0, "Hider")) == ([], None)
    assert again.receive_report("Hider", False) is None
    assert ghosts(again, 500, SEEKER) is None
    assert again.receive_report("Seeker", False) is None
    _, matchup = again.receive_policy(policy(0, "Seeker"))
    assert matchup.assignment == before.assignment


def test_a_trainer_ahead_of_the_checkpoint_gets_the_right_turn():
    controller = asymmetric(team_change=300)
    again = resumed(controller, HIDER, SEEKER)
    again.receive_policy(policy(301, "Hider"))
    again.receive_report("Hider", False)
    again.receive_policy(policy(0, "Seeker"))
    matchup = again.receive_report("Seeker", False)
    _, expected = controller.receive_policy(policy(301, "Hider"))
    assert matchup.assignment == expected.assignment
    assert repr(again.state_dict()) == repr(controller.state_dict())


def test_a_behaviour_that_is_new_after_a_resume_joins():
    controller = make(HOME)
    controller.receive_policy(policy(0))
    again = resumed(controller, HOME, AWAY)
    assert stand_where_they_stood(again, "Ball").assignment.policies == {HOME: (-1, 0), AWAY: (-1, 0)}


@pytest.mark.parametrize("late", [HOME, AWAY])
def test_a_resumed_run_continues_once_all_behaviour_ids_are_announced_in_any_order(late):
    controller = make()
    controller.receive_policy(policy(0))
    before = ghosts(controller, 50)
    (early,) = {HOME, AWAY} - {late}
    again = resumed(controller, early)
    assert stand_where_they_stood(again, "Ball") is None
    assert again.add_behavior(early) is None, "another actor has the same"
    assert again.add_behavior(late).assignment == before.assignment
    assert repr(again.state_dict()) == repr(controller.state_dict())
    assert again.all_announced() is None


def three_teams():
    """Three teams of one behaviour, of which the last one learns."""
    controller = make(HOME, AWAY, "Ball?team=2", team_change=100, each={"Ball": {"save_steps": 10**6}})
    for step in (0, 101, 202):
        controller.receive_policy(policy(step))
    assert controller.learning_team == 2
    return controller


@pytest.mark.parametrize("announced_first", [True, False])
def test_a_team_that_is_gone_after_a_resume_gets_no_turns_and_plays_no_games(announced_first, caplog):
    again = resumed(three_teams(), HOME, AWAY)
    if announced_first:
        assert again.all_announced() is None
        matchup = stand_where_they_stood(again, "Ball")
    else:
        assert stand_where_they_stood(again, "Ball") is None
        matchup = again.all_announced()
    assert matchup.assignment.learning_team == 0, "it was the turn of the one that is gone"
    assert matchup.assignment.policies == {HOME: (-1, 2), AWAY: (0, 0)}
    seen = []
    for step in range(303, 810, 101):
        again.receive_policy(policy(step))
        seen.append(again.learning_team)
    assert seen == [1, 0] * 3
    (warning,) = caplog.messages
    assert "continues without Ball?team=2, which the checkpoint contains but this run's environments do not" in warning
    assert "resume it with environments that have" in warning
    assert again.state_dict()["ids"] == [HOME, AWAY]


def test_a_missing_behaviour_is_kept_and_can_join_later():
    controller = asymmetric(team_change=300)
    ghosts(controller, 50, SEEKER)
    again = resumed(controller, HIDER)
    again.all_announced()
    assert stand_where_they_stood(again, "Hider").assignment.policies == {HIDER: (-1, 0)}
    kept = again.state_dict()["lineages"]["Seeker"]
    assert repr(kept) == repr(controller.state_dict()["lineages"]["Seeker"])
    later = resumed(again, HIDER)
    assert stand_where_they_stood(later, "Hider") is not None, "the next run does not wait for it"
    later.add_history("Seeker", controller.histories["Seeker"].settings)
    assert later.add_behavior(SEEKER).assignment.policies == {HIDER: (-1, 0), SEEKER: (-1, 0)}
    assert later.histories["Seeker"].counters.ghost_step == 50


def test_a_new_run_does_not_wait_for_announcements():
    controller = make()
    controller.receive_policy(policy(0))
    assert controller.all_announced() is None
    assert controller.generation == 1


# Recordings. ----------------------------------------------------------------------------------------------------------


def replayed(*behavior_ids, **settings):
    controller = GhostController(np.random.default_rng(0), replayed=True)
    for name in dict.fromkeys(i.partition("?")[0] for i in behavior_ids):
        controller.add_history(name, SelfPlaySettings(**DEFAULTS | settings))
    for behavior_id in behavior_ids:
        controller.add_behavior(behavior_id)
    for name in controller.histories:
        controller.receive_policy(policy(0, name))
    return controller


@pytest.mark.parametrize("players", [(HIDER, SEEKER), (HOME, AWAY)])
@pytest.mark.parametrize("generation", [0, 1, 7, 1000])
def test_a_replayed_recording_trains_on_what_the_recording_marks(players, generation):
    controller = replayed(*players, team_change=100)
    for behavior_id in players * 3:
        for learning in (True, False):
            batch = trajectories([40, 30], behavior_id, generation=generation, learning=learning)
            mask = controller.learning_mask(batch)
            assert mask.tolist() == [learning, learning]
            controller.count_steps(batch, mask)
        controller.receive_policy(policy(1000, behavior_id.partition("?")[0], 1))  # turns end


def test_a_replayed_recording_swaps_and_rates_nothing(caplog):
    controller = replayed(HIDER, SEEKER, swap_steps=10, team_change=100)
    before = controller.generation
    for learner, ghost in ((HIDER, SEEKER), (SEEKER, HIDER)):
        for behavior_id, steps in ((learner, 90), (ghost, 900)):
            batch = trajectories([steps], behavior_id, generation=before, learning=behavior_id == learner)
            assert controller.count_steps(batch, controller.learning_mask(batch)) is None
    assert controller.generation == before
    assert controller.rate_games(games((before, 1.0))) == []
    assert not caplog.messages


# Uneven swaps. --------------------------------------------------------------------------------------------------------


def play_turns(turns, hider, seeker, agents=1):
    """Turns of 1000 steps of a hider and of some seekers, in which all agents make equally many steps."""
    settings = {"Hider": {"swap_steps": hider}, "Seeker": {"swap_steps": seeker}}
    controller = make(HIDER, SEEKER, each=settings)
    for name in settings:
        controller.receive_policy(policy(0, name))
    for turn in range(1, turns + 1):
        ghosts(controller, 1000 * agents, SEEKER)
        controller.receive_policy(policy(1001 * turn, "Hider"))
        ghosts(controller, 1000 // agents, HIDER)
        controller.receive_policy(policy(1001 * turn, "Seeker"))


def test_a_pair_with_the_swap_steps_of_a_lone_agent_gets_advice_which_to_set(caplog):
    play_turns(30, hider=125, seeker=125, agents=2)
    (message,) = [text for text in caplog.messages if "unequal size" in text]
    assert "Hider makes 0.50 steps for each step of Seeker" in message
    assert "Seeker meets new opponents 4 times per turn, and Hider 16 times" in message
    assert "set behaviors.Seeker.self_play.swap_steps to 500" in message


@pytest.mark.parametrize(
    ("turns", "hider", "seeker", "agents"), [(30, 125, 125, 1), (30, 125, 500, 2), (15, 125, 125, 2)]
)
def test_sides_with_equally_many_swaps_and_sides_that_have_just_begun_cause_no_warning(
    caplog, turns, hider, seeker, agents
):
    play_turns(turns, hider, seeker, agents)
    assert not [text for text in caplog.messages if "unequal size" in text]
