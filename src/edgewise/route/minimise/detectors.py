"""The detectors that are used unless others are given."""

from __future__ import annotations

from collections.abc import Sequence

from edgewise.route.minimise.addresses import Emails, MachineAddresses, Urls
from edgewise.route.minimise.credentials import Secrets
from edgewise.route.minimise.names import Names
from edgewise.route.minimise.national import NationalIds
from edgewise.route.minimise.numbers import Cards, Ibans
from edgewise.route.minimise.phones import DEFAULT_REGIONS, Phones
from edgewise.route.minimise.spans import Detector

__all__ = ["default_detectors"]


def default_detectors(
    *,
    contacts: Sequence[str] = (),
    regions: tuple[str, ...] = DEFAULT_REGIONS,
    countries: tuple[str, ...] | None = None,
) -> tuple[Detector, ...]:
    """Return all detectors there are.

    Args:
        contacts: Names of the user's contacts, one for each.
        regions: ISO 3166 codes, in capitals, whose national phone numbers are read.
        countries: ISO 3166 codes, in small letters, whose national identifiers are; all declared
            ones by default.

    Raises:
        InputError: a region is not known, or the list of contacts is too long.
        UnsupportedError: a library is missing (``minimise-library-missing``). There is no set
            with a detector less.
    """
    return (
        Secrets(),
        Urls(),
        Ibans(),
        Cards(),
        NationalIds(countries),
        Emails(),
        Phones(regions),
        MachineAddresses(),
        Names(contacts),
    )
