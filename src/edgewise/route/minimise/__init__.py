"""Minimisation: identifiers are replaced by placeholders before anything leaves the device.

The way out is :func:`minimise`, the way back :class:`Restorer`. Between them stands a
:class:`PlaceholderMap`, which never leaves.
"""

from edgewise.route.minimise.detectors import default_detectors
from edgewise.route.minimise.folding import Folded, fold
from edgewise.route.minimise.leftovers import leftovers
from edgewise.route.minimise.minimising import (
    PLACEHOLDER_NOTE,
    FieldValue,
    Minimised,
    Replacement,
    minimise,
)
from edgewise.route.minimise.placeholders import PlaceholderMap
from edgewise.route.minimise.restore import Restorer, restore, restore_json
from edgewise.route.minimise.spans import Confidence, Detector, Kind, Span, resolve

__all__ = [
    "PLACEHOLDER_NOTE",
    "Confidence",
    "Detector",
    "FieldValue",
    "Folded",
    "Kind",
    "Minimised",
    "PlaceholderMap",
    "Replacement",
    "Restorer",
    "Span",
    "default_detectors",
    "fold",
    "leftovers",
    "minimise",
    "resolve",
    "restore",
    "restore_json",
]
