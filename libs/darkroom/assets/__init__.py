"""The asset: its states, its transitions, and the fold of its stream. Pure; knows no driver."""

from darkroom.assets.asset import Asset, IllegalTransition, Status, Upload, apply, fold
from darkroom.assets.change import Change, change
from darkroom.assets.documents import from_document, guard, to_document, update

__all__ = [
    "Asset",
    "Change",
    "IllegalTransition",
    "Status",
    "Upload",
    "apply",
    "change",
    "fold",
    "from_document",
    "guard",
    "to_document",
    "update",
]
