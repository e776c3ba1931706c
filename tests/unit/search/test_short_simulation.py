"""A minute's worth of ``benchmarks/search_simulation.py`` in seconds; the soak has the numbers that are claimed."""

from benchmarks import search_simulation


def test_of_equal_routes_none_is_promoted():
    # At the 0.05% that the soak shows, one in 60 studies is a 3% event, and two are 1 in 2,000.
    assert search_simulation.null_studies(60, 0.015, seed=1)["promoted"] <= 1


def test_the_race_finds_the_best_at_a_quarter_of_the_cost():
    row = search_simulation.cell(0.03, 0.015, studies=20, seed=5)
    # At the 99% that the soak shows, three misses in 20 are a 1 in 1,000 event.
    assert row["race"]["within_1_percent"] >= 0.85
    assert row["race"]["worse_than_reference"] == 0
    assert row["pairs_of_exhaustive"] <= 0.25
    assert row["race"]["mean_regret"] < 0.01


def test_exhaustive_is_judged_at_the_same_confidence():
    promoted = sum(search_simulation.exhaustive_study([0.0] * 200, 0.015, seed).promoted for seed in range(300))
    assert promoted <= 3
