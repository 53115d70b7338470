"""Java's default partitioner, to know beforehand where a record will go."""

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that ``murmur2_random`` gives a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """MurmurHash2 with Kafka's seed, as an unsigned 32-bit number."""
    state = (_SEED ^ len(data)) & _MASK
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK ^ word
    if rest := data[whole:]:
        state = (state ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15
