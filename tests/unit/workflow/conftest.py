"""A destination to ask: a server behind TLS that answers with the user's own words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.route.cloud.servers import Authority, RawServer
from tests.unit.workflow.worlds import echo


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[RawServer]:
    with RawServer(echo, tls=authority.context()).running() as found:
        yield found
