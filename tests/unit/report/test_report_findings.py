from __future__ import annotations

import math
from typing import Any

import pytest

from optimizer.report import findings
from optimizer.report.findings import KnobValue

Document = dict[str, Any]


def pair(candidate: str, log_ratio: float = 0.0, *, usable: bool = True, purpose: str = "race") -> dict[str, Any]:
    return {"candidate_id": candidate, "purpose": purpose, "log_ratio": log_ratio, "usable": usable}


def turns(text: str) -> list[str]:
    """Rounds of ``"A B C- A"``; a dash is a disturbed pair."""
    pairs = [pair(word[0], usable=not word.endswith("-")) for word in text.split()]
    found = findings.rounds({"pairs": pairs})
    return ["".join(turn.candidate_id * turn.pairs for turn in round_) for round_ in found]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ("A B C", ["ABC"]),
        ("A B C A B", ["ABC", "AB"]),
        # The best of a round leads the next one, and was also the last of it.
        ("A B C C A", ["ABC", "CA"]),
        # A disturbed pair is measured again within the turn.
        ("A B- B C C A", ["ABBC", "CA"]),
        ("A A A", ["AAA"]),
        ("A A B B B", ["AABB", "B"]),
        ("", []),
    ],
)
def test_rounds_follow_from_the_order_of_measuring(measured: str, expected: list[str]) -> None:
    assert turns(measured) == expected


def test_a_round_shows_the_mean_of_all_usable_pairs_so_far() -> None:
    pairs = [pair("A", 0.1), pair("B", 0.3), pair("A", 9.0, usable=False), pair("A", 0.3)]
    first, second = findings.rounds({"pairs": [*pairs, pair("A", 5.0, purpose="confirm")]})
    assert first[0].ratio == pytest.approx(math.exp(0.1))
    assert (second[0].pairs, second[0].usable) == (2, 1)
    assert second[0].ratio == pytest.approx(math.exp(0.2))


def test_the_invented_race_has_its_rounds(decided: Document) -> None:
    counts = [len(round_) for round_ in findings.rounds(decided)]
    assert len(counts) >= 3
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == sum(1 for row in decided["candidates"] if row["race_pairs"])
    assert counts[-1] == 8


def test_gain_per_knob_is_the_geometric_mean_by_value(decided: Document) -> None:
    rows = [
        {"id": "1", "route": "-a=1 -b=on", "race_ratio": 1.2},
        {"id": "2", "route": "-a=1", "race_ratio": 1.1},
        {"id": "3", "route": "", "race_ratio": 0.9},
        {"id": "4", "route": "-a=10", "race_ratio": None},
        {"id": "as-found", "route": "", "race_ratio": 5.0},
    ]
    (first, gains_a), (second, gains_b) = findings.knob_gains({"candidates": rows})
    assert (first, second) == ("a", "b")
    assert gains_a == [
        KnobValue("a", "not set", pytest.approx(0.9), 1),
        KnobValue("a", "1", pytest.approx(math.sqrt(1.2 * 1.1)), 2),
    ]
    assert gains_b[0] == KnobValue("b", "not set", pytest.approx(math.sqrt(1.1 * 0.9)), 2)


def test_p99_is_shown_where_it_is_supported(decided: Document) -> None:
    assert findings.latency(decided).key == "p99"
    assert findings.latency(decided).why == ""


def test_a_percentile_that_some_lack_is_shown_with_a_remark(decided: Document) -> None:
    rows = [row for row in findings.measured(decided) if row["state"] == "measured" and row["route"]]
    del rows[0]["percentiles_us"]["p99"]
    shown = findings.latency(decided)
    assert shown.key == "p99"
    assert "1 of" in shown.why
    assert shown.of(rows[0]) is None


def test_a_percentile_that_the_reference_lacks_is_not_shown(decided: Document) -> None:
    found = findings.as_found(decided)
    assert found is not None
    for name in ("p99", "p95"):
        del found["percentiles_us"][name]
    assert findings.latency(decided).key == "p90"
    assert "highest percentile" in findings.latency(decided).why


def test_the_mean_where_windows_are_too_short_for_anything(invent: Any) -> None:
    document = invent(candidates=5, percentiles=())
    shown = findings.latency(document)
    assert shown.key == "mean"
    assert shown.of(findings.as_found(document)) == pytest.approx(16_000, rel=0.05)


def test_the_best_is_never_a_rejected_one(invent: Any) -> None:
    document = invent(candidates=30, decided=False)
    best = findings.best(document)
    assert best is not None
    best["state"] = "rejected"
    assert findings.best(document)["id"] != best["id"]


def test_the_winner_is_compared_with_what_is_there_and_the_default(decided: Document) -> None:
    assert [title for title, _ in findings.compared(decided)] == ["as found", "default", "winner"]
    assert findings.best_first(decided)[2]["state"] == "winner"


def test_one_row_that_is_two_things_is_shown_once(decided: Document) -> None:
    winner = next(row for row in decided["candidates"] if row["state"] == "winner")
    default = findings.default(decided)
    decided["candidates"].remove(default)
    winner["route"] = ""
    assert [title for title, _ in findings.compared(decided)] == ["as found", "default, winner"]


def test_failures_are_grouped_by_reason(decided: Document) -> None:
    reasons = findings.rejected(decided)
    assert {(reason.stage, reason.code) for reason in reasons} <= {
        ("build", "no_implementation"),
        ("validate", "accuracy"),
    }
    assert sum(len(reason.rows) for reason in reasons) == len(
        [row for row in decided["candidates"] if row["state"] == "rejected"]
    )
    assert len(reasons[0].rows) >= len(reasons[-1].rows) >= 1


def test_every_finalist_has_its_pairs_and_interval(decided: Document) -> None:
    confirmed = findings.confirmations(decided)
    assert len(confirmed) == 3
    for one in confirmed:
        assert len(one.pairs) == 12
        assert one.interval == one.finalist["gain_over_as_found"]


def test_an_unjudged_finalist_is_said_to_be_one(decided: Document) -> None:
    confirmed = findings.confirmations(decided | {"decision": None})
    assert {one.finalist["reason"] for one in confirmed} == {"not judged yet"}
    assert all(one.interval is None for one in confirmed)


@pytest.mark.parametrize(
    ("loss", "threshold", "expected"),
    [(0.02, 0.05, 0.4), (0.0, 0.0, 0.0), (1e-9, 0.0, math.inf), (0.3, None, 0.3)],
)
def test_excess_is_loss_by_tolerance(loss: float, threshold: float | None, expected: float) -> None:
    assert findings.excess({"loss": loss, "threshold": threshold}) == pytest.approx(expected)


def test_a_defect_is_worse_than_any_loss(decided: Document) -> None:
    row = next(row for row in decided["candidates"] if row["parity"])
    row["parity"]["tune"]["defects"] = ["output scores: NaN"]
    assert findings.worst_loss(row) == "defect"


@pytest.mark.parametrize(
    ("purposes", "searched", "said"),
    [
        (["noise"], False, "noise"),
        (["noise", "race"], True, "searching"),
        (["noise"], True, "searching"),
        (["noise", "race", "confirm"], True, "confirming"),
    ],
)
def test_an_unfinished_study_says_how_far_it_came(
    decided: Document, purposes: list[str], searched: bool, said: str
) -> None:
    pairs = [pair("x", purpose=purpose) for purpose in purposes]
    told = findings.progress_made(decided | {"pairs": pairs, "search": [{}] if searched else []})
    assert said in told


def test_warnings_are_counted_by_candidate(decided: Document) -> None:
    rows = [
        {"warnings": ["no_p99: 10 answers", "no_p99: 11 answers", "unstable: 26%"]},
        {"warnings": ["no_p99: 12 answers"]},
    ]
    assert findings.warning_counts({"candidates": rows}) == [("no_p99", 2, "10 answers"), ("unstable", 1, "26%")]
