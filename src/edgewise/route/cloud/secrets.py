"""Keys of destinations: from the environment or the system's keyring, and shown nowhere.

An environment variable comes first: it was set for this very process, on purpose, and needs no
unlocking. Where it is not set the system's keyring is asked, under the service ``edgewise``.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from edgewise.errors import EdgewiseError, InputError, ResourceError, UnsupportedError

__all__ = ["KEYRING_SERVICE", "SECRET_VARIABLE", "Secret", "Secrets", "secret_variable"]

KEYRING_SERVICE = "edgewise"
SECRET_VARIABLE = "EDGEWISE_SECRET_"  # noqa: S105 - the beginning of a variable's name
_VALUE = re.compile(r"[!-~]{1,4096}")


def secret_variable(name: str) -> str:
    """Return the environment variable of a secret: ``my-key`` is ``EDGEWISE_SECRET_MY_KEY``."""
    return SECRET_VARIABLE + re.sub(r"[^A-Z0-9]", "_", name.upper())


class Secret:
    """A value that is shown nowhere; only :meth:`reveal` gives it out."""

    __slots__ = ("_value", "name")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str, value: str) -> None:
        """Wrap a value.

        Raises:
            InputError: it is empty or holds what no header can carry (``secret-invalid``).
        """
        if not _VALUE.fullmatch(value):
            raise InputError(
                "secret-invalid",
                f"the secret {name!r} is not 1 to 4096 printable ASCII characters without spaces",
                context={"secret": name},
                hint="store it again, without quotes and line ends",
            )
        self.name = name
        self._value = value

    def reveal(self) -> str:
        """Return the value."""
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value, other._value)

    def __repr__(self) -> str:
        return f"<secret {self.name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret stays in its process")


class Secrets:
    """Where keys are read.

    Args:
        env: Environment; this process's own by default.
        keyring: Reads a value of the system's keyring by service and name; the library
            ``keyring`` by default.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        keyring: Callable[[str, str], str | None] | None = None,
    ) -> None:
        self._env = os.environ if env is None else env
        self._keyring = keyring or _system_keyring

    def get(self, name: str) -> Secret:
        """Return a secret. It may wait for the user to unlock the keyring.

        Raises:
            InputError: there is none (``secret-missing``), or it is no key (``secret-invalid``).
            ResourceError: the keyring is locked or fails (``keyring-unavailable``).
            UnsupportedError: it is not installed (``cloud-extra-missing``).
        """
        variable = secret_variable(name)
        value: Any = self._env.get(variable)
        if value is None:
            value = self._keyring(KEYRING_SERVICE, name)
        if value is None:
            raise InputError(
                "secret-missing",
                f"there is no secret {name!r}",
                context={"secret": name, "variable": variable},
                hint=f"set {variable}, or run: keyring set {KEYRING_SERVICE} {name}",
            )
        return Secret(name, str(value))


def _system_keyring(service: str, name: str) -> str | None:
    try:
        import keyring  # noqa: PLC0415 - optional, and some backends are slow to find
        import keyring.errors  # noqa: PLC0415
    except ImportError:
        raise extra_missing("keyring") from None
    try:
        return keyring.get_password(service, name)
    except keyring.errors.NoKeyringError:
        raise _unavailable(name, "this system has none that can be used") from None
    except keyring.errors.KeyringLocked:
        raise _unavailable(name, "it is locked, and was not unlocked") from None
    except Exception as error:  # noqa: BLE001 - each backend raises errors of its own libraries
        raise _unavailable(name, f"it fails with {type(error).__name__}") from None


def _unavailable(name: str, why: str) -> EdgewiseError:
    variable = secret_variable(name)
    return ResourceError(
        "keyring-unavailable",
        f"the secret {name!r} cannot be read from the system's keyring: {why}",
        context={"secret": name, "variable": variable},
        hint=f"unlock the keyring, or set {variable}",
    )


def extra_missing(library: str) -> UnsupportedError:
    """Return what to say where a library of the cloud tier is not installed."""
    return UnsupportedError(
        "cloud-extra-missing",
        f"the cloud tier needs the package {library}, which is not installed",
        context={"package": library},
        hint="pip install 'edgewise[cloud]'",
    )
