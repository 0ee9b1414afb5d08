// The page for people: a conversation, and what it costs. It knows only window.edgewise.

const byId = (id) => document.getElementById(id);
const api = window.edgewise;
const messages = [];

const SHOWN_LIMITS = [
  "maxBufferSize",
  "maxStorageBufferBindingSize",
  "maxStorageBuffersPerShaderStage",
  "maxComputeInvocationsPerWorkgroup",
];

function state(text, kind) {
  byId("state").textContent = text;
  byId("state").dataset.kind = kind;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

function list(id, rows) {
  byId(id).replaceChildren(
    ...rows.flatMap(([term, text]) => {
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      dt.textContent = term;
      dd.textContent = text;
      return [dt, dd];
    }),
  );
}

function turn(who, text) {
  document.querySelector("#conversation .empty")?.remove();
  const box = document.createElement("div");
  const name = document.createElement("b");
  const body = document.createElement("p");
  box.className = "turn";
  name.textContent = who;
  body.textContent = text;
  box.append(name, body);
  byId("conversation").append(box);
  byId("conversation").scrollTop = byId("conversation").scrollHeight;
  return { box, body };
}

async function showFacts() {
  const info = await api.info();
  const browser = /(Edg|Chrome|Firefox|Version)\/[\d.]+/.exec(info.user_agent)?.[0] ?? "unknown";
  list("facts", [
    ["Adapter", info.adapter],
    ["Threads", String(info.threads)],
    ["Isolated", info.cross_origin_isolated ? "yes" : "no: one thread only"],
    ["Browser", browser.replace("/", " ")],
  ]);
  const limits = Object.entries(info.limits ?? {});
  const shown = limits.filter(([name]) => !/^max[A-Z]/.test(name) || SHOWN_LIMITS.includes(name));
  list("limits", shown.map(([name, value]) => [words(name), worth(name, value)]));
}

function words(name) {
  const spaced = name.replace(/([A-Z])/g, " $1").replaceAll("_", " ").toLowerCase();
  return spaced.replace(/ (bytes|gib)$/, "");
}

function worth(name, value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (/_gib$/.test(name)) return `${value} GiB`;
  return /bytes$|BufferSize$|BindingSize$/.test(name) ? size(value) : String(value);
}

function time(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

async function start() {
  const session = await (await fetch("/session.json")).json();
  byId("model").textContent = [session.model?.name, session.runtime].filter(Boolean).join(" · ");
  await api.ready;
  if (session.load === null) {
    state("driven by a program", "busy");
    return;
  }
  state("loading the model", "busy");
  const began = performance.now();
  await api.load(session.load);
  state(`ready, loaded in ${time(performance.now() - began)}`, "ready");
  byId("send").disabled = false;
  await showFacts();
}

async function ask(text) {
  messages.push({ role: "user", content: text });
  turn("You", text);
  const { box, body } = turn("Model", "");
  box.classList.add("running");
  byId("send").disabled = true;
  byId("stop").disabled = false;
  for (const id of ["rate", "ttft", "tokens", "finish"]) byId(id).textContent = "…";
  state("answering", "busy");
  try {
    const result = await api.generate(
      {
        messages,
        max_tokens: Number(byId("max-tokens").value),
        temperature: Number(byId("temperature").value),
      },
      (piece) => {
        body.textContent += piece;
        byId("conversation").scrollTop = byId("conversation").scrollHeight;
      },
    );
    body.textContent = result.text;
    messages.push({ role: "assistant", content: result.text });
    const rate = result.decode_tok_s;
    byId("rate").textContent = rate == null ? "too short to tell" : `${rate.toFixed(1)} tok/s`;
    byId("ttft").textContent = time(result.ttft_ms);
    byId("tokens").textContent = String(result.tokens);
    byId("finish").textContent = result.finish;
    state("ready", "ready");
  } catch (error) {
    messages.pop();
    box.classList.add("failed");
    body.textContent = `The runtime failed: ${error?.message ?? error}`;
    for (const id of ["rate", "ttft", "tokens", "finish"]) byId(id).textContent = "–";
    state("failed", "error");
  } finally {
    box.classList.remove("running");
    byId("send").disabled = false;
    byId("stop").disabled = true;
  }
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("prompt").value.trim();
  if (!text || byId("send").disabled) return;
  byId("prompt").value = "";
  ask(text);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});
byId("stop").addEventListener("click", () => api.cancel());

start().catch((error) => state(`cannot start: ${error?.message ?? error}`, "error"));
