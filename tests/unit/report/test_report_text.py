from __future__ import annotations

import re
from typing import Any

import pytest

from optimizer.report.numbers import duration, interval, megabytes, percent, rate
from optimizer.report.sections import sections
from optimizer.report.text import escape, plain_table, study_markdown, study_text

Document = dict[str, Any]


@pytest.mark.parametrize(
    ("ratio", "shown"), [(1.034, "+3.4%"), (0.9, "-10.0%"), (0.99999, "+0.0%"), (5.536, "×5.54"), (1.0, "+0.0%")]
)
def test_ratios_as_changes(ratio: float, shown: str) -> None:
    assert percent(ratio) == shown


def test_numbers_have_three_digits_that_mean_something() -> None:
    assert [rate(value) for value in (None, 0, 8.254, 18.125, 204, 1101.4)] == [
        "unknown", "0", "8.25", "18.1", "204", "1,101",
    ]  # fmt: skip
    assert [megabytes(value) for value in (None, 300, 3_163_737)] == ["unknown", "<0.1", "3.2"]
    assert [duration(value) for value in (0.25, 4.4, 119, 300, 7_500)] == [
        "0.25 s",
        "4 s",
        "119 s",
        "5 min",
        "2 h 05 min",
    ]
    assert interval({"ratio": 1.1, "lower": 1.05, "upper": 1.15}) == "+10.0% (+5.0% to +15.0%)"
    assert interval(None) == ""


def test_tables_align_numbers_right_and_fold_long_cells() -> None:
    route = " ".join(f"-knob_{index}=on" for index in range(8))
    lines = plain_table(["candidate", "gain"], [(route, "+1.0%"), ("x", "+12.0%")], [False, True])
    assert lines[0].endswith("  gain")
    assert lines[-1].startswith("x ")
    assert len({len(line) for line in (lines[0], lines[2], lines[-1])}) == 1
    assert len(lines) == 2 + 3
    assert max(map(len, lines)) <= 60 + 2 + len("+12.0%")


def test_the_text_tells_every_part(decided: Document) -> None:
    text = study_text(decided)
    assert decided["decision"]["sentence"].split()[0] in text
    for title in (
        "DECISION", "CANDIDATES", "LEFT THE COMPARISON", "WHERE THE TIME GOES", "CONFIRMATION", "THE RACE",
        "GAIN PER KNOB", "ACCURACY", "BUILDS, MEMORY, PLAN SIZES", "NOISE OF THIS MACHINE",
        "BUDGET AND BREAK-EVEN", "ENVIRONMENT", "HOW TO REPRODUCE", "HOW TO APPLY, AND TO ROLL BACK",
    ):  # fmt: skip
        assert f"\n{title}\n" in text
    assert "Caveat: an invented study" in text
    assert "earned back by 0.3 GPU-days" in text
    assert "triton-optimizer rollback /srv/models --model classifier" in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_race_gains_stand_in_brackets_and_confirmed_ones_with_their_bound(decided: Document) -> None:
    table = next(section for section in sections(decided) if section.key == "candidates").tables[0]
    place = [column.name for column in table.columns].index("gain")
    gains = {row[1]: row[place] for row in table.rows}
    assert re.fullmatch(r"\+\d+\.\d% \(≥ \+\d+\.\d%\)", gains["winner"])
    assert re.fullmatch(r"\[[+-]\d+\.\d%\]", gains["measured"])
    assert gains["reference"] == gains["rejected"] == ""


def test_the_default_gain_is_told_only_where_it_is_another(decided: Document) -> None:
    def columns(document: Document) -> list[str]:
        return [column.name for column in sections(document)[0].tables[0].columns]

    assert "gain over default" not in columns(decided)
    finalist = decided["decision"]["finalists"][0]
    finalist["gain_over_default"] = {**finalist["gain_over_default"], "ratio": 1.5}
    assert "gain over default" in columns(decided)


def test_a_study_that_failed_tells_why_and_what_to_do(failed: Document) -> None:
    text = study_text(failed)
    assert "It stopped: does not load: no <weights>" in text
    assert "Remedy: mend it" in text
    assert "It was loading the model as found." in text
    assert "RACE" not in text


def test_an_unfinished_study_shows_what_is_known(invent: Any) -> None:
    text = study_text(invent(candidates=30, decided=False))
    assert "has not reached a decision" in text
    assert "Best so far in the race, which is no result: -" in text
    assert "triton-optimizer resume" in text
    assert "Break-even" not in text


def test_without_p99_the_next_percentile_is_named(invent: Any) -> None:
    text = study_text(invent(candidates=5, percentiles=("p50", "p90")))
    assert "p90 ms" in text
    assert "p99 ms" not in text
    assert "Shown is the p90 latency" in text


@pytest.mark.parametrize(
    ("given", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("`x` *y* _z_", "\\`x\\` \\*y\\* \\_z\\_"),
        ("two\nlines", "two lines"),
        ("# not a title", "\\# not a title"),
        ("[link](x)", "\\[link\\](x)"),
    ],
)
def test_markdown_is_escaped(given: str, escaped: str) -> None:
    assert escape(given) == escaped


def test_markdown_tables_keep_their_shape(invent: Any) -> None:
    markdown = study_markdown(invent(candidates=60, reason="bad | worse\n| x | <script>"))
    assert "<script>" not in markdown
    widths = set()
    previous = 0
    for line in markdown.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if cells and previous:
            widths.add(cells - previous)
        previous = cells
    assert widths == {0}
    assert markdown.startswith("# classifier\n")
