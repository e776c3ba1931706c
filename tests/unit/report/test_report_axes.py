from __future__ import annotations

import pytest

from optimizer.report.axes import Scale, gain_scale, gain_text, gain_ticks, log_ticks, nice_ticks, scale_of, shorten
from optimizer.report.markup import Markup, element


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (93, 118, [95, 100, 105, 110, 115]),
        (-0.031, 0.012, [-0.03, -0.02, -0.01, 0, 0.01]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


def test_log_ticks_are_few() -> None:
    assert log_ticks(0.9, 60) == [1, 2, 5, 10, 20, 50]
    assert log_ticks(1e-6, 1e3) == [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100, 1000]


def test_a_wide_range_is_logarithmic() -> None:
    assert not scale_of([10, 70], 0, 100).log
    scale = scale_of([1, 100], 0, 100)
    assert scale.log
    assert scale(10) == pytest.approx(50, abs=0.1)


def test_what_lies_outside_is_drawn_at_the_edge() -> None:
    scale = Scale(1, 2, 10, 20)
    assert (scale(0), scale(1.5), scale(9)) == (10, 15, 20)


def test_a_halving_is_as_far_as_a_doubling() -> None:
    scale = gain_scale([0.5, 2.0], 0, 100)
    assert scale(1.0) == pytest.approx(50)
    assert scale(2.0) - scale(1.0) == pytest.approx(scale(1.0) - scale(0.5))


def test_no_change_is_always_inside_a_gain_axis() -> None:
    scale = gain_scale([1.2, 1.3], 0, 100)
    assert scale.low < 1 < scale.high
    assert 1.0 in gain_ticks(scale)


@pytest.mark.parametrize(
    ("ratio", "text"), [(1, "0%"), (1.05, "+5%"), (1.025, "+2.5%"), (0.9, "-10%"), (5, "×5"), (0.1, "×0.1")]
)
def test_gain_texts(ratio: float, text: str) -> None:
    assert gain_text(ratio) == text


def test_texts_that_do_not_fit_are_cut() -> None:
    assert shorten("short", 100) == "short"
    assert shorten("-instances=8 -precision=fp16", 73) == "-instance…"


def test_only_markup_is_not_escaped() -> None:
    assert element("b", "<i>", Markup("<i>x</i>"), title='"<', hidden=True, x=1.50000001, y=None) == (
        '<b title="&quot;&lt;" hidden x="1.5">&lt;i&gt;<i>x</i></b>'
    )
    assert element("circle", r=3) == '<circle r="3"/>'
