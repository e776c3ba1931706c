"""Write-back on a server that goes on serving: no request fails, and every answer is the old or the new version's."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_rounds import NAME, options_applied, rounds, study, write_model
from production_server import production_server

from optimizer.apply import rollback
from optimizer.durable import sha256_tree
from optimizer.errors import WriteBackRefused

pytestmark = pytest.mark.system


def test_no_request_is_lost_while_versions_come_and_go(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository)
    preparation = study(repository, tmp_path / "study")
    with production_server(repository, tmp_path / "server", models=[NAME]) as server:
        traffic, rows = rounds(preparation, server.url, 3, 100.0)
        assert server.ready(NAME) == [1]
    assert traffic.failures == {}
    assert traffic.wrong == []
    # A number that the server still holds, unloading, is not given again.
    assert set(traffic.versions) == {"1", *(str(row["version"]) for row in rows)}
    assert all(row["same_tree"] for row in rows)
    assert sum(traffic.versions.values()) == traffic.sent


@pytest.mark.parametrize("mode", ["poll", "none"])
def test_a_server_that_does_not_load_on_request_is_refused(tmp_path: Path, mode: str) -> None:
    repository = tmp_path / "models"
    write_model(repository)
    preparation = study(repository, tmp_path / "study")
    with production_server(repository, tmp_path / "server", mode=mode) as server:
        # The server itself leaves bytecode beside model.py.
        before = sha256_tree(repository)
        with pytest.raises(WriteBackRefused, match="explicit"):
            options_applied(preparation, server.url)
        with pytest.raises(WriteBackRefused, match="explicit"):
            rollback(repository, NAME, server_url=server.url)
    assert sha256_tree(repository) == before
