"""The public face: what `import edgewise` gives, and that it does nothing else."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import pkgutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import edgewise

HEAVY = [
    "numpy",
    "httpx",
    "rich",
    "jinja2",
    "click",
    "msgspec",
    "psutil",
    "llama_cpp",
    "tokenizers",
]

WATCH = """
import json, os, sys

events = []
files = []

def watch(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.system", "os.mkdir")):
        events.append(event)
    if event == "open" and (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
        files.append(str(arguments[0]))

fds = lambda: sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else []
environment, path = dict(os.environ), list(sys.path)
before = fds()
sys.dont_write_bytecode = True
sys.addaudithook(watch)
%s
import logging, signal, threading
print(json.dumps({
    "events": events,
    "written": files,
    "handles": len(fds()) - len(before),
    "modules": sorted(sys.modules),
    "handlers": [str(h) for h in logging.getLogger().handlers]
        + [str(h) for n in list(logging.root.manager.loggerDict)
           for h in getattr(logging.getLogger(n), "handlers", []) if n.startswith("edgewise")],
    "threads": threading.active_count(),
    "environment": dict(os.environ) == environment,
    "path": sys.path == path,
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}))
"""


def watched(code: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WATCH % code],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def quiet(found: dict[str, Any]) -> None:
    assert found["events"] == []
    assert found["written"] == []
    assert found["handles"] == 0
    assert found["handlers"] == []
    assert found["threads"] == 1
    assert found["environment"]
    assert found["path"]
    assert found["interrupt"]


# Written in TVM's script, which is read when the module is imported; workers alone import them.
WRITTEN_FOR_TVM = {
    f"edgewise.runtimes.webllm.{name}"
    for name in ("compiler", "cpu_schedule", "merge_state", "model", "sampling")
}


def modules() -> list[str]:
    names = [info.name for info in pkgutil.walk_packages(edgewise.__path__, "edgewise.")]
    return [n for n in names if not n.endswith("__main__") and n not in WRITTEN_FOR_TVM]


@pytest.mark.parametrize("name", sorted(WRITTEN_FOR_TVM))
def test_what_is_written_for_tvm_needs_nothing_else(name: str) -> None:
    if importlib.util.find_spec("tvm") is not None:
        importlib.import_module(name)
        return
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    assert str(caught.value.name).partition(".")[0] == "tvm"


def test_import_does_nothing_else() -> None:
    found = watched("import edgewise")
    quiet(found)
    assert [name for name in HEAVY if name in found["modules"]] == []
    ours = [name for name in found["modules"] if name.startswith("edgewise")]
    assert ours == ["edgewise", "edgewise._version"]


def test_errors_are_light() -> None:
    found = watched("from edgewise import InputError")
    quiet(found)
    assert [name for name in HEAVY if name in found["modules"]] == []


@pytest.mark.slow
def test_no_module_does_anything_when_imported() -> None:
    names = modules()
    assert len(names) > 60
    quiet(watched(f"import importlib\nfor name in {names!r}: importlib.import_module(name)"))


@pytest.mark.slow
def test_the_python_interface_loads_no_native_runtime() -> None:
    found = watched("import edgewise\nfor name in edgewise.__all__: getattr(edgewise, name)")
    quiet(found)
    assert not {"llama_cpp", "jinja2", "rich", "click"} & set(found["modules"])


def test_every_name_resolves() -> None:
    for name in edgewise.__all__:
        assert getattr(edgewise, name) is not None
    assert dir(edgewise) == sorted(edgewise.__all__) == list(edgewise.__all__)
    assert len(set(edgewise.__all__)) == len(edgewise.__all__)
    assert set(edgewise._HOME_OF) == set(edgewise.__all__) - {"__version__"}


def test_names_come_from_where_they_are_public() -> None:
    for name, home in edgewise._HOME_OF.items():
        module = importlib.import_module(home)
        assert getattr(edgewise, name) is getattr(module, name)
        assert name in module.__all__


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(edgewise.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == edgewise._HOME_OF


def test_what_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = edgewise.nothing
    assert not hasattr(edgewise, "__wrapped__")


@pytest.mark.parametrize("name", modules())
def test_all_of_a_module_is_there(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    missing = [item for item in exported if not hasattr(module, item)]
    assert missing == []


@pytest.mark.slow
def test_import_is_quick() -> None:
    def once() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import edgewise"], check=True)
        return time.perf_counter() - begin

    assert min(once() for _ in range(3)) < 0.8  # about 0.03 s on an idle machine


def test_the_package_is_typed() -> None:
    folder = Path(edgewise.__file__).parent
    assert (folder / "py.typed").exists()
