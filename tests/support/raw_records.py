"""Records that no well-behaved client sends, through librdkafka itself."""

import ctypes
from pathlib import Path

import confluent_kafka

TOPIC, PARTITION, VALUE, KEY, HEADER, END = 1, 3, 4, 5, 9, 0
"""librdkafka's rd_kafka_vtype_t."""
PRODUCER = 0
PATIENCE_MS = 10_000


def produce_with_header(bootstrap: str, topic: str, *, key: bytes, value: bytes, header: bytes) -> None:
    """One record to partition 0 with a header of any name, also one that is no UTF-8."""
    lib = ctypes.CDLL(str(_library()))
    lib.rd_kafka_conf_new.restype = lib.rd_kafka_new.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
    assert lib.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), error, len(error)) == 0, error.value
    client = ctypes.c_void_p(lib.rd_kafka_new(PRODUCER, conf, error, len(error)))
    assert client.value, error.value
    size = ctypes.c_size_t
    refused = lib.rd_kafka_producev(
        client,
        *(TOPIC, topic.encode()),
        *(PARTITION, ctypes.c_int32(0)),
        *(KEY, key, size(len(key))),
        *(VALUE, value, size(len(value))),
        *(HEADER, header, b"x", ctypes.c_ssize_t(1)),
        END,
    )
    assert refused == 0
    assert lib.rd_kafka_flush(client, PATIENCE_MS) == 0
    lib.rd_kafka_destroy(client)


def _library() -> Path:
    """The librdkafka that came with the Python client."""
    package = Path(confluent_kafka.__file__).parent
    return next(package.parent.glob("confluent_kafka.libs/librdkafka*.so*"))
