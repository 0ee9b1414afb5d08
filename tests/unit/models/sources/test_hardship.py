"""TLS with a private CA, full and read-only disks, killed and competing processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import LoopbackServer, Served, stall_after, status, unannounced

from edgewise.errors import InputError, RemoteError, ResourceError
from edgewise.models.sources import partial
from edgewise.models.sources.download import DownloadPolicy, download
from edgewise.models.sources.progress import Phase, Progress, Reporter
from edgewise.models.sources.transport import tls_context

BODY = b"GGUF" + bytes(range(256)) * 4000
SHA256 = hashlib.sha256(BODY).hexdigest()
POLICY = DownloadPolicy(retries=0, disk_margin_bytes=0)
CA_VARIABLES = ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"]
CHILD = """
import sys
from pathlib import Path
from edgewise.errors import EdgewiseError
from edgewise.models.sources import DownloadPolicy, download
def say(event):
    print(event.phase, event.done_bytes, flush=True)
policy = DownloadPolicy(retries=0, disk_margin_bytes=0)
try:
    result = download(sys.argv[1], Path(sys.argv[2]), progress=say, policy=policy)
    print("result", result.sha256, result.attempts, flush=True)
except EdgewiseError as error:
    print("error", error.code, error.context.get("errno"), flush=True)
"""

as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to mount a tmpfs"
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with LoopbackServer() as running:
        yield running


def child(url: str, destination: Path, prelude: str = "") -> subprocess.Popen[str]:
    source = str(Path(partial.__file__).parents[3])
    return subprocess.Popen(
        [sys.executable, "-c", prelude + CHILD, url, str(destination)],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line.strip()
    raise AssertionError(f"the child ended without saying {start!r}")


@pytest.mark.slow
def test_a_killed_download_is_resumed(server: LoopbackServer, tmp_path: Path) -> None:
    url = server.serve("/m", Served(BODY, script=[stall_after(500_000, server.release)]))
    with child(url, tmp_path / "m") as process:
        while int(read_until(process, "downloading").split()[1]) == 0:
            pass
        process.send_signal(signal.SIGKILL)
    server.release.set()
    kept = (tmp_path / "m.part").stat().st_size
    assert kept > 0
    assert not (tmp_path / "m").exists()
    result = download(url, tmp_path / "m", expected_sha256=SHA256, policy=POLICY)
    assert result.resumed_from_bytes == kept
    assert server.log[-1].headers["range"] == f"bytes={kept}-"
    assert (tmp_path / "m").read_bytes() == BODY


@pytest.mark.slow
def test_a_second_process_waits_and_finds_it_done(server: LoopbackServer, tmp_path: Path) -> None:
    url = server.serve("/m", Served(BODY, script=[stall_after(500_000, server.release)]))
    with child(url, tmp_path / "m") as first:
        read_until(first, "downloading")
        with child(url, tmp_path / "m") as second:
            read_until(second, "waiting")
            server.release.set()
            assert read_until(first, "result") == f"result {SHA256} 1"
            assert read_until(second, "result") == f"result {SHA256} 0"
    assert len(server.log) == 1


def test_a_lock_that_is_held_too_long_is_an_error(tmp_path: Path) -> None:
    events: list[Progress] = []
    lock = tmp_path / "l"
    source = str(Path(partial.__file__).parents[3])
    code = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]):\n print('held', flush=True)\n input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        read_until(holder, "held")
        with (
            pytest.raises(ResourceError) as caught,
            partial.hold_lock(lock, Reporter(events.append), timeout_s=0),
        ):
            pytest.fail("two hold one lock")
        holder.communicate("\n")
    assert caught.value.code == "fetch-locked"
    assert [event.phase for event in events] == [Phase.WAITING]


@pytest.mark.slow
def test_a_file_size_limit_is_told_apart(server: LoopbackServer, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    url = server.serve("/m", Served(BODY))
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
    with child(url, tmp_path / "m", limit) as process:
        assert read_until(process, "error").split()[:2] == ["error", "file-too-large"]
    assert (tmp_path / "m.part").stat().st_size == 300_000
    result = download(url, tmp_path / "m", expected_sha256=SHA256, policy=POLICY)
    assert result.resumed_from_bytes == 300_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("this environment does not let root mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@as_root
@pytest.mark.root
def test_a_disk_that_is_too_small_is_found_first(server: LoopbackServer, small_disk: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        download(server.serve("/m", Served(BODY)), small_disk / "m", policy=POLICY)
    free = caught.value.context["free_bytes"]
    assert caught.value.context["shortfall_bytes"] == len(BODY) - free
    assert not (small_disk / "m.part").exists()


@as_root
@pytest.mark.root
def test_a_disk_that_fills_up_keeps_what_was_fetched(
    server: LoopbackServer, small_disk: Path
) -> None:
    url = server.serve("/m", Served(BODY, script=[unannounced(BODY)]))
    with pytest.raises(ResourceError) as caught:
        download(url, small_disk / "m", policy=POLICY)
    assert caught.value.code == "disk-full"
    assert isinstance(caught.value.__cause__, OSError)
    assert (small_disk / "m.part").stat().st_size > 300_000
    assert not (small_disk / "m").exists()


@as_root
@pytest.mark.root
def test_a_read_only_disk(server: LoopbackServer, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(ResourceError) as caught:
        download(server.serve("/m", Served(BODY)), small_disk / "m", policy=POLICY)
    assert caught.value.code == "storage-not-writable"
    assert server.log == []


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(server: LoopbackServer, tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    folder.mkdir(mode=0o500)
    with pytest.raises(ResourceError) as caught:
        download(server.serve("/m", Served(BODY)), folder / "m", policy=POLICY)
    assert caught.value.code == "storage-not-writable"


class Authority:
    """A private CA and a server certificate of it for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("needs the openssl program to make certificates")
        self.ca, self._key, self._cert = folder / "ca.pem", folder / "key.pem", folder / "cert.pem"
        ca_key, request, names = folder / "ca.key", folder / "csr", folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        for arguments in (
            [*new, "-x509", "-subj", "/CN=Private CA", "-keyout", ca_key, "-out", self.ca],
            [*new, "-subj", "/CN=server", "-keyout", self._key, "-out", request],
            [
                "x509",
                "-req",
                "-in",
                request,
                "-CA",
                self.ca,
                "-CAkey",
                ca_key,
                "-CAcreateserial",
                "-extfile",
                names,
                "-out",
                self._cert,
            ],
        ):
            subprocess.run([openssl, *map(str, arguments)], check=True, capture_output=True)

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._cert, self._key)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def secure(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    for name in [*CA_VARIABLES, "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]:
        monkeypatch.delenv(name, raising=False)
    with LoopbackServer(tls=authority.context()) as running:
        yield running


def test_an_unknown_ca_is_refused_at_once_and_explained(
    secure: LoopbackServer, tmp_path: Path
) -> None:
    with pytest.raises(RemoteError) as caught:
        download(secure.serve("/m", Served(BODY)), tmp_path / "m")
    assert (caught.value.code, caught.value.retryable) == ("remote-tls", False)
    assert "SSL_CERT_FILE" in str(caught.value.hint)
    assert secure.log == []


@pytest.mark.parametrize("variable", [name for name in CA_VARIABLES if name != "SSL_CERT_DIR"])
def test_a_private_ca_of_the_environment_is_trusted(
    secure: LoopbackServer,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv(variable, str(authority.ca))
    url = secure.serve("/m", Served(BODY))
    assert download(url, tmp_path / "m", policy=POLICY).sha256 == SHA256


def test_a_folder_of_certificates_is_trusted(
    secure: LoopbackServer,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "certs"
    folder.mkdir()
    name = subprocess.run(
        ["openssl", "x509", "-hash", "-noout", "-in", str(authority.ca)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    shutil.copy(authority.ca, folder / f"{name}.0")
    monkeypatch.setenv("SSL_CERT_DIR", os.pathsep.join([str(tmp_path), str(folder)]))
    url = secure.serve("/m", Served(BODY))
    assert download(url, tmp_path / "m", policy=POLICY).sha256 == SHA256


def test_a_redirect_from_https_to_http_is_refused(
    secure: LoopbackServer,
    server: LoopbackServer,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    target = server.serve("/m", Served(BODY))
    url = secure.serve("/m", Served(b"", script=[status(302, Location=target)]))
    with pytest.raises(RemoteError) as caught:
        download(url, tmp_path / "m", policy=POLICY)
    assert caught.value.code == "remote-redirect-refused"
    assert server.log == []


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_bundle_that_is_none_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as caught:
        tls_context({"REQUESTS_CA_BUNDLE": str(path)})
    assert caught.value.code == "ca-bundle-unreadable"
    assert "REQUESTS_CA_BUNDLE" in caught.value.message


def test_without_variables_the_systems_roots_are_used() -> None:
    context = tls_context({})
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.cert_store_stats()["x509_ca"] > 0
