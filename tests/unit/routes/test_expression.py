"""trtexec's expression grammar: what it accepts, what it refuses and where."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from optimizer.errors import InputError
from optimizer.records.route import Knob, Layer, Route
from optimizer.routes.expression import Expression, Term, parse_expression, parse_route, vary
from optimizer.routes.knobs import KnobTable, published_table


def knob(name: str, values: tuple[str, ...], default: str) -> Knob:
    return Knob(name, Layer.COMPILER, values, default)


TABLE = KnobTable(
    (
        knob("opt1", ("on", "off"), "off"),
        knob("opt2", ("0", "1", "2"), "2"),
        knob("kgen:opt:3", ("a", "b"), "a"),
        knob("any", (), "5"),
    )
)


def test_pins_and_lists() -> None:
    expression = parse_expression("-opt1=[on|off] -kgen:opt:3=b -any=-7", TABLE)
    assert [(term.knob.name, term.values, term.pinned) for term in expression.terms] == [
        ("opt1", ("on", "off"), False),
        ("kgen:opt:3", ("b",), True),
        ("any", ("-7",), True),
    ]
    assert expression.pins == Route.of({"kgen:opt:3": "b", "any": "-7"})


def test_a_list_of_one_is_not_a_pin() -> None:
    (term,) = parse_expression("-opt1=[on]", TABLE).terms
    assert not term.pinned
    assert term.baseline == "off"
    assert term.alternatives == ("on",)


@pytest.mark.parametrize(
    "text",
    [
        "-opt2=[ 0 | 1 ] -opt1=on",
        "   -opt2=[0|1]    -opt1=on  ",
        "-opt2=[0||1|] -opt1=on",
        "-opt2=[0|1]\n\t-opt1=on\n",
    ],
)
def test_blanks_and_empty_alternatives_do_not_matter(text: str) -> None:
    assert parse_expression(text, TABLE).text == "-opt2=[0|1] -opt1=on"


def test_unbounded_knobs_vary_over_explicit_integers() -> None:
    assert parse_expression("-any=[1|5|-2]", TABLE).terms[0].alternatives == ("1", "-2")


@pytest.mark.parametrize(
    ("text", "character", "says"),
    [
        ("-opt1=on -opt9=on", 11, "unknown knob 'opt9'"),
        ("--opt1=on", 2, "unknown knob '-opt1'"),
        ("opt1=on", 1, "starts with '-'"),
        ("-opt1", 6, "'=' expected"),
        ("-opt1 =on", 6, "'=' expected"),
        ("-", 2, "'=' expected"),
        ("-opt1=", 7, "no value"),
        ("-opt1= on", 7, "no value"),
        ("-opt1=[]", 7, "list is empty"),
        ("-opt1=[ | ]", 7, "list is empty"),
        ("-opt1=[on|off", 7, "not closed"),
        ("-opt1=[on|[off]]", 11, "list inside a list"),
        ("-opt1=[on|off]x", 15, "after ']'"),
        ("-opt1=[on|off]-opt2=0", 15, "after ']'"),
        ("-opt1=x[on|off]", 8, r"unexpected '\['"),
        ("-opt1=on]", 9, "unexpected ']'"),
        ("-opt1=on|off", 9, r"unexpected '\|'"),
        ("-opt1=[on| on]", 12, "there twice"),
        ("-opt2=[0|3]", 10, "'3' is not a value"),
        ("-opt2=3", 7, "'3' is not a value"),
        ("-opt2=[0|...]", 10, r"'\.\.\.' is not allowed"),
        ("-any=[1|...]", 9, r"'\.\.\.' is not allowed"),
        ("-any=int32_t", 6, "takes an integer"),
        ("-any=[1|x]", 9, "takes an integer"),
        ("-any=[1|01]", 9, "takes an integer"),
        ("-any=2147483648", 6, "takes an integer"),
        ("-opt1=on -opt1=[on|off]", 10, "named twice"),
    ],
)
def test_errors_carry_the_place(text: str, character: int, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        parse_expression(text, TABLE, where="--routes")
    assert caught.value.where == "--routes"
    assert caught.value.field == f"character {character}"
    shown, caret = caught.value.problem.splitlines()[-2:]
    assert shown.strip() == text.strip()
    assert caret.index("^") - shown.index(text) == character - 1
    assert caught.value.remedy


def test_an_empty_expression_is_refused_but_an_empty_route_is_the_default() -> None:
    with pytest.raises(InputError, match="empty"):
        parse_expression("  ", TABLE)
    assert parse_route(" ", TABLE) == Route()


def test_hints_name_the_nearest_knob_and_value() -> None:
    with pytest.raises(InputError) as caught:
        parse_expression("-conv_use_log_w=on", published_table())
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith("did you mean conv_use_long_w")
    with pytest.raises(InputError) as caught:
        parse_expression("-conv_use_long_w=offf", published_table())
    assert caught.value.remedy == "did you mean off? allowed: on|off"


def test_long_expressions_are_shown_around_the_place_only() -> None:
    text = vary(published_table()).text
    position = len(text) + 2
    with pytest.raises(InputError) as caught:
        parse_expression(f"{text} -nope=1", published_table())
    shown, caret = caught.value.problem.splitlines()[-2:]
    assert caught.value.field == f"character {position + 1}"
    assert len(shown) < 140
    assert shown[caret.index("^") :].startswith("nope=1")


def test_one_route_leaves_defaults_out_and_takes_no_list() -> None:
    assert parse_route("-opt2=2 -opt1=on", TABLE).text == "-opt1=on"
    with pytest.raises(InputError, match="is a list"):
        parse_route("-opt1=[on|off]", TABLE)


terms = st.one_of(
    [
        st.builds(Term, st.just(one), st.permutations(one.values).map(tuple), st.just(False))
        | st.builds(Term, st.just(one), st.sampled_from(one.values).map(lambda value: (value,)), st.just(True))
        for one in TABLE
        if one.bounded
    ]
    + [
        st.builds(
            Term,
            st.just(TABLE.knobs[-1]),
            st.lists(st.integers(-(2**31), 2**31 - 1).map(str), min_size=1, max_size=4, unique=True).map(tuple),
            st.just(False),
        )
    ]
)
expressions = st.lists(terms, min_size=1, unique_by=lambda term: term.knob.name).map(tuple).map(Expression)


@given(expressions)
def test_printed_expressions_parse_to_themselves(expression: Expression) -> None:
    assert parse_expression(expression.text, TABLE) == expression


@given(st.text(alphabet="-=[]|. \t\nopt12anykge:3b0…\x00", max_size=60) | st.text(max_size=60))
def test_any_text_parses_or_is_refused_with_its_place(text: str) -> None:
    try:
        expression = parse_expression(text, TABLE)
    except InputError as error:
        assume(text.strip())
        assert error.field is not None
        place = int(error.field.removeprefix("character "))
        assert 1 <= place <= len(text) + 1
        return
    assert parse_expression(expression.text, TABLE) == expression
