// Vercel's AI SDK: `node ai.mjs CHECK BASE_URL MODEL`, one check a process.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [check, baseURL, name] = process.argv.slice(2);
const TEXT = "Hello wörld";
const settings = { name: "edgewise", baseURL, includeUsage: true, supportsStructuredOutputs: true };
const chat = createOpenAICompatible(settings).chatModel(name);
const response = createOpenAI({ baseURL, apiKey: "not-needed" })(name); // /v1/responses
// Without it the SDK names earlier items that it takes to be stored, instead of sending them.
const unstored = { openai: { store: false } };
const asked = (fields) => ({ model: chat, prompt: "Name a fruit.", maxRetries: 0, ...fields });
const fruit = z.object({ name: z.string(), grams: z.number() });
const look = tool({
  description: "Looks.",
  inputSchema: z.object({ a: z.number() }),
  execute: async ({ a }) => ({ seen: a }),
});

async function refusal(promise) {
  const error = await promise.then(() => assert.fail("it was answered"), (reason) => reason);
  assert(APICallError.isInstance(error), `${error}`);
  return error;
}

const checks = {
  async text() {
    for (const model of [chat, response]) {
      const reply = await generateText(asked({ model, system: "Be brief.", seed: undefined }));
      assert.equal(reply.text, TEXT);
      assert.equal(reply.finishReason, "stop");
      assert.equal(reply.usage.outputTokens, 3);
      assert.deepEqual(reply.warnings, []);
    }
  },

  async stream() {
    for (const model of [chat, response]) {
      const reply = streamText(asked({ model }));
      let text = "";
      for await (const delta of reply.textStream) text += delta;
      assert.equal(text, TEXT);
      assert.equal(await reply.finishReason, "stop");
      assert.equal((await reply.usage).outputTokens, 3);
    }
  },

  async tools() {
    const once = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" });
    for (const model of [chat, response]) {
      const steps = { model, tools: { look }, prepareStep: once, stopWhen: stepCountIs(3), providerOptions: unstored };
      const reply = await generateText(asked(steps));
      assert.deepEqual(reply.steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
      assert.deepEqual(reply.steps[0].toolResults[0].output, { seen: 1 });
      assert.equal(reply.text, TEXT);
      const streamed = streamText(asked(steps));
      assert.equal((await streamed.steps).length, 2);
      assert.equal(await streamed.text, TEXT);
    }
  },

  async schema() {
    const output = Output.object({ schema: fruit });
    for (const model of [chat, response]) {
      const reply = await generateText(asked({ model, output }));
      assert.deepEqual(reply.output, { name: "apple", grams: 5 });
    }
  },

  async refused() {
    const error = await refusal(generateText(asked({ presencePenalty: 0.5 })));
    assert.deepEqual([error.statusCode, error.isRetryable], [400, false]);
    assert.match(error.message, /presence_penalty/);
    assert.equal(JSON.parse(error.responseBody).error.code, "parameter-unsupported");
    const providerOptions = { openai: { instructions: "x", store: true } };
    const stored = await refusal(generateText(asked({ model: response, providerOptions })));
    assert.match(stored.message, /store/);
  },

  async busy() {
    await generateText(asked({}));
    const error = await refusal(generateText(asked({})));
    assert.deepEqual([error.statusCode, error.isRetryable], [429, true]);
    assert(Number(error.responseHeaders["retry-after"]) >= 1);
  },

  async abort() {
    const stopping = new AbortController();
    const reply = streamText(asked({ abortSignal: stopping.signal }));
    for await (const part of reply.fullStream) {
      if (part.type === "text-delta") stopping.abort();
      assert.notEqual(part.type, "finish");
    }
    const again = await generateText(asked({ maxOutputTokens: 2 }));
    assert.equal(again.finishReason, "length");
  },

  async broken() {
    const edgewise = { edgewise: { edgewise: { deadline_s: 0.1 } } };
    const parts = [];
    const reply = streamText(asked({ providerOptions: edgewise, onError: () => {} }));
    for await (const part of reply.fullStream) parts.push(part);
    const failure = parts.find((part) => part.type === "error");
    assert.match(String(failure.error?.message ?? failure.error), /deadline/);
    assert(!parts.some((part) => part.type === "finish" && part.finishReason === "stop"));
  },
};

await checks[check]();
