"""Scenarios of a driven browser, run by the interpreter of a browser runtime's environment.

``python browser_scenarios.py SRC NAME FOLDER [MODEL]`` writes one JSON line. The page of most is
not a model but a script that answers, throws, hangs or calls out on demand.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import psutil

from edgewise.core.recipe import RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes.browser.driver import BrowserDriver
from edgewise.runtimes.browser.server import Mount, serve

PAGE = (
    """<!doctype html><link rel="icon" href="data:,"><script type="module" src="/t.js"></script>"""
)
SCRIPT = """
let stop = null;
const wait = (ms) => new Promise((go) => setTimeout(go, ms));
window.edgewise = {
  ready: Promise.resolve(),
  load: async (params) => ({ got: params }),
  info: async () => ({ adapter: "none", limits: {}, threads: navigator.hardwareConcurrency,
                       user_agent: navigator.userAgent, cross_origin_isolated: crossOriginIsolated }),
  generate: async ({ pieces, every }, onText) => {
    let ended = false; stop = () => { ended = true; };
    let text = "";
    for (const piece of pieces) {
      if (ended) return { text, finish: "cancelled" };
      text += piece; onText(piece); await wait(every);
    }
    return { text, finish: "stop" };
  },
  cancel: async () => stop?.(),
  reject: async (words) => { throw new RangeError(words); },
  hang: () => new Promise(() => {}),
  stray: async () => { setTimeout(() => { throw new Error("stray"); }, 0); await wait(5000); },
  allocate: async () => {
    const kept = [];
    for (;;) kept.push(new WebAssembly.Memory({ initial: 65536 }));
  },
  fetch: async (address) => {
    try { await fetch(address); return "reached"; } catch (error) { return String(error); }
  },
  socket: (address) => new Promise((go) => {
    try { const s = new WebSocket(address); s.onopen = () => go("open"); s.onerror = () => go("no"); s.onclose = () => go("no"); }
    catch (error) { go("no"); }
  }),
  shared: async () => new SharedArrayBuffer(16).byteLength,
};
"""


def site(folder: Path, script: str = SCRIPT):
    (folder / "index.html").write_text(PAGE)
    (folder / "t.js").write_text(script)
    return serve([Mount(prefix="/", source=folder)])


def caught(act) -> dict[str, Any]:
    try:
        return {"value": act()}
    except EdgewiseError as error:
        return {"code": error.code, "message": error.message}


def left_over() -> list[str]:
    return [child.name() for child in psutil.Process().children(recursive=True)]


def kill(driver: BrowserDriver, switch: str) -> None:
    """Kill the browser's processes that have a switch: its renderers, or itself."""
    driver.processes.note()
    for process in list(driver.processes._known.values()):
        words = " ".join(process.cmdline())
        if switch in words and ("--type=" in words) == switch.startswith("--type="):
            process.kill()


def answers(folder: Path) -> dict[str, Any]:
    pieces: list[str] = []
    with site(folder) as server, BrowserDriver(server.url) as driver:
        out = {
            "load": driver.load({"a": 1}),
            "info": driver.info(),
            "shared": driver.call("shared", None, timeout_s=30),
            "result": driver.generate({"pieces": ["a", "é", "😀"], "every": 1}, pieces.append),
            "missing": caught(lambda: driver.call("nothing", None, timeout_s=30)),
            "reject": caught(lambda: driver.call("reject", "bad words", timeout_s=30)),
            "memory": caught(lambda: driver.call("reject", "Out of memory", timeout_s=30)),
            "allocate": caught(lambda: driver.call("allocate", None, timeout_s=30)),
            "again": driver.load({"b": 2}),
            "resident": driver.processes.resident_bytes().number,
        }
        driver.screenshot(folder / "shot.png")
    out["pieces"] = pieces
    out["shot"] = (folder / "shot.png").stat().st_size
    out["closed"] = caught(lambda: driver.load({}))
    out["left"] = left_over()
    return out


def cancels(folder: Path) -> dict[str, Any]:
    many = {"pieces": ["x"] * 1000, "every": 20}
    with site(folder) as server, BrowserDriver(server.url) as driver:
        threading.Timer(0.5, driver.cancel).start()
        first = driver.generate(many)

        def refuse(piece: str) -> None:
            raise KeyError(piece)

        try:
            driver.generate(many, refuse)
            raised = ""
        except KeyError as error:
            raised = str(error)
        return {"first": first["finish"], "raised": raised, "after": driver.load({"c": 3})}


def stays_home(folder: Path) -> dict[str, Any]:
    with site(folder) as server, BrowserDriver(server.url) as driver:
        tried = {
            address: driver.call("fetch", address, timeout_s=30)
            for address in (
                "https://example.org/x",
                "http://10.255.255.1/",
                f"http://localhost:{server.port}/",
                f"{server.url}absent",
            )
        }
        socket = driver.call("socket", "wss://example.org/", timeout_s=30)
        return {"tried": tried, "socket": socket, "refused": driver.refused_requests}


def stays_home_without_policy(folder: Path) -> dict[str, Any]:
    """The route, the resolver and the proxy hold by themselves."""
    (folder / "index.html").write_text(PAGE)
    (folder / "t.js").write_text(SCRIPT)
    mounts = [Mount(prefix="/", source=folder)]
    with serve(mounts, content_policy="img-src *") as server, BrowserDriver(server.url) as driver:
        tried = [
            driver.call("fetch", address, timeout_s=30)
            for address in ("https://example.org/x", "http://10.255.255.1/")
        ]
        socket = driver.call("socket", "ws://example.org/", timeout_s=30)
        return {"tried": tried, "socket": socket, "refused": driver.refused_requests}


def troubles(folder: Path) -> dict[str, Any]:
    out = {}
    with site(folder) as server:
        for name, call, limit, victim in (
            ("hang", "hang", 2.0, ""),
            ("stray", "stray", 30.0, ""),
            ("crash", "hang", 60.0, "--type=renderer"),
            ("killed", "hang", 60.0, "--user-data-dir"),
        ):
            driver = BrowserDriver(server.url)
            if victim:
                threading.Timer(1.0, kill, (driver, victim)).start()
            started = time.monotonic()
            out[name] = caught(lambda d=driver, n=call, s=limit: d.call(n, None, timeout_s=s))
            out[name]["seconds"] = time.monotonic() - started
            out[name]["after"] = caught(lambda d=driver: d.load({}))
            driver.close()
            out[name]["left"] = left_over()
    return out


def not_ready(folder: Path) -> dict[str, Any]:
    with site(folder, "window.edgewise = { ready: Promise.reject(new Error('no adapter')) };") as s:
        rejected = caught(lambda: BrowserDriver(s.url))
    with site(folder, "throw new Error('broken script');") as s:
        broken = caught(lambda: BrowserDriver(s.url))
    return {"rejected": rejected, "broken": broken, "left": left_over()}


def orphan(folder: Path) -> dict[str, Any]:
    """Tell the browser's processes and wait to be killed."""
    with site(folder) as server, BrowserDriver(server.url) as driver:
        driver.processes.note()
        sys.stdout.write(json.dumps({"pids": list(driver.processes._known)}) + "\n")
        sys.stdout.flush()
        time.sleep(120)
    return {}


def wllama_page(folder: Path, model: str) -> dict[str, Any]:
    """The page for people, used as a person does."""
    from edgewise.runtimes.wllama.site import serve_page

    with (
        serve_page(Path(model), RunConfig(context_length=256, threads=1)) as server,
        BrowserDriver(server.url) as driver,
    ):
        kind = "() => document.getElementById('state').dataset.kind"
        deadline = time.monotonic() + 300
        while driver.act(kind) == "busy" and time.monotonic() < deadline:
            time.sleep(0.2)
        loaded = driver.act(kind)
        driver.act(
            "() => { document.getElementById('prompt').value = 'What is the capital of France?';"
            " document.getElementById('max-tokens').value = 12;"
            " document.getElementById('ask').requestSubmit(); }"
        )
        while driver.act(kind) == "busy" and time.monotonic() < deadline:
            time.sleep(0.2)
        driver.screenshot(folder / "page.png")
        pieces: list[str] = []
        asked = [{"role": "user", "content": "What is the capital of France?"}]
        result = driver.generate({"messages": asked, "max_tokens": 12}, pieces.append)
        return {
            "loaded": loaded,
            "text": driver.act("() => document.querySelector('main').innerText"),
            "facts": driver.act("() => document.getElementById('facts').innerText"),
            "result": result,
            "pieces": pieces,
            "info": driver.info(),
            "refused": driver.refused_requests,
            "served": [(r.path, r.status) for r in server.requests],
        }


def wllama_logits(folder: Path, model: str) -> dict[str, Any]:
    """Tokenize texts and evaluate a sequence, teacher-forced; logits go to ``logits.npy``."""
    import numpy as np

    from edgewise.runtimes.wllama.engine import WllamaEngine

    asked = json.loads((folder / "asked.json").read_text())
    config = RunConfig(context_length=128, threads=asked["threads"], batch_tokens=16)
    engine = WllamaEngine(Path(model), config)
    try:
        rows = [engine.prefill(asked["tokens"][:4]).copy()]
        rows += [engine.decode(token).copy() for token in asked["tokens"][4:]]
        np.save(folder / "logits.npy", np.stack(rows))
        return {
            "ids": [
                engine.tokenize(t, add_special=False, parse_special=False) for t in asked["texts"]
            ],
            "parsed": [
                engine.tokenize(t, add_special=True, parse_special=True) for t in asked["texts"]
            ],
            "bytes": [list(engine.token_bytes(token)) for token in range(engine.vocab_size)],
            "resident": engine.memory().resident_bytes.number,
            "weights": engine.memory().weights_bytes.number,
            "operators": engine.partition().operators,
            "features": engine.partition().features,
        }
    finally:
        engine.close()


if __name__ == "__main__":
    scenario = globals()[sys.argv[2]]
    sys.stdout.write(json.dumps(scenario(Path(sys.argv[3]), *sys.argv[4:])) + "\n")
