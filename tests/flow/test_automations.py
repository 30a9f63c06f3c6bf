"""The automations that `up` installs, on a server of Prefect."""

from datetime import timedelta
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient

from flows.installation import make_zombie_automations
from tests.prefect_server import own_server, prefect_api


@pytest.mark.timeout(300)
def test_automations_are_written_again_only_where_the_time_changes(tmp_path: Path) -> None:
    with own_server(tmp_path) as api:

        def written(within: timedelta | None) -> dict[float, str]:
            with SyncPrefectClient(api) as client:
                make_zombie_automations(client, within)
            found = prefect_api(api, "POST", "/automations/filter", {})
            return {one["trigger"]["within"]: one["updated"] for one in found}

        first = written(timedelta(seconds=60))
        assert set(first) == {60, 180}
        assert written(timedelta(seconds=60)) == first
        assert written(None) == first
        assert set(written(timedelta(seconds=90))) == {90, 270}
