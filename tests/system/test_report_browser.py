"""The report's page in a real browser: headless Chromium, spoken to over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ANSWER_WITHIN_S = 60.0


class Browser:
    """One Chromium with one tab. ``events`` holds everything that the tab has reported since it was opened."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4; it ends when the pipe closes.
        script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *flags],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._pending = b""
        self._ids = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            read = os.read(self._answers, 1 << 20)
            assert read, "Chromium has ended"
            self._pending += read
        message, _, self._pending = self._pending.partition(b"\0")
        return dict(json.loads(message))

    def open(self, url: str, *, width: int = 1200, height: int = 900, phone: bool = False, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path, clip: dict[str, float]) -> None:
        """For people who want to look at the page; no test does."""
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip={**clip, "scale": 1}
        )  # fmt: skip
        path.write_bytes(base64.b64decode(shot["data"]))


pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages: decided, unfinished, hostile, and one of a thousand candidates."""
    from optimizer.report.page import study_page
    from optimizer.summary import study_document
    from optimizer.testing.studies import write_invented_study

    made = tmp_path_factory.mktemp("pages")
    studies: dict[str, dict[str, Any]] = {
        "decided": {"candidates": 40},
        "unfinished": {"candidates": 20, "decided": False},
        "hostile": {"candidates": 40, "reason": HOSTILE},
        "large": {"candidates": 1000},
    }
    for name, arguments in studies.items():
        document = study_document(write_invented_study(made / name, **arguments))
        (made / f"{name}.html").write_text(study_page(document), encoding="utf-8")
    return {name: (made / f"{name}.html").as_uri() for name in studies}


HOSTILE = "</script><script>document.documentElement.dataset.broken='yes'</script><img src='http://192.0.2.1/x.png'>"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def complaints(browser: Browser) -> list[str]:
    """Everything that went wrong on the page, and every request beyond the page itself."""
    found = []
    for event in browser.events:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            found.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            found.append(str(parameters["entry"]["text"]))
        elif method == "Network.requestWillBeSent":
            address = parameters["request"]["url"]
            found += [] if parameters["type"] == "Document" or address.startswith("data:") else [address]
    return found


@pytest.mark.parametrize(
    ("name", "phone", "dark"),
    [
        ("decided", False, False),
        ("decided", True, True),
        ("unfinished", True, False),
        ("hostile", False, True),
        ("large", True, False),
    ],
)
def test_the_page_runs_asks_nobody_and_fits(
    browser: Browser, pages: dict[str, str], name: str, phone: bool, dark: bool
) -> None:
    browser.open(pages[name], width=390 if phone else 1200, phone=phone, dark=dark)
    assert browser.evaluate("document.documentElement.dataset.script") == "ran"
    assert browser.evaluate("document.documentElement.dataset.error || ''") == ""
    assert browser.evaluate("document.documentElement.dataset.broken || ''") == ""
    assert complaints(browser) == []
    assert browser.evaluate(OVERFLOW) <= 0
    assert browser.evaluate("document.querySelectorAll('img').length") == 0


def test_what_folds_up_fits_a_phone_too(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["decided"], width=390, phone=True)
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.evaluate(OVERFLOW) <= 0


def test_texts_of_charts_can_be_read_on_a_phone(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["decided"], width=390, phone=True)
    heights = browser.evaluate(
        "[...document.querySelectorAll('svg.chart text')].map((one) => one.getBoundingClientRect().height)"
        ".filter((height) => height > 0)"
    )
    assert len(heights) > 50
    assert min(heights) >= 11


def test_texts_stand_out_from_the_ground_in_both_themes(browser: Browser, pages: dict[str, str]) -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 to 1."""
    contrast = """
    (() => {
      const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
      const channel = (value) => linear(value / 255);
      const luminance = (colour) => {
        const [red, green, blue] = colour.match(/[\\d.]+/g).map(Number);
        return 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
      };
      const ground = luminance(getComputedStyle(document.body).backgroundColor);
      const least = (selector, property) => Math.min(...[...document.querySelectorAll(selector)].map((one) => {
        const mine = luminance(getComputedStyle(one)[property]);
        return (Math.max(mine, ground) + 0.05) / (Math.min(mine, ground) + 0.05);
      }));
      const drawn = 'text.tick, text.axis, text.hint, text.direct';
      return [least('p, h1, h2, td, a, summary', 'color'), least(drawn, 'fill')];
    })()
    """
    for dark in (False, True):
        browser.open(pages["decided"], dark=dark)
        assert min(browser.evaluate(contrast)) >= 4.5


def test_the_theme_follows_the_system_and_the_button(browser: Browser, pages: dict[str, str]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(pages["decided"], dark=False)
    browser.evaluate("localStorage.clear()")
    browser.open(pages["decided"], dark=True)
    dark = browser.evaluate(ground)
    browser.open(pages["decided"], dark=False)
    light = browser.evaluate(ground)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(18, 22, 27)")
    browser.evaluate("document.querySelector('.theme').click()")
    assert browser.evaluate(ground) == dark
    browser.evaluate("document.querySelector('.theme').click()")
    assert browser.evaluate(ground) == light
    browser.evaluate("localStorage.clear()")


def test_the_keyboard_walks_over_the_points_of_a_chart(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["decided"])
    browser.evaluate("document.querySelector('#candidates ~ figure .wide svg').focus()")
    tip = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    assert browser.evaluate(tip) == ""
    seen = []
    for _ in range(3):
        browser.press("ArrowRight")
        seen.append(browser.evaluate(tip))
    assert len(set(seen)) == 3
    assert all("inferences/s, p99 latency" in text for text in seen)
    throughputs = [float(text.splitlines()[2].split()[0].replace(",", "")) for text in seen]
    assert throughputs == sorted(throughputs)
    browser.press("Escape")
    assert browser.evaluate(tip) == ""
    # One stop a chart: with a thousand points nobody tabs through all of them.
    assert browser.evaluate("document.querySelectorAll('svg.chart [tabindex]').length") == 0


def test_the_pointer_finds_the_nearest_point(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["large"])
    place = browser.evaluate(
        "(() => { const mark = document.querySelector('#candidates ~ figure .wide .p.winner');"
        " mark.scrollIntoView({block: 'center'}); const box = mark.getBoundingClientRect();"
        " return [box.left + box.width / 2, box.top + box.height / 2 + 6,"
        " mark.querySelector('title').textContent]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    shown = browser.evaluate(
        "new Promise((done) => requestAnimationFrame(() => done(document.getElementById('tip').textContent)))"
    )
    assert shown == place[2]
    assert "winner" in shown


def test_tables_sort_by_value_and_filter(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["decided"])
    table = "document.querySelector('#candidates ~ div table')"
    cells = f"[...{table}.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[2].textContent)"
    click = f"{table}.querySelectorAll('th button')[2].click()"

    def numbers() -> list[float]:
        return [float(text.replace(",", "")) for text in browser.evaluate(cells) if text]

    browser.evaluate(click)
    assert numbers() == sorted(numbers(), reverse=True)
    browser.evaluate(click)
    assert numbers() == sorted(numbers())
    # What was not measured stays at the end.
    assert browser.evaluate(cells)[-1] == ""
    browser.evaluate(
        f"(() => {{ const input = {table}.closest('section').querySelector('.filter input');"
        " input.value = 'finalist'; input.dispatchEvent(new Event('input')); })()"
    )
    assert len(browser.evaluate(cells)) == 2


def test_without_a_script_everything_is_there(browser: Browser, pages: dict[str, str]) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["decided"])
        document = browser.call("DOM.getDocument", depth=-1)
        text = json.dumps(document)
        assert "replaces what is there" in text
        assert "p99 latency, ms" in text
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_thousand_candidates_open_at_once(browser: Browser, pages: dict[str, str]) -> None:
    """The time is printed and not judged: this machine may be busy. The number of elements is what it follows from."""
    browser.open(pages["large"])
    elements = browser.evaluate("document.querySelectorAll('*').length")
    took_ms = browser.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    print(f"a page of 1,000 candidates: {elements:,} elements, loaded in {took_ms} ms")
    assert elements < 40_000
