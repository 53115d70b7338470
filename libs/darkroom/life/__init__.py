"""What time does to assets: uploads that never came expire, what was trashed is purged, and objects are removed."""

from darkroom.life.objects import ObjectStore, RemovalFailed
from darkroom.life.sweep import Sweeper, Swept

__all__ = ["ObjectStore", "RemovalFailed", "Sweeper", "Swept"]
