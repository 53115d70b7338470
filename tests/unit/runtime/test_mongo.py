"""What a server's answer to ``hello`` says about transactions."""

import pytest

from darkroom.runtime.mongo import NotAReplicaSet, check_replica_set


@pytest.mark.parametrize("hello", [{"setName": "rs0"}, {"msg": "isdbgrid"}])
def test_replica_sets_and_routers_keep_transactions(hello: dict[str, str]) -> None:
    check_replica_set(hello)


def test_a_standalone_server_is_refused_with_the_way_out() -> None:
    with pytest.raises(NotAReplicaSet, match=r"DARKROOM_MONGO_URL.*--replSet rs0"):
        check_replica_set({"isWritablePrimary": True})
