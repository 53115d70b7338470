"""What a server's answer to ``hello`` says about transactions."""

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from darkroom.runtime.mongo import NotAReplicaSet, check_replica_set, connect, reason


@pytest.mark.parametrize("hello", [{"setName": "rs0"}, {"msg": "isdbgrid"}])
def test_replica_sets_and_routers_keep_transactions(hello: dict[str, str]) -> None:
    check_replica_set(hello)


def test_a_standalone_server_is_refused_with_the_way_out() -> None:
    with pytest.raises(NotAReplicaSet, match=r"DARKROOM_MONGO_URL.*--replSet rs0"):
        check_replica_set({"isWritablePrimary": True})


def test_times_are_the_urls_and_guarantees_are_ours() -> None:
    url = "mongodb://127.0.0.1:1/?replicaSet=rs0"
    with connect(url) as client:
        assert (client.options.server_selection_timeout, client.options.pool_options.connect_timeout) == (10, 5)
    with connect(f"{url}&serverselectiontimeoutms=200&w=1&readConcernLevel=local") as client:
        assert (client.options.server_selection_timeout, client.options.pool_options.connect_timeout) == (0.2, 5)
        assert client.write_concern.document == {"w": "majority"}
        assert client.read_concern.level == "majority"


def test_what_went_wrong_is_told_without_the_picture_of_all_servers() -> None:
    error = ServerSelectionTimeoutError("h:1: refused, Timeout: 10s, Topology Description: <TopologyDescription …>")
    assert reason(error) == "h:1: refused, Timeout: 10s"
