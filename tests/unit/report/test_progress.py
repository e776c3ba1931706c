from __future__ import annotations

import io
import json
import math
from typing import Any

from rich.console import Console

from optimizer.progress import JsonLines, Line, Narrator
from optimizer.terminal import LiveProgress


def pair(candidate: str, ratio: float, *, purpose: str = "race", usable: bool = True, **more: Any) -> tuple[str, Any]:
    return "pair", {
        "candidate": candidate, "route": f"-{candidate}=on", "purpose": purpose, "index": 0, "usable": usable,
        "log_ratio": math.log(ratio), "throughput": 1.0, "reference_throughput": 1.0, **more,
    }  # fmt: skip


def screen(candidate: str) -> tuple[str, Any]:
    return "screen", {"candidate": candidate, "route": f"-{candidate}=on", "spent_s": 20.0, "limit_s": 100.0}


STUDY: list[tuple[str, Any]] = [
    ("stage", {"stage": "sandbox", "text": "starting"}),
    ("stage", {"stage": "noise", "text": "measuring noise", "pairs": 2}),
    pair("as-found", 1.2, purpose="noise"),
    ("stage", {"stage": "search", "text": "searching"}),
    ("build", {"engine": "e", "route": ""}),
    ("built", {"engine": "e", "route": "", "build_s": 3.21, "size_bytes": 2_000_000}),
    screen("a"),
    pair("a", 1.1),
    pair("a", 1.1),
    pair("a", 1.0, usable=False),
    screen("b"),
    ("rejected", {"candidate": "b", "route": "-b=on", "stage": "validate", "code": "accuracy", "message": "far\noff"}),
    screen("c"),
    pair("c", 1.3),
    screen("d"),
    pair("d", 0.9),
    ("stage", {"stage": "confirm", "text": "confirming 1 finalist", "finalists": 1, "pairs": 2}),
    pair("c", 1.2, purpose="confirm"),
    pair("c", 1.2, purpose="confirm-fresh"),
    ("decision", {"verdict": "winner", "sentence": "-c=on replaces what is there."}),
]


def narrate(events: list[tuple[str, Any]]) -> tuple[list[Line], Narrator]:
    narrator = Narrator()
    lines = [line for kind, facts in events for line in narrator.tell(kind, facts)]
    return lines, narrator


def test_a_log_has_one_line_for_a_candidate_s_turn() -> None:
    lines, _ = narrate(STUDY)
    assert [line.text.strip() for line in lines if line.log] == [
        "starting",
        "measuring noise",
        "searching",
        "built     default in 3.2 s, 2.0 MB",
        "raced     -a=on: [+10.0%] over 2 pairs, 1 disturbed, best so far",
        "rejected  -b=on (validate: accuracy): far off",
        "raced     -c=on: [+30.0%] over 1 pair, best so far",
        "raced     -d=on: [-10.0%] over 1 pair",
        "confirming 1 finalist",
        "confirmed -c=on: +20.0% over 2 pairs",
        "-c=on replaces what is there.",
    ]


def test_a_terminal_keeps_only_what_changes_the_picture() -> None:
    lines, _ = narrate(STUDY)
    assert [line.text.strip() for line in lines if line.live] == [
        "starting",
        "measuring noise",
        "searching",
        "best so far in the race: [+10.0%] -a=on",
        "rejected  -b=on (validate: accuracy): far off",
        "best so far in the race: [+30.0%] -c=on",
        "confirming 1 finalist",
        "confirmed -c=on: +20.0% over 2 pairs",
        "-c=on replaces what is there.",
    ]


def test_the_status_says_what_runs_what_is_known_and_the_time_left() -> None:
    _, narrator = narrate(STUDY[:14])
    assert narrator.status == (
        "search · 1:20 left of 1:40 · 3 tried, 1 rejected · best so far [+30.0%] -c=on · measuring -c=on"
    )


def test_the_status_is_empty_before_and_after() -> None:
    assert Narrator().status == ""
    assert narrate(STUDY)[1].status == ""


def test_a_rejected_candidate_is_no_longer_the_best() -> None:
    rejected = ("rejected", {"candidate": "c", "stage": "measure", "code": "errors", "message": "2 failed"})
    lines, narrator = narrate([*STUDY[:14], rejected])
    assert "[+10.0%] -a=on" in narrator.status
    assert lines[-1].text == "  rejected  -c=on (measure: errors): 2 failed"


def test_the_next_model_starts_afresh() -> None:
    _, narrator = narrate([*STUDY, ("stage", {"stage": "sandbox", "text": "starting"})])
    assert "tried" not in narrator.status
    assert "best" not in narrator.status


def test_unknown_events_are_for_others() -> None:
    assert Narrator().tell("invented", {"x": 1}) == []


def run(terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=terminal, width=60, highlight=False, soft_wrap=True, color_system=None
    )
    times = iter(range(1000))
    progress = LiveProgress(console, clock=lambda: float(next(times)))
    for kind, facts in STUDY:
        progress(kind, **facts)
    progress.close()
    progress.close()
    return stream.getvalue()


def test_a_stream_gets_lines_with_the_time_and_nothing_else() -> None:
    lines = run(terminal=False).splitlines()
    assert lines[0] == "    1.0s  starting"
    assert len(lines) == 11
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_status_line_and_its_cursor_back() -> None:
    shown = run(terminal=True)
    assert "▸ search · 1:20 left of 1:40" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") >= 1
    statuses = [part.split("\r")[0].split("\n")[0].split("\x1b")[0] for part in shown.split("▸")[1:]]
    assert max(len(f"▸{status}") for status in statuses) <= 60


def test_json_lines_pass_everything_on() -> None:
    stream = io.StringIO()
    progress = JsonLines(stream)
    for kind, facts in STUDY:
        progress(kind, **facts)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == [kind for kind, _ in STUDY]
    assert events[7]["log_ratio"] == math.log(1.1)
