"""The outbox: every event of every asset, written with the state it belongs to, read by the relay.

It is the event store and the audit trail as well: rows are never changed but for their publication, nor deleted.
"""

from darkroom.outbox.rows import COLLECTION, SHARDS, from_row, shard_of, to_row

__all__ = ["COLLECTION", "SHARDS", "from_row", "shard_of", "to_row"]
