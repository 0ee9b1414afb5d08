// window.edgewise over wllama: llama.cpp in WebAssembly, on the CPU.
//
// wllama takes prompts as text and gives probabilities with the text of each token. For exact
// work by token number the engine therefore loads the model under a vocabulary in which token 12
// is spelled "<12>" (see headers.py); the weights are the same bytes.

import { Wllama } from "/npm/@wllama/wllama/esm/index.js";

const WASM = { default: "/npm/@wllama/wllama/esm/wasm/wllama.wasm" };
const LOG_LINES = 400;

let model = null; // what load() made
let splitter = null; // a model without weights that only tokenizes
let running = null; // the AbortController of the running generation
const log = [];

function keep(level) {
  return (...parts) => {
    if (String(parts[0]).includes("llama_graph_n_input_tensors")) return; // a line per graph input
    log.push(`${level} ${parts.map(String).join(" ")}`);
    if (log.length > LOG_LINES) log.shift();
  };
}

function instance() {
  const logger = { debug: keep("D"), log: keep("I"), warn: keep("W"), error: keep("E") };
  const made = new Wllama(WASM, { logger });
  made.setCompat(null); // its default would fetch other files from a public server
  return made;
}

async function bytesOf(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address} answered with ${answer.status}`);
  return answer.blob();
}

async function open(blob, params) {
  const made = instance();
  try {
    await made.loadModel([blob], {
      n_ctx: params.context_length,
      n_batch: params.batch_tokens,
      n_ubatch: params.batch_tokens,
      n_threads: params.threads,
      n_gpu_layers: 0,
      n_parallel: 1,
      cache_type_k: params.kv_type,
      cache_type_v: params.kv_type,
      flash_attn: params.flash_attention,
      swa_full: true,
      warmup: false,
      ctx_shift: false,
      log_level: 1,
    });
  } catch (error) {
    await made.exit();
    throw error;
  }
  return made;
}

async function load(params) {
  await model?.exit();
  model = null;
  log.length = 0;
  const began = performance.now();
  let blob = await bytesOf(params.model);
  if (params.header) {
    const head = await bytesOf(params.header);
    blob = new Blob([head, blob.slice(params.data_offset)]);
  }
  const fetched = performance.now();
  model = await open(blob, params);
  const context = model.getLoadedContextInfo();
  return {
    fetch_ms: fetched - began,
    load_ms: performance.now() - fetched,
    threads: model.getNumThreads(),
    vocab_size: context.n_vocab,
    context_length: context.n_ctx,
    library: Wllama.getLibllamaVersion(),
    log: [...log],
  };
}

function loaded() {
  if (!model) throw new Error("no model is loaded");
  return model;
}

async function generate(params, onText) {
  const wllama = loaded();
  if (running) throw new Error("an answer is already being generated");
  const controller = new AbortController();
  running = controller;
  const began = performance.now();
  const seen = { text: "", first: 0, finish: "length", usage: null, timings: null };
  const request = {
    max_tokens: params.max_tokens ?? 128,
    temperature: params.temperature ?? 0,
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    abortSignal: controller.signal,
    onData: (chunk) => take(chunk, seen, onText),
  };
  for (const name of ["top_k", "top_p", "min_p", "seed", "cache_prompt", "ignore_eos"])
    if (params[name] != null) request[name] = params[name];
  try {
    if (params.messages) await wllama.createChatCompletion({ ...request, messages: params.messages });
    else await wllama.createCompletion({ ...request, prompt: params.prompt });
  } catch (error) {
    if (!controller.signal.aborted) throw error;
    seen.finish = "cancelled";
  } finally {
    running = null;
  }
  const ended = performance.now();
  const tokens = seen.usage?.completion_tokens ?? seen.timings?.predicted_n ?? null;
  const decode = ended - seen.first;
  return {
    text: seen.text,
    tokens,
    prompt_tokens: seen.usage?.prompt_tokens ?? null,
    finish: seen.finish,
    ttft_ms: (seen.first || ended) - began,
    decode_ms: seen.first ? decode : 0,
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
  if (chunk.timings) seen.timings = chunk.timings;
}

// Evaluates all tokens of the sequence; wllama keeps the longest prefix that its cache holds.
async function evaluate({ tokens, logits }) {
  const wllama = loaded();
  const answer = await wllama.createCompletion({
    prompt: tokens.map((token) => `<${token}>`).join(""),
    max_tokens: 1,
    temperature: 0,
    samplers: ["top_k"],
    top_k: 1,
    ignore_eos: true,
    cache_prompt: true,
    n_probs: logits ? wllama.getLoadedContextInfo().n_vocab : 0,
    stream: false,
  });
  const out = {
    tokens: answer.usage.prompt_tokens,
    cached: answer.usage.prompt_tokens_details?.cached_tokens ?? null,
  };
  if (!logits) return out;
  const values = new Float32Array(wllama.getLoadedContextInfo().n_vocab).fill(NaN);
  for (const { id, logprob } of answer.choices[0].logprobs.content[0].top_logprobs)
    values[id] = logprob;
  out.values = base64(new Uint8Array(values.buffer));
  return out;
}

function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000)
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

// Texts to token numbers, by wllama's own tokenizer. It offers no call for that, but it tokenizes
// the texts of a logit bias and tells the result; the bias says which text a token came from.
async function tokenize({ header, padding, texts }) {
  if (!splitter) {
    const blob = new Blob([await bytesOf(header), new Uint8Array(padding)]);
    splitter = await open(blob, { context_length: 256, batch_tokens: 32, threads: 1 });
  }
  const answer = await splitter.createCompletion({
    prompt: "a",
    max_tokens: 1,
    temperature: 0,
    verbose: true,
    // The last entry decides what is sampled: a token that is text by itself can be answered.
    logit_bias: [...texts.map((text, index) => [text, index + 1]), ["a", 1e9]],
    stream: false,
  });
  const ids = texts.map(() => []);
  for (const { token, bias } of answer.__verbose.generation_settings.logit_bias)
    if (bias >= 1 && bias <= texts.length) ids[bias - 1].push(token);
  return ids;
}

// The special tokens that llama.cpp puts around a text, by the model's own settings.
async function surroundings(params) {
  await tokenize({ ...params, texts: ["a"] });
  const context = splitter.getLoadedContextInfo();
  return {
    before: context.add_bos_token ? [context.token_bos] : [],
    after: context.add_eos_token ? [context.token_eos] : [],
  };
}

async function info() {
  return {
    adapter: "CPU (WebAssembly)",
    limits: {
      array_buffer_bytes: 2 ** 31 - 1,
      wasm_memory64: memory64(),
      logical_processors: navigator.hardwareConcurrency,
      device_memory_gib: navigator.deviceMemory ?? "unknown",
    },
    threads: model?.getNumThreads() ?? 0,
    user_agent: navigator.userAgent,
    cross_origin_isolated: crossOriginIsolated,
  };
}

function memory64() {
  try {
    return Boolean(new WebAssembly.Memory({ address: "i64", initial: 1n }));
  } catch {
    return false;
  }
}

window.edgewise = {
  ready: Promise.resolve(),
  load,
  generate,
  cancel: async () => running?.abort(),
  info,
  evaluate,
  tokenize,
  surroundings,
  log: async () => [...log],
};
