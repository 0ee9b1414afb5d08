"""Bundles: put in place whole, activated in one step, refused once damaged."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.unit.core.values import DEPLOYMENT, DRAFT, bundle, with_artifact

from edgewise.core.bundle import Bundle
from edgewise.core.canonical import canonical_json
from edgewise.errors import EdgewiseError, InputError, IntegrityError
from edgewise.store import BundleStore, Home, bundles

ARTIFACT = b"GGUF and so on"
SHA256 = hashlib.sha256(ARTIFACT).hexdigest()


def with_blob(root: Path) -> Home:
    home = Home(root)
    path = home.folder("staging", "fetch") / "m"
    path.write_bytes(ARTIFACT)
    home.adopt(path, SHA256)
    return home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return with_blob(tmp_path / "home")


@pytest.fixture
def store(home: Home) -> BundleStore:
    return BundleStore(home)


@pytest.fixture
def ours() -> Bundle:
    return with_artifact(SHA256, len(ARTIFACT))


@pytest.fixture
def other(ours: Bundle) -> Bundle:
    return bundle(deployment=msgspec.structs.replace(ours.deployment, adapters=()))


def fails(call: object, *arguments: object) -> EdgewiseError:
    assert callable(call)
    with pytest.raises(EdgewiseError) as caught:
        call(*arguments)
    return caught.value


def test_an_empty_home(tmp_path: Path) -> None:
    home = Home(tmp_path / "none")
    store = BundleStore(home)
    assert store.fingerprints() == ()
    error = fails(store.active)
    assert isinstance(error, InputError)
    assert error.code == "nothing-active"
    assert "edgewise up" in str(error.hint)
    assert not home.root.exists()


def test_add(home: Home, store: BundleStore, ours: Bundle) -> None:
    folder = store.add(ours)
    assert folder == home.root / "bundles" / ours.fingerprint
    assert {p.name for p in folder.iterdir()} == {
        "model.gguf",
        "template.jinja",
        "NOTICE.txt",
        "manifest.json",
        "manifest.sha256",
    }
    assert store.artifact(ours).read_bytes() == ARTIFACT
    assert store.artifact(ours).stat().st_ino == home.blob(SHA256).stat().st_ino
    assert (folder / "template.jinja").read_bytes() == ours.text.template_source.encode()
    assert (folder / "NOTICE.txt").read_text(encoding="utf-8") == ours.notice
    assert (folder / "manifest.json").read_bytes() == canonical_json(ours)
    assert store.get(ours.fingerprint) == ours
    assert store.fingerprints() == (ours.fingerprint,)
    assert {p.name for p in home.staging.iterdir()} == {"fetch"}


def test_add_twice_leaves_the_first(store: BundleStore, ours: Bundle) -> None:
    folder = store.add(ours)
    before = (folder / "manifest.json").stat()
    assert store.add(ours) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before.st_mtime_ns


def test_add_without_the_artifact(home: Home, store: BundleStore) -> None:
    error = fails(store.add, bundle())
    assert isinstance(error, IntegrityError)
    assert error.code == "blob-missing"
    assert not (home.root / "bundles").exists()


def test_add_where_links_do_not_work(
    store: BundleStore, ours: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(_source: Path, _target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store.add(ours)
    assert store.artifact(ours).read_bytes() == ARTIFACT


@pytest.mark.parametrize("left", [[], ["model.gguf"], ["template.jinja", "extra/x"]])
def test_add_over_a_folder_that_is_no_bundle(
    home: Home, store: BundleStore, ours: Bundle, left: list[str]
) -> None:
    folder = home.folder("bundles", ours.fingerprint)
    for name in left:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("rest")
    store.add(ours)
    assert store.get(ours.fingerprint) == ours
    assert store.artifact(ours).read_bytes() == ARTIFACT
    assert not (folder / "extra").exists()


def test_add_when_another_process_is_faster(
    store: BundleStore, ours: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = bundles._rename

    def late(work: Path, folder: Path) -> None:
        shutil.copytree(work, folder)
        rename(work, folder)

    monkeypatch.setattr(bundles, "_rename", late)
    store.add(ours)
    assert store.get(ours.fingerprint) == ours


def test_activate(home: Home, store: BundleStore, ours: Bundle, other: Bundle) -> None:
    store.add(ours)
    store.add(other)
    assert store.activate(ours.fingerprint) is None
    assert store.active() == ours
    assert store.activate(other.fingerprint) == ours.fingerprint
    assert store.active() == other
    assert store.activate(other.fingerprint) == other.fingerprint
    assert (home.root / "active").read_text() == other.fingerprint + "\n"


@pytest.mark.parametrize("upper", [False, True])
def test_activate_by_a_prefix_points_to_the_whole(
    store: BundleStore, ours: Bundle, upper: bool
) -> None:
    store.add(ours)
    prefix = ours.fingerprint[:10]
    store.activate(prefix.upper() if upper else prefix)
    assert store.active() == ours


@pytest.mark.parametrize("name", ["a" * 64, "", "../x", "zz"])
def test_activate_what_is_not_there(
    home: Home, store: BundleStore, ours: Bundle, name: str
) -> None:
    store.add(ours)
    store.activate(ours.fingerprint)
    error = fails(store.activate, name)
    assert isinstance(error, InputError)
    assert error.code == "bundle-not-found"
    assert error.context == {"bundles": [ours.fingerprint]}
    assert store.active() == ours


def test_a_damaged_bundle_is_not_activated(
    home: Home, store: BundleStore, ours: Bundle, other: Bundle
) -> None:
    store.add(ours)
    store.activate(ours.fingerprint)
    (store.add(other) / "manifest.json").write_text("{}")
    assert isinstance(fails(store.activate, other.fingerprint), IntegrityError)
    assert store.active() == ours


def test_an_ambiguous_prefix(home: Home, store: BundleStore) -> None:
    for last in "01":
        home.folder("bundles", "a" * 63 + last)
    error = fails(store.get, "aaaa")
    assert error.code == "bundle-not-found"
    assert "2 bundles" in error.message


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\n", b"garbage", b"\xff\xfe\x00", b"A" * 64, b"a" * 63, b"../x", b"\0" * 64],
)
def test_garbage_in_the_active_pointer(
    home: Home, store: BundleStore, ours: Bundle, garbage: bytes
) -> None:
    store.add(ours)
    (home.root / "active").write_bytes(garbage)
    error = fails(store.active)
    assert isinstance(error, IntegrityError)
    assert error.code == "active-unreadable"
    assert error.hint
    assert store.activate(ours.fingerprint) is None
    assert store.active() == ours


def test_a_folder_as_the_active_pointer(home: Home, store: BundleStore) -> None:
    home.folder("active")
    assert fails(store.active).code == "active-unreadable"


def test_the_pointer_to_a_removed_bundle(home: Home, store: BundleStore, ours: Bundle) -> None:
    folder = store.add(ours)
    store.activate(ours.fingerprint)
    shutil.rmtree(folder)
    assert fails(store.active).code == "bundle-not-found"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("missing", "bundle-unreadable"),
        ("empty", "bundle-unreadable"),
        ("half", "bundle-unreadable"),
        ("field", "bundle-unreadable"),
        ("other", "bundle-corrupt"),
        ("deployment", "bundle-corrupt"),
        ("template", "bundle-text-mismatch"),
        ("name", "bundle-invalid"),
    ],
)
def test_a_damaged_manifest(
    store: BundleStore, ours: Bundle, other: Bundle, how: str, code: str
) -> None:
    path = store.add(ours) / "manifest.json"
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        changed = {
            "empty": b"",
            "half": data[: len(data) // 2],
            "field": data.replace(b'"model"', b'"extra":1,"model"'),
            "other": canonical_json(other),
            "deployment": data.replace(b'"threads":1', b'"threads":2'),
            "template": data.replace(b"{{ messages }}", b"{{ massages }}"),
            "name": data.replace(b'"model.gguf"', b'"../../../x"'),
        }[how]
        assert changed != data
        path.write_bytes(changed)
    error = fails(store.get, ours.fingerprint)
    assert isinstance(error, IntegrityError)
    assert error.code == code


def test_other_folders_are_not_bundles(home: Home, store: BundleStore, ours: Bundle) -> None:
    store.add(ours)
    home.folder("bundles", "old")
    home.folder("bundles", ours.fingerprint + ".bak")
    assert store.fingerprints() == (ours.fingerprint,)


# A process that is killed, as by kill -9, at a named point of BundleStore.add.
KILLED_ADD = """
import os, signal, sys
from pathlib import Path
import msgspec
from edgewise.core.bundle import Bundle
from edgewise.store import BundleStore, Home, bundles, scratch

root, point, data = sys.argv[1:]
die = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
if point == "linked":
    scratch.sync = die
elif point == "written":
    scratch.sync_folder = die
elif point == "synced":
    bundles._rename = die
elif point == "renamed":
    rename = bundles._rename
    bundles._rename = lambda *arguments: (rename(*arguments), die())
BundleStore(Home(Path(root))).add(msgspec.json.decode(data, type=Bundle))
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["linked", "written", "synced", "renamed"])
def test_a_killed_add_leaves_a_whole_bundle_or_none(
    home: Home, store: BundleStore, ours: Bundle, point: str
) -> None:
    command = [
        sys.executable,
        "-c",
        KILLED_ADD,
        str(home.root),
        point,
        canonical_json(ours).decode(),
    ]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert store.fingerprints() == ((ours.fingerprint,) if point == "renamed" else ())
    left = {p.name.partition("-")[0] for p in home.staging.iterdir()} - {"fetch"}
    assert left == (set() if point == "renamed" else {"work"})
    store.add(ours)
    assert store.get(ours.fingerprint) == ours
    assert store.artifact(ours).read_bytes() == ARTIFACT
    with home.work_folder():
        pass
    assert {p.name for p in home.staging.iterdir()} == {"fetch"}
    home.verified_blob(SHA256)


def _add_and_activate(root: Path, number: int) -> None:
    store = BundleStore(Home(root))
    ours = with_artifact(SHA256, len(ARTIFACT))
    mine = bundle(deployment=msgspec.structs.replace(ours.deployment, adapters=(f"{number}" * 64,)))
    for _ in range(20):
        store.add(ours)  # the same in both
        store.add(mine)
        store.activate(mine.fingerprint)
        assert store.active().deployment != DEPLOYMENT


@pytest.mark.slow
def test_two_processes_activate_at_once(home: Home, store: BundleStore) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_add_and_activate, args=(home.root, n)) for n in (1, 2)]
    for child in children:
        child.start()
    seen = set()
    while any(child.is_alive() for child in children):
        with contextlib.suppress(InputError):  # before the first activation
            seen.add(store.active().fingerprint)  # an IntegrityError would fail the test
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert len(store.fingerprints()) == 3
    assert seen < set(store.fingerprints())
    assert store.active().fingerprint in seen | set(store.fingerprints())
    assert {p.name for p in home.staging.iterdir()} == {"fetch"}


@pytest.mark.parametrize("name", ["active", "manifest.json", "manifest.sha256"])
@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_what_is_no_small_regular_file_is_refused_and_not_waited_for(
    home: Home, store: BundleStore, ours: Bundle, name: str, kind: str
) -> None:
    folder = store.add(ours)
    store.activate(ours.fingerprint)
    path = home.root / "active" if name == "active" else folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as stream:
            stream.truncate(1 << 40)
    error = fails(store.active)
    assert isinstance(error, IntegrityError)


def with_draft(home: Home, ours: Bundle) -> Bundle:
    data = b"GGUF and less"
    path = home.folder("staging", "fetch") / "d"
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    home.adopt(path, digest)
    artifact = msgspec.structs.replace(DRAFT.artifact, sha256=digest, size_bytes=len(data))
    draft = msgspec.structs.replace(DRAFT, artifact=artifact)
    deployment = msgspec.structs.replace(ours.deployment, draft=draft)
    return msgspec.structs.replace(ours, deployment=deployment, draft_name="draft.gguf")


def test_a_draft_model_lies_in_the_bundle_too(store: BundleStore, home: Home, ours: Bundle) -> None:
    drafted = with_draft(home, ours)
    folder = store.add(drafted)
    assert (folder / "draft.gguf").read_bytes() == b"GGUF and less"
    assert store.artifact(drafted).read_bytes() == ARTIFACT
    assert store.get(drafted.fingerprint) == drafted


def test_a_damaged_draft_model_is_healed(store: BundleStore, home: Home, ours: Bundle) -> None:
    drafted = with_draft(home, ours)
    damaged = store.add(drafted) / "draft.gguf"
    damaged.unlink()
    damaged.write_bytes(b"GGUF and more")
    assert (store.add(drafted) / "draft.gguf").read_bytes() == b"GGUF and less"


def test_a_missing_draft_model_is_refused(store: BundleStore, home: Home, ours: Bundle) -> None:
    drafted = with_draft(home, ours)
    assert drafted.deployment.draft is not None
    home.blob(drafted.deployment.draft.artifact.sha256).unlink()
    assert fails(store.add, drafted).code == "blob-missing"
