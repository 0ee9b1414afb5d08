"""Run by test_keyring_real.py inside a session bus of its own: one case with a real keyring.

It prints one JSON object with what came of it. Everything is logged at the lowest level to standard
error, where no key may appear.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keyring
from tests.unit.route.cloud.servers import GOOD, Desk, RawServer, at, stream

from edgewise.errors import EdgewiseError
from edgewise.route.cloud import Secrets

PASSWORD = b"not-the-users"
SERVICE = "edgewise"


def start_keyring() -> None:
    """Start a Secret Service whose default collection is unlocked."""
    command = ["gnome-keyring-daemon", "--unlock", "--components=secrets"]
    subprocess.run(command, input=PASSWORD, check=True, stdout=subprocess.DEVNULL)


def lock() -> None:
    import secretstorage

    secretstorage.get_default_collection(secretstorage.dbus_init()).lock()


def hold_the_prompt() -> None:
    """Be the desktop's prompter, and never get to an answer: the user is not there."""
    from jeepney import message_bus
    from jeepney.io.blocking import open_dbus_connection

    connection = open_dbus_connection(bus="SESSION")
    connection.send_and_get_reply(message_bus.RequestName("org.gnome.keyring.SystemPrompter"))

    def listen() -> None:
        while True:
            connection.receive()

    threading.Thread(target=listen, daemon=True).start()


def outcome() -> dict[str, Any]:
    try:
        return {"key": Secrets(env={}).get("far-key").reveal()}
    except EdgewiseError as error:
        return error.to_dict()


def asked(folder: Path, deadline_s: float) -> dict[str, Any]:
    """Ask a server with the key of the real keyring."""
    desk = Desk(folder)
    desk.client._secrets = Secrets(env={})
    with RawServer(stream(*GOOD)).running() as server:
        began = time.monotonic()
        found = desk.ask(at(server), deadline_s=deadline_s)
        told: dict[str, Any] = {
            "seconds": time.monotonic() - began,
            "connections": server.connections,
        }
        told["authorized"] = [x.headers.get("authorization", "") for x in server.exchanges]
    return {**told, "error": getattr(found, "error", None), "shown": repr(found)}


def main(case: str, key: str, folder: Path) -> dict[str, Any]:
    if case == "no-bus":
        os.environ["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={folder / 'nobody'}"
        return outcome()
    start_keyring()
    if case != "absent":
        keyring.set_password(SERVICE, "far-key", key)
    if case == "killed":
        import secretstorage
        from jeepney import DBusAddress, new_method_call

        bus = secretstorage.dbus_init()
        address = DBusAddress(
            "/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus"
        )
        asking = new_method_call(
            address, "GetConnectionUnixProcessID", "s", ("org.freedesktop.secrets",)
        )
        (pid,) = bus.send_and_get_reply(asking).body
        os.kill(pid, signal.SIGKILL)
        return outcome()
    if case == "locked":
        lock()
        return outcome()
    if case == "waits":
        hold_the_prompt()
        lock()
        return asked(folder, 2.0)
    return asked(folder, 30.0) if case == "asked" else outcome()


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    told = main(sys.argv[1], sys.argv[2].encode().decode("unicode_escape"), Path(sys.argv[3]))
    sys.stdout.write(json.dumps(told) + "\n")
