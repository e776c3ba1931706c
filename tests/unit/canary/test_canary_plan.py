"""Plans, include files and what a server's counters say: by values."""

from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.canary.arms import samples_of
from optimizer.canary.nginx import check_nginx, include_text
from optimizer.canary.plan import (
    CanaryPlan,
    Endpoint,
    ProxyPlan,
    check_plan,
    detection_rate,
    inputs_digest,
    parse_endpoint,
    parse_margins,
    parse_steps,
    read_plan,
    write_plan,
)
from optimizer.canary.watch import Snapshot, change, failures_by_reason
from optimizer.errors import InputError
from optimizer.records.measurement import Arrival, Workload
from optimizer.repository.reader import read_model
from optimizer.testing.models import null_model

BASELINE = Endpoint("127.0.0.1:8001", "resnet", "127.0.0.1:8000")
OTHER_SERVER = Endpoint("127.0.0.1:9001", "resnet", "127.0.0.1:9000")
OTHER_MODEL = Endpoint("127.0.0.1:8001", "resnet_canary", "127.0.0.1:8000")
PLAN = CanaryPlan(
    BASELINE, OTHER_SERVER, ("shadow", "5", "25", "50", "100"), ("lInf<=0",), parse_margins([]),
    Workload(concurrency=8, duration_s=5.0),
)  # fmt: skip


def test_the_plan_survives_its_file(tmp_path):
    write_plan(tmp_path, PLAN)
    assert read_plan(tmp_path) == PLAN
    with pytest.raises(InputError, match="holds a canary already"):
        write_plan(tmp_path, PLAN)


def test_a_plan_of_a_later_version_is_refused(tmp_path):
    write_plan(tmp_path, replace(PLAN, schema=99))
    with pytest.raises(InputError, match="schema 99"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "5,25", "shadow", "25,5,100", "5,shadow,100", "0,100", "5,5,100", "5,x,100", "-5,100"]
)
def test_steps_that_are_none(text):
    with pytest.raises(InputError, match="--steps"):
        parse_steps(text)


def test_steps():
    assert parse_steps("shadow, 5%,100") == ("shadow", "5", "100")


def test_margins():
    assert parse_margins([]) == {"p50": 0.05, "p90": 0.05, "p99": 0.05, "throughput": 0.03}
    assert parse_margins(["latency=10%,p99=0.5", "throughput = 1%"]) == {
        "p50": 0.1, "p90": 0.1, "p99": 0.5, "throughput": 0.01,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["5%", "p98=1%", "latency=-1%", "latency=1.2.3", "throughput=100%", "p50=x"])
def test_margins_that_are_none(text):
    with pytest.raises(InputError, match="--margin"):
        parse_margins([text])


def test_endpoints():
    assert parse_endpoint("h:1/m", "--b", model="other", http="http://h:2/", metrics="h:3/metrics") == Endpoint(
        "h:1", "m", "h:2", "h:3"
    )
    assert parse_endpoint("h:1", "--b", model="m", http=None, metrics=None) == Endpoint("h:1", "m")
    for text, model in (("h:1", None), ("h", "m"), ("http://h:1", "m"), ("h:1/a/b", None)):
        with pytest.raises(InputError, match="--b"):
            parse_endpoint(text, "--b", model=model, http=None, metrics=None)


def test_rates():
    assert detection_rate("1/1000") == 1e-3 == detection_rate("0.001")
    for text in ("1", "0", "x", "1/0"):
        with pytest.raises(InputError, match="--detect"):
            detection_rate(text)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"tolerances": ()}, "--tolerance"),
        ({"candidate": BASELINE}, "--candidate"),
        ({"workload": Workload(Arrival.TRACE, trace="/none")}, "--trace"),
        ({"min_pairs": 8, "max_pairs": 4}, "--min-pairs"),
    ],
)
def test_plans_that_are_refused(changed, field):
    with pytest.raises(InputError, match=field):
        check_plan(replace(PLAN, **changed))


def test_a_trace_is_the_one_that_was_planned_with_and_names_samples_that_are_there(tmp_path):
    null_model("m").write(tmp_path / "models")
    model = read_model(tmp_path / "models", "m")
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at_s": 0}')
    plan = replace(
        PLAN, workload=Workload(Arrival.TRACE, trace=str(trace)), trace_sha256=inputs_digest(trace), synthetic_count=4
    )
    assert len(samples_of(plan, model)) == 4
    trace.write_text('{"at_s": 1}')
    with pytest.raises(InputError, match=r"trace\.jsonl: is not the file that was planned with"):
        samples_of(plan, model)
    assert len(samples_of(replace(plan, trace_sha256=None), model)) == 4
    trace.write_text('{"at_s": 0, "sample": "absent"}')
    with pytest.raises(InputError, match="no sample has the id 'absent'"):
        samples_of(plan, model)


def test_slices_are_parts_of_the_load_and_equal_for_both():
    assert [PLAN.workload_at(step).concurrency for step in PLAN.steps] == [8, 1, 2, 4, 8]
    open_loop = replace(PLAN, workload=Workload(Arrival.POISSON, rate_per_s=200.0))
    assert [open_loop.workload_at(step).rate_per_s for step in ("5", "100")] == [10.0, 200.0]


def test_the_first_step_makes_the_comparisons_and_the_last_two_ask_for_the_p99():
    rules = [PLAN.rules_at(step) for step in PLAN.steps]
    assert [each.comparisons for each in rules] == [4603, 459, 459, 459, 459]
    assert [each.p99_required for each in rules] == [False, False, False, True, True]


def test_looks_double():
    assert replace(PLAN, min_pairs=3, max_pairs=30).looks() == (3, 6, 12, 24)


def servers(text, upstream):
    block = text.split(f"upstream {upstream} {{")[1].split("}")[0]
    return [line.strip() for line in block.splitlines() if line.strip().startswith("server")]


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        (0, ["server 127.0.0.1:8001;", "server 127.0.0.1:9001 down;"]),
        (25, ["server 127.0.0.1:8001 weight=75;", "server 127.0.0.1:9001 weight=25;"]),
        (100, ["server 127.0.0.1:8001 backup;", "server 127.0.0.1:9001;"]),
    ],
)
def test_weights_of_two_servers(percent, expected):
    text = include_text(BASELINE, OTHER_SERVER, percent)
    assert servers(text, "triton_canary_grpc") == expected
    assert servers(text, "triton_canary_http") == [line.replace("001", "000") for line in expected]
    assert f"# candidate weight: {percent}%\n" in text


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, ['* "resnet";']), (5, ['5% "resnet_canary";', '* "resnet";']), (100, ['* "resnet_canary";'])],
)
def test_shares_of_two_models(percent, expected):
    text = include_text(BASELINE, OTHER_MODEL, percent)
    block = text.split("$triton_canary_model {")[1].split("}")[0]
    assert [line.strip() for line in block.splitlines() if line.strip()] == expected


def test_what_nginx_cannot_split_is_refused_or_said():
    plan = replace(PLAN, proxy=ProxyPlan(directory="/none"))
    assert check_nginx(plan, OTHER_SERVER) == []
    assert "gRPC names the model" in check_nginx(plan, OTHER_MODEL)[0]
    with pytest.raises(InputError, match="same name on both"):
        check_nginx(plan, replace(OTHER_SERVER, model="other"))
    with pytest.raises(InputError, match="--baseline-http"):
        check_nginx(replace(plan, baseline=replace(BASELINE, http_url=None)), replace(OTHER_MODEL, http_url=None))


METRICS = """\
# HELP nv_inference_request_failure Number of failed inference requests
nv_inference_request_failure{model="a",reason="BACKEND",version="1"} 2
nv_inference_request_failure{model="a",reason="BACKEND",version="2"} 1
nv_inference_request_failure{model="a",reason="REJECTED",version="1"} 0
nv_inference_request_failure{model="b",reason="BACKEND",version="1"} 7
nv_inference_request_success{model="a",version="1"} 9
"""


def test_failures_by_reason():
    assert failures_by_reason(METRICS, "a") == {"BACKEND": 3}


def seen(done=10, failed=0, *, reachable=True, process=(7, 1.0), **more):
    return Snapshot(reachable, (done, failed) if reachable else None, process=process, **more)


def test_counters_that_grow_are_requests():
    after = seen(20, 3, failures={"BACKEND": 5})
    before = seen(10, 1, failures={"BACKEND": 4})
    found = change(before, after)
    # Of two failures the metrics named one: they lag behind the statistics.
    assert (found.requests, found.failures, found.restarted) == (12, {"BACKEND": 1, "unnamed": 1}, "")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (seen(reachable=False, problem="UNAVAILABLE"), "does not answer"),
        (seen(process=(8, 2.0)), "another process"),
        (seen(process=(7, 2.0)), "another process"),
        (seen(process=None), "is gone"),
        (seen(3), "loaded again"),
    ],
)
def test_restarts_show(after, words):
    assert words in change(seen(), after).restarted


def test_a_directory_without_a_plan_is_said(tmp_path: Path):
    with pytest.raises(InputError, match="canary plan"):
        read_plan(tmp_path)
