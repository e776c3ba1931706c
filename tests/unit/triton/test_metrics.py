from __future__ import annotations

import pytest

from optimizer.triton.metrics import address_of, metrics_text


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("127.0.0.1:8002", ("127.0.0.1", 8002)),
        ("http://host:8002/metrics", ("host", 8002)),
        ("[::1]:8002", ("::1", 8002)),
    ],
)
def test_addresses(url: str, address: tuple[str, int]) -> None:
    assert address_of(url) == address


def test_an_endpoint_that_does_not_answer_is_unknown() -> None:
    assert metrics_text("127.0.0.1:1") is None
