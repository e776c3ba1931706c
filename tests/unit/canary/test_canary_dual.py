"""Every request to both arms, without a server: an arm that nobody answers for fails, and does not hang the other."""

import socket

from optimizer.canary.dual import HOPELESS, DualSender


def test_an_arm_without_a_server_fails_and_ends_the_run_early():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # Bound but not listening: connections are refused, and nobody else gets the port.
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        with DualSender((url, url), ("a", "b"), [b""]) as sender:
            exchanges = sender.run([0] * 1000, in_flight=2)
    assert HOPELESS <= len(exchanges) < 1000
    for exchange in exchanges:
        assert exchange.open == 0
        assert exchange.answers == [None, None]
        assert all("UNAVAILABLE" in str(failure) for failure in exchange.failures)


def test_an_arm_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        with DualSender((url, url), ("a", "b"), [b""]) as sender:
            exchanges = sender.run([0] * 20, in_flight=8, timeout_s=0.1)
    assert 0 < len(exchanges) < 20
    assert all("DEADLINE_EXCEEDED" in str(exchange.failures[1]) for exchange in exchanges[:8])
