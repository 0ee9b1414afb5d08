"""Code that lets a prompt out, one way each; the egress check must find every one of them."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.worker import WorkerProcess

NOWHERE = ("192.0.2.1", 9)
ROOT = Path(__file__).parents[3]
SERVICE = f"{__name__}:SaboteurService"


def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def does_nothing(text: str, folder: str) -> None:
    assert text
    assert folder


def connects(text: str, folder: str) -> None:
    with contextlib.suppress(OSError), socket.socket() as sock:
        sock.setblocking(False)
        sock.connect(NOWHERE)


def sends_a_datagram(text: str, folder: str) -> None:
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.sendto(b"hello", NOWHERE)


def connects_in_a_thread(text: str, folder: str) -> None:
    thread = threading.Thread(target=connects, args=(text, folder))
    thread.start()
    thread.join()


def opens_a_native_socket(text: str, folder: str) -> None:
    handle = libc().socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    if handle >= 0:
        os.close(handle)


def opens_a_local_socket(text: str, folder: str) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
        sock.connect("/nobody")  # short: a longer path than sockets take is refused before any call


def resolves_a_name(text: str, folder: str) -> None:
    with contextlib.suppress(OSError):
        socket.getaddrinfo("localhost", 9)


def resolves_a_name_with_the_prompt(text: str, folder: str) -> None:
    with contextlib.suppress(OSError):
        socket.gethostbyname(f"{text.split(maxsplit=1)[0]}.invalid")


def resolves_natively(text: str, folder: str) -> None:
    libc().gethostbyname(b"nobody.invalid")


def writes_a_log(text: str, folder: str) -> None:
    handler = logging.FileHandler(Path(folder) / "app.log")
    logger = logging.getLogger("saboteur")
    logger.addHandler(handler)
    logger.warning("asked: %s", text)
    logger.removeHandler(handler)
    handler.close()


def writes_a_part_of_it(text: str, folder: str) -> None:
    (Path(folder) / "excerpt").write_text(f"the prompt was {text[3:25]}...")


def writes_base64(text: str, folder: str) -> None:
    for shift in range(3):
        data = base64.b64encode(b"x" * shift + f"the prompt: {text} and so on".encode())
        (Path(folder) / f"part-{shift}").write_bytes(data)


def writes_utf_16(text: str, folder: str) -> None:
    (Path(folder) / "wide").write_text(text, encoding="utf-16")


def writes_to_sqlite(text: str, folder: str) -> None:
    connection = sqlite3.connect(Path(folder) / "history.db")
    with connection:
        connection.execute("CREATE TABLE history (prompt TEXT)")
        connection.execute("INSERT INTO history VALUES (?)", (text,))
    connection.close()


def writes_and_renames(text: str, folder: str) -> None:
    path = Path(folder) / "new.tmp"
    path.write_text(text)
    path.rename(Path(folder) / "old")


def writes_and_removes(text: str, folder: str) -> None:
    path = Path(folder) / "brief"
    path.write_text(text)
    path.unlink()


def removes_and_then_writes(text: str, folder: str) -> None:
    path = Path(folder) / "brief"
    with path.open("w") as stream:
        path.unlink()
        stream.write(text)


def uses_a_temporary_file(text: str, folder: str) -> None:
    with tempfile.TemporaryFile() as stream:
        stream.write(text.encode())


def writes_and_overwrites(text: str, folder: str) -> None:
    path = Path(folder) / "again"
    path.write_text(text)
    path.write_text("nothing to see")


def writes_and_replaces(text: str, folder: str) -> None:
    path, other = Path(folder) / "kept", Path(folder) / "other"
    path.write_text(text)
    other.write_text("nothing to see")
    other.replace(path)


def names_a_file(text: str, folder: str) -> None:
    (Path(folder) / f"{text.split()[1]}.txt").write_text("empty")


def names_a_folder(text: str, folder: str) -> None:
    (Path(folder) / text.split()[1]).mkdir()


def writes_to_the_shared_temporary_folder(text: str, folder: str) -> None:
    handle, _ = tempfile.mkstemp()
    os.write(handle, text.encode())
    os.close(handle)


def writes_natively(text: str, folder: str) -> None:
    native, path = libc(), os.fsencode(Path(folder) / "native")
    handle = native.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    data = text.encode()
    native.write(handle, data, len(data))
    native.close(handle)


def writes_and_removes_natively(text: str, folder: str) -> None:
    writes_natively(text, folder)
    libc().unlink(os.fsencode(Path(folder) / "native"))


def maps_a_file(text: str, folder: str) -> None:
    import mmap

    with (Path(folder) / "mapped").open("w+b") as stream:
        stream.truncate(4096)
        with mmap.mmap(stream.fileno(), 4096) as mapped:
            mapped[: len(text)] = text.encode()


def prints_it(text: str, folder: str) -> None:
    sys.stdout.write(f"asked: {text}\n")


def complains_natively(text: str, folder: str) -> None:
    data = f"cannot parse {text}\n".encode()
    libc().write(2, data, len(data))


def starts_curl(text: str, folder: str) -> None:
    subprocess.run(
        ["curl", "--max-time", "1", "-s", "http://192.0.2.1/"],
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )


def starts_a_program_with_it(text: str, folder: str) -> None:
    subprocess.run([sys.executable, "-c", "pass", text], check=True)


def starts_a_program_with_it_in_its_environment(text: str, folder: str) -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True, env={"ASKED": text})


def starts_an_unwatched_child(text: str, folder: str) -> None:
    code = f"import ctypes; ctypes.CDLL(None).socket(2, 1, 0); open({folder!r} + '/left', 'w')"
    subprocess.run([sys.executable, "-I", "-c", code], check=False, env={})


def writes_to_a_file_without_a_name(text: str, folder: str) -> None:
    handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(handle, text.encode())
    os.close(handle)


def writes_to_memory(text: str, folder: str) -> None:
    handle = os.memfd_create("notes")
    os.write(handle, text.encode())
    os.close(handle)


def keeps_running(text: str, folder: str) -> None:
    threading.Event().wait(60)


def leaves_a_process(text: str, folder: str) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def checks_another(text: str, folder: str) -> None:
    """Run a check inside the check: its walls are the outer one's."""
    from edgewise.testing.egress import Canary, run_isolated

    where = Path(folder)
    report = run_isolated(
        opens_a_native_socket, "", "", canary=Canary.mint(), home=where, folder=where
    )
    sys.stdout.write(report.text())


class SaboteurService:
    """A worker that lets out what it is asked."""

    def methods(self) -> dict[str, Method]:
        return {"sabotage": Method(tuple[str, str, str], self._sabotage)}

    def cancel(self) -> None: ...

    def clear_cancel(self) -> None: ...

    def _sabotage(self, params: tuple[str, str, str], _emit: Emit) -> None:
        name, text, folder = params
        globals()[name](text, folder)


def in_a_worker(name: str, text: str, folder: str) -> None:
    """Have a worker do it, as a runtime would."""
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
    worker = WorkerProcess(SERVICE, environment={"PYTHONPATH": os.pathsep.join(paths)})
    try:
        worker.call("sabotage", (name, text, folder), type(None))
    finally:
        worker.close()


def crashes_with_it(text: str, folder: str) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    os.chdir(folder)
    os.abort()


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.stdin.read(), sys.argv[2])
