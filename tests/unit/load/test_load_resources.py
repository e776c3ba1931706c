from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from optimizer.load.resources import (
    Readings,
    ResourceSampler,
    busy_fraction,
    metric,
    resources_of,
    triton_gpu_metrics,
)
from optimizer.records.measurement import Resources

METRICS = """\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests
nv_inference_pending_request_count{model="m",version="1"} 3
nv_inference_pending_request_count{model="m",version="2"} 4
nv_inference_pending_request_count{model="other",version="1"} 9
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.25
nv_gpu_power_usage{gpu_uuid="GPU-a"} nan
nv_energy_consumption{gpu_uuid="GPU-a"} 12.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1000000
"""


@pytest.fixture
def metrics_url() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_metrics_text() -> None:
    assert metric(METRICS, "nv_inference_pending_request_count", model="m") == 7
    assert metric(METRICS, "nv_inference_pending_request_count", model="absent") is None
    assert metric(METRICS, "nv_gpu_utilization", gpu_uuid="GPU-b") == 0.25
    assert metric(METRICS, "nv_gpu_utilization") is None, "of two GPUs: which one is unknown"
    assert triton_gpu_metrics(METRICS, "GPU-a") == {"memory_bytes": 1e6, "utilization": 0.5, "energy_j": 12.5}
    assert "utilization" not in triton_gpu_metrics(METRICS, "0")


def test_what_was_read() -> None:
    readings = Readings(
        server_rss=[5, 9, 7],
        pending=[0.0, 3.0],
        host_memory=[10, 20],
        gpu=[
            {"power_w": 100.0, "energy_j": 50.0, "limiting_reasons": 0.0, "memory_bytes": 7.0, "temperature_c": 40.0},
            {"power_w": 200.0, "energy_j": 80.0, "limiting_reasons": 4.0, "memory_bytes": 6.0, "temperature_c": 45.0},
        ],
        host_cpu=0.5,
    )
    assert resources_of(readings) == Resources(
        server_rss_bytes=9,
        gpu_memory_bytes=7,
        gpu_utilization=None,
        gpu_power_w=150.0,
        gpu_energy_j=30.0,
        gpu_temperature_c=45.0,
        gpu_throttled=True,
        host_cpu=0.5,
        host_memory_bytes=20,
        pending_mean=1.5,
        pending_max=3.0,
    )


def test_unknown_is_never_zero() -> None:
    assert resources_of(Readings()) == Resources()
    one_reading = resources_of(Readings(gpu=[{"energy_j": 5.0}]))
    assert one_reading.gpu_energy_j is None


def test_a_sampler_reads_while_it_runs(metrics_url: str) -> None:
    sampler = ResourceSampler(memory=lambda: 123, metrics_url=f"http://{metrics_url}/metrics", gpu="GPU-a")
    sampler.start("m")
    resources = sampler.stop()
    assert resources.server_rss_bytes == 123
    assert resources.pending_mean == 7
    assert resources.gpu_memory_bytes == 1_000_000, "without NVML, Triton's own metrics tell"
    assert resources.host_memory_bytes is not None
    sampler.close()


def test_a_sampler_without_sources_knows_only_the_host() -> None:
    sampler = ResourceSampler(memory=lambda: None, metrics_url="127.0.0.1:1")
    sampler.start("m")
    resources = sampler.stop()
    assert (resources.server_rss_bytes, resources.pending_mean, resources.gpu_power_w) == (None, None, None)
    sampler.close()


def test_busy_fraction_of_no_time_is_unknown() -> None:
    import psutil

    now = psutil.cpu_times()
    assert busy_fraction(now, now) is None
    assert busy_fraction(now, now._replace(user=now.user + 3, idle=now.idle + 1)) == pytest.approx(0.75)
