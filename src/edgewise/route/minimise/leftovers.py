"""What detectors find in a text that was minimised before, by others or at another time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from edgewise.route.minimise.forms import places
from edgewise.route.minimise.minimising import FieldValue, minimise
from edgewise.route.minimise.placeholders import PlaceholderMap
from edgewise.route.minimise.spans import Detector, Kind

__all__ = ["leftovers"]


def leftovers(fields: Mapping[str, FieldValue], detectors: Sequence[Detector]) -> dict[Kind, int]:
    """Return how many identifiers these detectors would replace now, by kind.

    A placeholder is none, also where its field or the word before it makes it look like a secret.

    Args:
        fields: Texts and conversations that were minimised, by name.
        detectors: What looks for identifiers.

    Raises:
        InputError, ResourceError: see :func:`minimise`.
    """
    found = PlaceholderMap()
    minimise(fields, tuple(fields), detectors, found)
    values = ((key[0], value) for key, value, _ in found.known())
    return dict(sorted(Counter(kind for kind, value in values if _says(value)).items()))


def _says(value: str) -> bool:
    """Return whether a text holds letters or digits beside its placeholders."""
    rest, at = [], 0
    for place in places(value):
        rest.append(value[at : place.start])
        at = place.end
    return any(character.isalnum() for character in "".join(rest) + value[at:])
