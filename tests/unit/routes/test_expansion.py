"""trtexec's three orders. The golden lists are those that ``TuningContext::getPathAtIndex`` gives."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.records.route import Knob, Layer, Route
from optimizer.routes.expansion import (
    MOST_POSITIVE_KNOBS,
    Expansion,
    Search,
    expand,
    mixed_second_phase,
    positive_knobs,
    unseen,
)
from optimizer.routes.expression import Expression, parse_expression, vary
from optimizer.routes.knobs import KnobTable, published_table

TABLE = KnobTable(
    (
        Knob("opt1", Layer.COMPILER, ("on", "off"), "off"),
        Knob("opt2", Layer.COMPILER, ("0", "1", "2"), "2"),
        Knob("opt3", Layer.COMPILER, ("on", "off"), "on"),
        Knob("any", Layer.COMPILER, (), "5"),
    )
)


def texts(expression: str, search: Search | str) -> list[str]:
    return list(expand(parse_expression(expression, TABLE), search).texts())


def test_full_changes_the_leftmost_knob_slowest() -> None:
    assert texts("-opt1=[on|off] -opt2=[0|1|2]", "full") == [
        "-opt1=on -opt2=0",
        "-opt1=on -opt2=1",
        "-opt1=on -opt2=2",
        "-opt1=off -opt2=0",
        "-opt1=off -opt2=1",
        "-opt1=off -opt2=2",
    ]


def test_fast_starts_at_the_defaults_and_goes_right_to_left_in_listed_order() -> None:
    assert texts("-opt1=[on|off] -opt2=[0|1|2]", "fast") == [
        "-opt1=off -opt2=2",
        "-opt1=off -opt2=0",
        "-opt1=off -opt2=1",
        "-opt1=on -opt2=2",
    ]
    assert texts("-opt2=[1|2|0]", "fast") == ["-opt2=2", "-opt2=1", "-opt2=0"]


def test_pinned_knobs_stay_in_every_route() -> None:
    assert texts("-any=9 -opt1=[on|off] -opt2=1", "fast") == ["-any=9 -opt1=off -opt2=1", "-any=9 -opt1=on -opt2=1"]
    assert texts("-opt1=on -opt2=[0|1]", "full") == ["-opt1=on -opt2=0", "-opt1=on -opt2=1"]


def test_lists_without_the_default() -> None:
    assert texts("-opt1=[on] -any=[1|2]", "fast") == [
        "-opt1=off -any=5",
        "-opt1=off -any=1",
        "-opt1=off -any=2",
        "-opt1=on -any=5",
    ]
    assert texts("-opt1=[on] -any=[1|2]", "full") == ["-opt1=on -any=1", "-opt1=on -any=2"]


def test_fast_over_every_bounded_knob_of_the_table_is_206_builds() -> None:
    table = published_table()
    expansion = expand(vary(table), "fast")
    listed = list(expansion.texts())
    assert expansion.count == len(listed) == len(set(listed)) == 206
    assert listed[0] == " ".join(f"-{knob.name}={knob.default}" for knob in table if knob.bounded)
    # The last bounded knob of the table changes first.
    last = [knob for knob in table if knob.bounded][-1]
    value = next(value for value in last.values if value != last.default)
    assert expansion.route_at(1) == Route.of({last.name: value})


def test_full_over_the_table_is_counted_exactly_and_visited_lazily() -> None:
    expansion = expand(vary(published_table()), "full")
    sizes = [len(knob.values) for knob in published_table() if knob.bounded]
    assert expansion.count == math.prod(sizes) > 10**60
    assert len(list(itertools.islice(expansion.texts(), 3))) == 3
    assert expansion.text_at(expansion.count - 1).endswith(
        f"={[k for k in published_table() if k.bounded][-1].values[-1]}"
    )
    with pytest.raises(IndexError):
        expansion.text_at(expansion.count)


def test_mixed_begins_as_fast() -> None:
    expression = "-opt1=[on|off] -opt2=[0|1|2]"
    assert texts(expression, "mixed") == texts(expression, "fast")


def test_second_phase_is_full_over_the_positive_knobs_with_the_others_at_their_baseline() -> None:
    expression = parse_expression("-any=9 -opt1=[on|off] -opt2=[0|1|2] -opt3=[on|off]", TABLE)
    assert list(mixed_second_phase(expression, ["opt3", "opt1"]).texts()) == [
        "-any=9 -opt1=on -opt2=2 -opt3=on",
        "-any=9 -opt1=on -opt2=2 -opt3=off",
        "-any=9 -opt1=off -opt2=2 -opt3=on",
        "-any=9 -opt1=off -opt2=2 -opt3=off",
    ]
    with pytest.raises(ValueError, match="any"):
        mixed_second_phase(expression, ["any"])


def test_second_phase_keeps_the_ten_best() -> None:
    table = [knob for knob in published_table() if knob.values == ("on", "off")]
    positive = [knob.name for knob in reversed(table[:14])]
    second = mixed_second_phase(vary(table), positive)
    assert second.count == 2**MOST_POSITIVE_KNOBS
    varied = {term.knob.name for term in second.expression.terms if not term.pinned}
    assert varied == set(positive[:MOST_POSITIVE_KNOBS])


def test_failing_routes_are_never_positive_and_the_best_comes_first() -> None:
    expression = parse_expression("-opt1=[on|off] -opt2=[0|1|2] -opt3=[on|off]", TABLE)
    gains = {
        Route(): 0.0,
        Route.of({"opt3": "off"}): None,  # failed accuracy, whatever its speed
        Route.of({"opt2": "0"}): 0.01,
        Route.of({"opt2": "1"}): -0.2,
        Route.of({"opt1": "on"}): 0.05,
    }
    assert positive_knobs(expression, gains) == ["opt1", "opt2"]
    assert positive_knobs(expression, {**gains, Route.of({"opt1": "on"}): math.nan}) == ["opt2"]
    assert positive_knobs(expression, {}) == []


def test_nothing_is_measured_twice() -> None:
    expression = parse_expression("-opt1=[on|off] -opt2=[0|1|2]", TABLE)
    first = list(expand(expression, "mixed").routes())
    second = list(unseen(mixed_second_phase(expression, ["opt1", "opt2"]).routes(), first))
    assert second == [Route.of({"opt1": "on", "opt2": "0"}), Route.of({"opt1": "on", "opt2": "1"})]
    assert list(unseen(mixed_second_phase(expression, ["opt2"]).routes(), first)) == []


def test_document_is_cut_but_counts_all() -> None:
    document = expand(vary(published_table()), "fast").document(limit=2)
    assert document["count"] == 206
    assert len(document["routes"]) == 2  # type: ignore[arg-type]


def terms_of(knob: Knob) -> st.SearchStrategy[str]:
    values = knob.values or ("1", "2", "5")
    lists = st.lists(st.sampled_from(values), min_size=1, unique=True).map(lambda chosen: f"[{'|'.join(chosen)}]")
    return (lists | st.sampled_from(values)).map(lambda text: f"-{knob.name}={text}")


expressions = (
    st.lists(st.sampled_from(TABLE.knobs), min_size=1, unique=True)
    .flatmap(lambda knobs: st.tuples(*map(terms_of, knobs)))
    .map(lambda terms: parse_expression(" ".join(terms), TABLE))
)


@given(expressions)
def test_counts_indexes_and_iteration_agree(expression: Expression) -> None:
    for search in Search:
        expansion = expand(expression, search)
        listed = list(expansion.texts())
        assert len(listed) == expansion.count == len(set(listed))
        assert listed == [expansion.text_at(index) for index in range(expansion.count)]
        assert list(expansion.routes()) == [expansion.route_at(index) for index in range(expansion.count)]


@given(expressions)
def test_full_is_the_cartesian_product(expression: Expression) -> None:
    names = [term.knob.name for term in expression.terms]
    expected = [
        " ".join(f"-{name}={value}" for name, value in zip(names, values, strict=True))
        for values in itertools.product(*(term.values for term in expression.terms))
    ]
    assert list(expand(expression, "full").texts()) == expected


@given(expressions)
def test_fast_differs_from_its_baseline_in_one_knob(expression: Expression) -> None:
    expansion = Expansion(expression, Search.FAST)
    baseline = expansion.values_at(0)
    for index in range(1, expansion.count):
        assert sum(mine != base for mine, base in zip(expansion.values_at(index), baseline, strict=True)) == 1
