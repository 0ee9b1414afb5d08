// window.edgewise over WebLLM: a model library that TVM compiled, on WebGPU.
//
// WebLLM adds "resolve/main/" to every model address that has no "/resolve/NAME/" in it. The
// artifact lies in a plain folder, so its address gets such a part and leaves it again: "../..".

import * as webllm from "/npm/@mlc-ai/web-llm/lib/index.js";

const MODEL = "edgewise";
const LOG_LINES = 400;
const LOSSLESS_BELOW = 2 ** 31;

let engine = null;
let settings = null; // what load() was given
let running = false;
let last = null; // logits of the last evaluated token, a Float32Array
const log = [];

function note(line) {
  log.push(line);
  if (log.length > LOG_LINES) log.shift();
}

// Sees every step's logits when load() was asked for them; changes nothing.
const watcher = {
  processLogits(values) {
    last = Float32Array.from(values);
    return values;
  },
  processSampledToken() {},
  resetState() {},
};

async function load(params) {
  await engine?.unload();
  engine = null;
  log.length = 0;
  const began = performance.now();
  const folder = new URL(params.model, location.href);
  const address = `${location.origin}/resolve/here/../..${folder.pathname}`;
  const library = new URL("model.wasm", folder);
  const made = new webllm.MLCEngine({
    appConfig: { model_list: [{ model_id: MODEL, model: address, model_lib: library.href }] },
    initProgressCallback: (progress) => note(progress.text),
    logitProcessorRegistry: params.logits ? new Map([[MODEL, watcher]]) : undefined,
    logLevel: "WARN",
  });
  const changes = {};
  if (params.context_length) changes.context_window_size = params.context_length;
  await made.reload(MODEL, changes);
  engine = made;
  settings = params;
  last = null;
  return { load_ms: performance.now() - began, log: [...log] };
}

function loaded() {
  if (!engine) throw new Error("no model is loaded");
  if (running) throw new Error("an answer is already being generated");
  return engine;
}

async function generate(params, onText = () => {}) {
  const model = loaded();
  const request = {
    max_tokens: params.max_tokens ?? 128,
    temperature: params.temperature ?? 0,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of ["top_p", "frequency_penalty", "presence_penalty", "stop", "logit_bias"])
    if (params[name] != null) request[name] = params[name];
  if (params.response_format) request.response_format = params.response_format;
  if (params.seed != null) {
    if (!Number.isInteger(params.seed) || Math.abs(params.seed) >= LOSSLESS_BELOW)
      throw new RangeError("the seed must be a 32-bit integer");
    request.seed = params.seed;
  }
  running = true;
  const began = performance.now();
  const seen = { text: "", first: 0, finish: "length", usage: null };
  try {
    await model.resetChat(false, MODEL);
    const chunks = params.messages
      ? await model.chat.completions.create({ ...request, messages: params.messages })
      : await model.completions.create({ ...request, prompt: params.prompt });
    for await (const chunk of chunks) take(chunk, seen, onText);
  } finally {
    running = false;
  }
  const ended = performance.now();
  const tokens = seen.usage?.completion_tokens ?? null;
  const decode = seen.first ? ended - seen.first : 0;
  return {
    text: seen.text,
    tokens,
    prompt_tokens: seen.usage?.prompt_tokens ?? null,
    finish: seen.finish === "abort" ? "cancelled" : seen.finish,
    ttft_ms: (seen.first || ended) - began,
    decode_ms: decode,
    decode_tok_s: seen.first && tokens > 1 ? ((tokens - 1) / decode) * 1000 : null,
  };
}

function take(chunk, seen, onText) {
  const choice = chunk.choices?.[0];
  const piece = choice?.delta?.content ?? choice?.text ?? "";
  if (piece) {
    if (!seen.first) seen.first = performance.now();
    seen.text += piece;
    onText(piece);
  }
  if (choice?.finish_reason) seen.finish = choice.finish_reason;
  if (chunk.usage) seen.usage = chunk.usage;
}

// Appends tokens to the cache, after emptying it where `position` is 0, and returns the logits
// after the last: Float32 in base64, little-endian.
async function evaluate({ tokens, position }) {
  const model = loaded();
  if (!settings.logits) throw new Error("the model was loaded without logits");
  if (position === 0) await model.resetChat(false, MODEL);
  await model.forwardTokensAndSample(tokens, position === 0, MODEL);
  return { values: base64(new Uint8Array(last.buffer)), vocab_size: last.length };
}

async function reset() {
  await loaded().resetChat(false, MODEL);
}

function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000)
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

async function info() {
  const found = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
  const told = found?.info;
  const limits = {};
  for (const name in found?.limits ?? {})
    if (typeof found.limits[name] === "number") limits[name] = found.limits[name];
  return {
    adapter: found
      ? [told.vendor, told.architecture, told.description].filter(Boolean).join(" ") || "WebGPU"
      : "none: this browser offers no WebGPU adapter",
    fallback_adapter: told?.isFallbackAdapter ?? null,
    features: [...(found?.features ?? [])].sort(),
    limits,
    threads: 0,
    user_agent: navigator.userAgent,
    cross_origin_isolated: crossOriginIsolated,
  };
}

window.edgewise = {
  ready: Promise.resolve(),
  load,
  generate,
  cancel: async () => engine?.interruptGenerate(),
  info,
  evaluate,
  reset,
  log: async () => [...log],
};
