"""What a study took, what it is tied to, and how to repeat it."""

from __future__ import annotations

import json
import time

from optimizer.report.findings import Document
from optimizer.report.layout import Column, Section, Table
from optimizer.report.numbers import (
    duration,
    plural,
)


def budget(document: Document) -> Section | None:
    spent = document["facts"].get("spent", {})
    times = document["time"]
    wall_s = spent.get("wall_s") or times["last_at"] - times["first_at"]
    if not wall_s:
        return None
    limits = document["settings"].get("budget", {})
    lines = [
        f"Took {duration(wall_s)}" + (f" of {limits['minutes']:g} min." if limits.get("minutes") else ", no limit.")
    ]
    lines.append(
        f"Of that {duration(times['build_s'])} in builds and {duration(times['window_s'])} in "
        f"{plural(times['windows'], 'measurement window')}; the rest is loading, warming up and checking answers."
    )
    told = (document["decision"] or {}).get("break_even", {}).get("sentence")
    if told:
        lines.append(f"Break-even: {told}")
    elif document["decision"]:
        lines.append("Break-even: there is nothing to earn back, since what is there stays.")
    return Section("budget", "Budget and break-even", tuple(lines))


def environment(document: Document) -> Section:
    fingerprint = document["fingerprint"]
    facts = {"model hash": fingerprint["model"][:16], **fingerprint["facts"]}
    facts |= {
        name.removeprefix("why_").replace("_", " ") + ", why": reason
        for name, reason in document["notes"].items()
        if name.startswith("why_")
    }
    rows = tuple((name, str(value)) for name, value in sorted(facts.items()))
    line = "The result is tied to this: elsewhere it is guidance."
    return Section("environment", "Environment", (line,), (Table((Column("fact"), Column("value")), rows),))


def reproduce(document: Document) -> Section:
    created = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(document["created_at"]))
    line = (
        f"Study {document['directory']} of {document['repository']}, begun {created} with triton-optimizer "
        f"{document['version']}. Save the settings "
        "as settings.yaml, next to the files that they name, and run the command below them:"
    )
    changed = {name: value for name, value in document["changed_settings"].items() if name != "models"}
    commands = (
        *json.dumps(changed, indent=2).splitlines(),
        "",
        f"triton-optimizer optimize {document['repository']} --model {document['model']} --config settings.yaml "
        "--study NEW_DIRECTORY",
    )
    return Section("reproduce", "How to reproduce", (line,), commands=commands)
