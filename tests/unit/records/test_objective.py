import math

import pytest

from optimizer.errors import InputError
from optimizer.records.engine import Engine
from optimizer.records.measurement import Measurement, Resources, Workload
from optimizer.records.objective import (
    Objective,
    ObjectiveKind,
    log_ratio,
    pareto_front,
    parse_constraint,
    parse_objective,
)


def measured(throughput=100.0, p99=20_000.0, mean=8_000.0, **resources):
    return Measurement(
        candidate_id="c",
        workload=Workload(),
        started_at=0.0,
        duration_s=2.0,
        requests=200,
        inferences=200,
        failures={},
        throughput=throughput,
        latency_mean_us=mean,
        percentiles_us={} if p99 is None else {"p50": 7_000.0, "p99": p99},
        resources=Resources(**resources),
    )


@pytest.mark.parametrize(
    ("text", "kind", "percentile", "name"),
    [
        ("throughput", ObjectiveKind.THROUGHPUT, "", "throughput"),
        ("p99", ObjectiveKind.LATENCY, "p99", "p99 latency"),
        ("p99 latency", ObjectiveKind.LATENCY, "p99", "p99 latency"),
        ("latency_p50", ObjectiveKind.LATENCY, "p50", "p50 latency"),
        ("Mean latency", ObjectiveKind.LATENCY, "mean", "mean latency"),
        ("p99.9", ObjectiveKind.LATENCY, "p99.9", "p99.9 latency"),
        ("energy", ObjectiveKind.ENERGY, "", "energy per inference"),
        ("cost", ObjectiveKind.COST, "", "cost per inference"),
        ("rate:p99_ms<=20", ObjectiveKind.RATE_UNDER_SLO, "", "rate under p99_ms<=20"),
    ],
)
def test_objectives_are_understood(text, kind, percentile, name):
    objective = parse_objective(text)
    assert (objective.kind, objective.percentile, objective.name) == (kind, percentile, name)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("troughput", "throughput\\?"),
        ("p100", "one of throughput"),
        ("", "one of throughput"),
        ("rate:memory_mb<=4", "an SLO is a latency"),
        ("rate:plan_mb<=4", "an SLO is a latency"),
        ("p99 p50", "one of"),
    ],
)
def test_wrong_objectives_are_refused_with_the_field(text, complaint):
    with pytest.raises(InputError, match=complaint) as refused:
        parse_objective(text)
    assert refused.value.field == "judge.objective"
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "metric", "limit"),
    [
        ("p99_ms<=20", "p99", 20_000),
        ("p99 <= 20 ms", "p99", 20_000),
        ("p99.9_us<1500", "p99.9", 1500),
        ("mean<=1e-3s", "mean", 1000),
        ("latency_ms<=3", "mean", 3000),
        ("memory_mb<=4000", "memory", 4e9),
        ("gpu_memory<=8GiB", "gpu_memory", 8 * 2**30),
        ("host_memory_gb<=1.5", "host_memory", 1.5e9),
        ("plan_size_mb<=500", "plan", 5e8),
        ("power_w<=300", "power", 300),
    ],
)
def test_constraints_are_understood(text, metric, limit):
    constraint = parse_constraint(text)
    assert (constraint.metric, constraint.limit) == (metric, pytest.approx(limit))
    assert constraint.name == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("p99_ms>=20", "METRIC_UNIT<=NUMBER"),
        ("p99<=20", "no unit"),
        ("p99_mb<=20", "the unit mb"),
        ("p99_ms<=20ms", "one unit"),
        ("memroy_mb<=20", "memory\\?"),
        ("p99_ms<=1.2.3", "a number"),
        ("", "METRIC_UNIT<=NUMBER"),
    ],
)
def test_wrong_constraints_are_refused(text, complaint):
    with pytest.raises(InputError, match=complaint):
        parse_constraint(text)


def test_a_limit_itself_is_kept_and_more_is_not():
    constraint = parse_constraint("p99_ms<=20")
    assert constraint.violation(measured(p99=20_000.0)) is None
    assert constraint.violation(measured(p99=20_001.0)) == "p99_ms<=20: p99 is 20.001 ms"


@pytest.mark.parametrize(
    ("text", "measurement"),
    [
        ("p99_ms<=20", measured(p99=None)),
        ("p95_ms<=20", measured()),
        ("mean_ms<=20", measured(mean=math.nan)),
        ("memory_mb<=4000", measured()),
        ("gpu_memory_mb<=4000", measured(server_rss_bytes=1)),
        ("power_w<=300", measured()),
        ("plan_mb<=500", measured()),
    ],
)
def test_the_unknown_satisfies_no_constraint(text, measurement):
    assert "is unknown" in parse_constraint(text).violation(measurement)


def test_memory_is_the_devices_where_there_is_one():
    constraint = parse_constraint("memory_mb<=100")
    assert constraint.violation(measured(server_rss_bytes=50_000_000)) is None
    assert "200.0 MB" in constraint.violation(measured(server_rss_bytes=50_000_000, gpu_memory_bytes=200_000_000))


def test_the_size_of_the_plan_is_the_engines():
    engine = Engine("e", "f", {}, "0", 600_000_000, 1.0, "b")
    assert "600.0 MB" in parse_constraint("plan_mb<=500").violation(measured(), engine)
    assert parse_constraint("plan_mb<=600").violation(measured(), engine) is None


@pytest.mark.parametrize(
    ("objective", "reference", "candidate", "ratio"),
    [
        ("throughput", measured(throughput=100), measured(throughput=125), math.log(1.25)),
        ("p99", measured(p99=20_000), measured(p99=10_000), math.log(2)),
        ("mean", measured(mean=1_000), measured(mean=2_000), -math.log(2)),
        ("energy", measured(gpu_energy_j=100.0), measured(gpu_energy_j=80.0), math.log(1.25)),
        ("energy", measured(gpu_power_w=100.0), measured(gpu_energy_j=100.0), math.log(2)),
        (
            "energy",
            measured(gpu_energy_j=1.0, throughput=100),
            measured(gpu_energy_j=1.0, throughput=125),
            math.log(1.25),
        ),
        ("cost", measured(throughput=100), measured(throughput=125), math.log(1.25)),
    ],
)
def test_positive_is_always_better(objective, reference, candidate, ratio):
    assert log_ratio(parse_objective(objective), reference, candidate) == pytest.approx(ratio)
    assert log_ratio(parse_objective(objective), candidate, reference) == pytest.approx(-ratio)


@pytest.mark.parametrize(
    ("objective", "reference", "candidate"),
    [
        ("throughput", measured(), measured(throughput=0.0)),
        ("p99", measured(), measured(p99=None)),
        ("energy", measured(), measured(gpu_energy_j=1.0)),
        ("energy", measured(gpu_energy_j=1.0), measured(gpu_energy_j=1.0, throughput=0.0)),
        ("cost", measured(throughput=0.0), measured()),
        ("mean", measured(mean=math.nan), measured()),
    ],
)
def test_the_unknown_gives_no_ratio(objective, reference, candidate):
    assert log_ratio(parse_objective(objective), reference, candidate) is None


def test_rate_under_an_slo_is_the_highest_that_keeps_it():
    objective = parse_objective("rate:p99_ms<=20")
    ladder = [measured(100, 5_000), measured(200, 19_000), measured(300, 21_000), measured(400, None)]
    assert objective.value(ladder) == 200
    assert objective.value(measured(300, 21_000)) is None
    better = [measured(150, 5_000), measured(250, 20_000)]
    assert log_ratio(objective, ladder, better) == pytest.approx(math.log(250 / 200))
    with pytest.raises(ValueError, match="needs the SLO"):
        Objective(ObjectiveKind.RATE_UNDER_SLO).value(ladder)


def test_the_front_holds_what_nothing_beats_on_all_counts():
    objectives = [parse_objective("throughput"), parse_objective("p99")]
    windows = {
        "fast": measured(200, 30_000),
        "slow_but_quick": measured(100, 10_000),
        "beaten": measured(90, 12_000),
        "middle": measured(150, 20_000),
        "twin": measured(150, 20_000),
        "unknown": measured(999, None),
    }
    assert pareto_front(windows, objectives) == ("fast", "slow_but_quick", "middle", "twin")
    assert pareto_front(windows, objectives[:1]) == ("unknown",)
    assert pareto_front({}, objectives) == ()
