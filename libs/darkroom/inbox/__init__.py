"""Handle every event once in effect: leases with fences, and consumption that is ordered by key and parallel.

What a consumer of Darkroom's events builds on: ``Inbox`` (who works on an event, and whether it is done) and
``OrderedConsumer`` (which event is worked on next, and which offset may be committed).
"""

from darkroom.inbox.inbox import Inbox
from darkroom.inbox.leases import SHORTEST_WAIT, Claim, Claimed, Done, HeldElsewhere, Lease, LeaseLost

__all__ = ["SHORTEST_WAIT", "Claim", "Claimed", "Done", "HeldElsewhere", "Inbox", "Lease", "LeaseLost"]
