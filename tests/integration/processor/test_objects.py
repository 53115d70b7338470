"""The bucket: what is read, what is written once, and what a store that misbehaves leads to."""

import os
import socketserver
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pytest
from botocore.response import StreamingBody

from darkroom.inbox import LeaseLost
from darkroom.runtime.signer import Signer
from processor.objects import (
    CHUNK,
    LARGEST_CHUNK,
    Bucket,
    CalledOff,
    DownloadRefused,
    ObjectMissing,
    StorageFailed,
)

from .conftest import direct_at, s3_at

NEVER = threading.Event()


def nothing() -> None:
    """The lease is still ours."""


@pytest.fixture(params=["direct", "by botocore"])
def store(request: pytest.FixtureRequest, s3: Any, bucket: str) -> Bucket:
    direct = direct_at(s3, bucket) if request.param == "direct" else None
    return Bucket(s3, name=bucket, download_seconds=5, direct=direct)


class Deaf:
    """A client that must not be asked."""


def written(s3: Any, bucket: str, key: str = "k") -> bytes:
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()  # type: ignore[no-any-return]  # boto3 is untyped


def test_what_was_written_is_read(store: Bucket, s3: Any, bucket: str) -> None:
    store.store("k", b"bytes", content_type="image/jpeg", still_ours=nothing)
    fetched = store.fetch("k", version_id=None, size=5, cancelled=NEVER)
    assert (b"".join(fetched.chunks), fetched.version_id) == (b"bytes", None)
    head = s3.head_object(Bucket=bucket, Key="k")
    assert (head["ContentType"], head["CacheControl"]) == ("image/jpeg", "private, max-age=31536000, immutable")


def test_the_named_version_is_read(store: Bucket, s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"first")["VersionId"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"second")
    fetched = store.fetch("k", version_id=first, size=5, cancelled=NEVER)
    assert (b"".join(fetched.chunks), fetched.version_id) == (b"first", first)


@pytest.mark.parametrize("size", [4, 6])
def test_another_size_than_expected_is_refused(store: Bucket, s3: Any, bucket: str, size: int) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"bytes")
    with pytest.raises(DownloadRefused) as caught:
        store.fetch("k", version_id=None, size=size, cancelled=NEVER)
    assert caught.value.size == 5


def test_a_missing_object_is_told_apart(store: Bucket) -> None:
    with pytest.raises(ObjectMissing):
        store.fetch("k", version_id=None, size=5, cancelled=NEVER)


def test_equal_bytes_are_not_written_again(store: Bucket, s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    asked: list[int] = []
    for _ in range(2):
        store.store("k", b"bytes", content_type="image/jpeg", still_ours=lambda: asked.append(1))
    assert asked == []
    assert len(s3.list_object_versions(Bucket=bucket)["Versions"]) == 1


def test_other_bytes_are_replaced_by_the_holder(store: Bucket, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"of an earlier release")
    store.store("k", b"bytes", content_type="image/jpeg", still_ours=nothing)
    assert written(s3, bucket) == b"bytes"


def test_an_overtaken_worker_does_not_replace_its_successors_bytes(store: Bucket, s3: Any, bucket: str) -> None:
    def lost() -> None:
        raise LeaseLost

    store.store("k", b"the successor's", content_type="image/jpeg", still_ours=nothing)
    with pytest.raises(LeaseLost):
        store.store("k", b"mine", content_type="image/jpeg", still_ours=lost)
    assert written(s3, bucket) == b"the successor's"


def test_a_worker_overtaken_between_asking_and_writing_does_not_either(store: Bucket, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"of an earlier release")

    def stalled() -> None:
        # The lease was still ours when asked; then we stood still, and the successor wrote.
        store.store("k", b"the successor's", content_type="image/jpeg", still_ours=nothing)

    with pytest.raises(StorageFailed, match="PreconditionFailed"):
        store.store("k", b"mine", content_type="image/jpeg", still_ours=stalled)
    assert written(s3, bucket) == b"the successor's"


def test_work_that_is_called_off_stops_reading(store: Bucket, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"bytes")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CalledOff):
        store.fetch("k", version_id=None, size=5, cancelled=cancelled)


THREE_MEGABYTES = b'HTTP/1.1 200 OK\r\nContent-Length: 3145728\r\nETag: "e"\r\n\r\n'


@contextmanager
def answering(write: Callable[[Any], object], *, head: bytes = THREE_MEGABYTES) -> Iterator[str]:
    """An endpoint that answers every request with `head`, behind which `write` sends what it likes."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(head)
            write(self.wfile)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """The client went away, as it should."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def fetch_from(endpoint: str, *, seconds: float, read_timeout: float = 5.0) -> None:
    client = s3_at(endpoint, read_timeout=read_timeout)
    bucket = Bucket(client, name="b", download_seconds=seconds, direct=direct_at(client, "b"))
    try:
        bucket.fetch("k", version_id=None, size=3 * 2**20, cancelled=NEVER)
    finally:
        client.close()


def test_a_download_that_is_cut_is_a_storage_failure() -> None:
    with answering(lambda out: out.write(bytes(1000))) as endpoint, pytest.raises(StorageFailed):
        fetch_from(endpoint, seconds=5)


def test_a_download_that_hangs_is_a_storage_failure() -> None:
    over = threading.Event()
    with answering(lambda _: over.wait(10)) as endpoint, pytest.raises(StorageFailed):
        fetch_from(endpoint, seconds=5, read_timeout=0.3)
    over.set()


def test_a_download_that_trickles_ends_at_its_deadline() -> None:
    over = threading.Event()

    def trickle(out: Any) -> None:
        while not over.wait(0.05):
            out.write(bytes(2000))

    with answering(trickle) as endpoint, pytest.raises(StorageFailed, match="took more than"):
        fetch_from(endpoint, seconds=0.4)
    over.set()


def amounts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of a download asks for, as they are asked for."""
    asked: list[int] = []
    read = StreamingBody.read

    def noted(body: Any, amount: int) -> bytes:
        asked.append(amount)
        return bytes(read(body, amount))

    monkeypatch.setattr(StreamingBody, "read", noted)
    return asked


def test_a_fast_download_is_read_in_ever_larger_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("processor.objects.FAST_SECONDS", 60.0)
    asked = amounts(monkeypatch)
    with answering(lambda out: out.write(bytes(3 * 2**20))) as endpoint:
        fetch_from(endpoint, seconds=60)
    assert asked[:8] == [CHUNK * 2**doubled for doubled in range(7)] + [LARGEST_CHUNK]
    assert set(asked[8:]) <= {LARGEST_CHUNK}


def test_a_slow_download_is_read_in_small_pieces_so_that_its_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("processor.objects.FAST_SECONDS", 0.0)
    asked = amounts(monkeypatch)
    with answering(lambda out: out.write(bytes(3 * 2**20))) as endpoint:
        fetch_from(endpoint, seconds=60)
    assert set(asked) == {CHUNK}


@pytest.mark.parametrize("size", [5, 3 * 2**20])
def test_the_digest_is_that_of_all_bytes(store: Bucket, s3: Any, bucket: str, size: int) -> None:
    data = os.urandom(size)
    s3.put_object(Bucket=bucket, Key="k", Body=data)
    fetched = store.fetch("k", version_id=None, size=size, cancelled=NEVER, hashed=True)
    assert b"".join(fetched.chunks) == data
    assert fetched.sha256 == b64encode(sha256(data).digest()).decode()
    assert store.fetch("k", version_id=None, size=size, cancelled=NEVER).sha256 is None


def test_what_succeeds_at_once_does_not_go_through_botocore(s3: Any, bucket: str) -> None:
    store = Bucket(Deaf(), name=bucket, download_seconds=5, direct=direct_at(s3, bucket))
    store.store("k", b"bytes", content_type="image/jpeg", still_ours=nothing)
    fetched = store.fetch("k", version_id=None, size=5, cancelled=NEVER, hashed=True)
    assert b"".join(fetched.chunks) == b"bytes"
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert fetched.etag == head["ETag"].strip('"')
    assert head["ChecksumSHA256"] == fetched.sha256
    assert (head["ContentType"], head["CacheControl"]) == ("image/jpeg", "private, max-age=31536000, immutable")


def test_bytes_that_are_not_those_of_the_checksum_are_not_written(s3: Any, bucket: str) -> None:
    direct = direct_at(s3, bucket)
    other = b64encode(sha256(b"other").digest()).decode()
    assert not direct.put("k", b"bytes", content_type="image/jpeg", cache_control="private", sha256=other)
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_an_answer_that_was_lost_is_no_second_write(s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    direct = direct_at(s3, bucket)
    put = direct.put

    def lost(*args: Any, **given: Any) -> bool:
        assert put(*args, **given)
        return False

    monkeypatch.setattr(direct, "put", lost)
    store = Bucket(s3, name=bucket, download_seconds=5, direct=direct)
    store.store("k", b"bytes", content_type="image/jpeg", still_ours=nothing)
    assert len(s3.list_object_versions(Bucket=bucket)["Versions"]) == 1


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs that were signed so far, which are not what is sent: that lacks the last digit."""
    urls: list[str] = []
    sign = Signer.url

    def spoilt(*args: Any, **given: Any) -> str:
        urls.append(sign(*args, **given))
        return urls[-1][:-1]

    monkeypatch.setattr(Signer, "url", spoilt)
    return urls


def test_a_store_that_takes_no_signed_urls_is_asked_by_botocore_from_then_on(
    s3: Any, bucket: str, signed: list[str]
) -> None:
    store = Bucket(s3, name=bucket, download_seconds=5, direct=direct_at(s3, bucket))
    for number in range(3):
        store.store(f"{number}", b"bytes", content_type="image/jpeg", still_ours=nothing)
        assert b"".join(store.fetch(f"{number}", version_id=None, size=5, cancelled=NEVER).chunks) == b"bytes"
    assert len(signed) == 1


def test_what_was_refused_is_tried_again_some_time(
    s3: Any, bucket: str, signed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("processor.direct.REFUSED_SECONDS", 0.0)
    store = Bucket(s3, name=bucket, download_seconds=5, direct=direct_at(s3, bucket))
    for number in range(3):
        store.store(f"{number}", b"bytes", content_type="image/jpeg", still_ours=nothing)
    assert len(signed) == 3


def test_a_store_out_of_reach_is_told_as_botocore_tells_it_and_not_waited_for_twice(signed: list[str]) -> None:
    client = s3_at("http://127.0.0.1:9", connect_timeout=1)
    store = Bucket(client, name="b", download_seconds=5, direct=direct_at(client, "b"))
    with pytest.raises(StorageFailed, match="Could not connect"):
        store.fetch("k", version_id=None, size=5, cancelled=NEVER)
    with pytest.raises(StorageFailed, match="Could not connect"):
        store.store("k", b"bytes", content_type="image/jpeg", still_ours=nothing)
    client.close()
    assert len(signed) == 1


def test_a_store_in_trouble_is_left_to_botocore_for_a_while(signed: list[str]) -> None:
    busy = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with answering(lambda _: None, head=busy) as endpoint:
        client = s3_at(endpoint)
        store = Bucket(client, name="b", download_seconds=5, direct=direct_at(client, "b"))
        for _ in range(2):
            with pytest.raises(StorageFailed, match="503"):
                store.fetch("k", version_id=None, size=5, cancelled=NEVER)
        client.close()
    assert len(signed) == 1


GOOD = b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "e"\r\nConnection: close\r\n\r\nbytes'


@pytest.mark.parametrize(
    ("odd", "attempts"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nbytes", 1),
        (b'HTTP/1.1 200 OK\r\nETag: "e"\r\nConnection: close\r\n\r\nbytes', 1),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\nConnection: close\r\n\r\n<p>no</p>", 1),
        (b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 1),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "e"\r\nConnection: close\r\n\r\nby', 2),
    ],
    ids=["no ETag", "no length", "a page", "moved", "cut"],
)
def test_what_only_signed_urls_are_answered_wrongly_botocore_gets(
    odd: bytes, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            asked.append(b"X-Amz-Signature" in line)
            self.wfile.write(odd if asked[-1] else GOOD)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        client = s3_at(f"http://127.0.0.1:{server.server_address[1]}")
        store = Bucket(client, name="b", download_seconds=5, direct=direct_at(client, "b"))
        for attempt in range(1, 4):
            if attempt < attempts:
                with pytest.raises(StorageFailed):
                    store.fetch("k", version_id=None, size=5, cancelled=NEVER)
            else:
                assert b"".join(store.fetch("k", version_id=None, size=5, cancelled=NEVER).chunks) == b"bytes"
        client.close()
        server.shutdown()
        thread.join()
    assert asked.count(True) == 1, "and botocore alone is asked for a while"
