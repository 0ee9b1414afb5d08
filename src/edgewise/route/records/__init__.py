"""Decisions, recorded in the home without content where the policy says so, and told again."""

from edgewise.route.records.record import RouteRecord, record_of
from edgewise.route.records.recorder import Recorder
from edgewise.route.records.store import Cleared, Recorded, RecordStore

__all__ = ["Cleared", "RecordStore", "Recorded", "Recorder", "RouteRecord", "record_of"]
