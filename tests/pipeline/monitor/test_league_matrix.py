"""The league on the page: a matrix of bounded size."""

from __future__ import annotations

from headrace.pipeline.monitor.shown_runs import MOST_CELLS, league_for_page


def entry(since, snapshot, won, lost):
    return {"since": since, "against": "Ball", "snapshot": snapshot, "won": won, "drawn": 1, "lost": lost}


def report(*results):
    return {"behavior": "Ball", "rating": 1200.0, "snapshots": [], "results": list(results)}


def test_each_result_has_its_cell():
    league = league_for_page(report(entry(0, -1, 5, 3), entry(2, 0, 1, 9)))
    assert [(each["snapshot"], each["brain"]) for each in league["columns"]] == [(-1, None), (0, None)]
    assert league["cells"] == [[[5, 1, 3], None], [None, None], [None, [1, 1, 9]]]


def test_brains_that_do_not_learn_stand_behind_all_snapshots_under_their_names():
    met = entry(1, None, 2, 7) | {"brain": "scripted"}
    league = league_for_page(report(met, entry(0, 3, 5, 3)) | {"brains": [{"brain": "scripted", "rating": 1300.0}]})
    assert [(each["snapshot"], each["brain"]) for each in league["columns"]] == [(3, None), (-1, "scripted")]
    assert league["cells"] == [[[5, 1, 3], None], [None, [2, 1, 7]]]
    assert league["brains"] == [{"brain": "scripted", "rating": 1300.0}]


def test_the_matrix_of_a_league_without_learners_has_brains_as_rows():
    brains = [{"brain": "scripted"}, {"brain": "random"}]
    met = entry(1, None, 0, 4) | {"brain": "scripted"}
    league = league_for_page(report(met) | {"rating": None, "brains": brains})
    assert league["rows"] == ["scripted", "random"]
    assert league["cells"] == [[None], [[0, 1, 4]]]


def test_neighbours_of_a_large_league_are_summed():
    league = league_for_page(report(*(entry(since, since % 100, 1, 0) for since in range(1000))))
    assert len(league["cells"]) <= MOST_CELLS
    assert len(league["columns"]) <= MOST_CELLS
    assert sum(cell[0] for row in league["cells"] for cell in row if cell) == 1000


def test_a_league_without_games_is_empty():
    assert league_for_page(report())["cells"] == []
