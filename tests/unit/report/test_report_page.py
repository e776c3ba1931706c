from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

from optimizer.report.page import study_page

Document = dict[str, Any]
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<b>"
VOID = {"meta", "link", "input", "br"}


class Elements(HTMLParser):
    """What a browser's parser sees: elements with attributes, texts, and whether everything is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_texts_from_outside_stay_texts(decided: Document) -> None:
    for row in decided["candidates"]:
        row["label"] += HOSTILE
        row["reason"] = HOSTILE
        row["warnings"] = [f"code: {HOSTILE}"]
        for parity in row["parity"].values():
            parity["per_tag"] = {HOSTILE: {HOSTILE: 0.1}}
            for output in parity["outputs"]:
                output["output"] = output["worst_sample"] = HOSTILE
    decided["decision"]["sentence"] = decided["decision"]["caveats"][0] = HOSTILE
    decided["fingerprint"]["facts"] = {HOSTILE: HOSTILE, "workload": HOSTILE, "gpu": HOSTILE}
    decided |= {"model": HOSTILE, "repository": HOSTILE, "directory": HOSTILE, "next": [HOSTILE]}
    elements = Elements(study_page(decided))
    assert not elements.named("img")
    assert len(elements.named("script")) == 1
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert any(HOSTILE in text for text in elements.texts)


def test_only_the_page_s_own_script_may_run(decided: Document) -> None:
    page = study_page(decided)
    elements = Elements(page)
    policy = next(one["content"] for one in elements.named("meta") if one.get("http-equiv"))
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script is not None and policy is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy


def test_nothing_is_fetched(decided: Document) -> None:
    elements = Elements(study_page(decided))
    addresses = [
        value for _, attributes in elements.found for name, value in attributes.items() if name in ("src", "href")
    ]
    assert {str(address)[0] for address in addresses} == {"#", "d"}
    assert [address for address in addresses if not str(address).startswith("#")] == ["data:,"]
    assert elements.named("link")[0]["rel"] == "icon"


def test_every_link_leads_to_a_section(decided: Document) -> None:
    elements = Elements(study_page(decided))
    anchors = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    links = [str(one["href"]).removeprefix("#") for one in elements.named("a")]
    assert set(links) <= set(anchors)
    assert links[0] == "decision"


def test_every_chart_is_there_twice_and_named(decided: Document) -> None:
    charts = [one for one in Elements(study_page(decided)).named("svg") if one.get("class") == "chart"]
    names = [one["aria-label"] for one in charts]
    assert len(names) == 2 * len(set(names)) == 2 * 8
    assert {str(one["viewbox"]).split()[2] for one in charts} == {"1000", "358"}


def test_every_measured_candidate_is_a_point_with_its_route(decided: Document) -> None:
    page = study_page(decided)
    start = page.index('aria-label="Throughput against p99 latency')
    chart = page[start : page.index("</svg>", start)]
    measured = [row for row in decided["candidates"] if row["throughput"]]
    tips = re.findall(r"<title>([^<]*)</title>", chart)
    assert len(tips) == len(measured)
    assert {tip.splitlines()[0] for tip in tips} == {row["label"] for row in measured}


def test_failed_candidates_are_listed_by_reason(decided: Document) -> None:
    texts = Elements(study_page(decided)).texts
    count = len([row for row in decided["candidates"] if row["code"] == "no_implementation"])
    place = texts.index("build: no_implementation")
    assert texts[place + 1] == str(count)


def test_without_p99_the_axis_names_what_it_shows(invent: Any) -> None:
    page = study_page(invent(candidates=5, percentiles=("p50", "p90")))
    assert "p90 latency, ms" in page
    assert "p99 latency, ms" not in page


def test_a_study_without_any_percentile_shows_the_mean(invent: Any) -> None:
    assert "mean latency, ms" in study_page(invent(candidates=5, percentiles=()))


def test_a_study_that_failed_half_way_tells_its_story(failed: Document) -> None:
    elements = Elements(study_page(failed))
    text = "\n".join(elements.texts)
    assert "Stopped before a decision" in text
    assert "does not load: no <weights>" in text
    assert "Remedy: mend it" in text


def test_an_unfinished_study_has_a_page(invent: Any) -> None:
    text = "\n".join(Elements(study_page(invent(candidates=20, decided=False))).texts)
    assert "Unfinished" in text
    assert "Best so far in the race" in text


def test_a_thousand_candidates_stay_small(invent: Any) -> None:
    document = invent(candidates=1000)
    page = study_page(document)
    assert len(document["candidates"]) == 1002
    assert 1_000_000 < len(page.encode()) < 15_000_000
