// OpenAI's own client for JavaScript: `node openai.mjs CHECK BASE_URL MODEL`, one check a process.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [check, baseURL, model] = process.argv.slice(2);
const TEXT = "Hello wörld";
const messages = [{ role: "user", content: "Name a fruit." }];
const parameters = { type: "object", properties: {} };
const tools = [{ type: "function", function: { name: "look", parameters } }];
const fruit = z.object({ name: z.string(), grams: z.number() });
const clientWith = (options) => new OpenAI({ baseURL, apiKey: "not-needed", maxRetries: 0, ...options });
const client = clientWith({});
const create = (fields, options) => client.chat.completions.create({ model, messages, ...fields }, options);

async function refusal(promise, kind) {
  const error = await promise.then(() => assert.fail("it was answered"), (reason) => reason);
  assert(error instanceof kind, `${error}`);
  return error;
}

const checks = {
  async models() {
    const found = [];
    for await (const one of client.models.list()) found.push(one.id);
    assert.deepEqual(found, [model]);
    assert.equal((await client.models.retrieve(model)).owned_by, "local");
    const error = await refusal(client.models.retrieve("gpt-4"), OpenAI.NotFoundError);
    assert.equal(error.code, "model-not-found");
  },

  async chat() {
    const reply = await create({ logprobs: true, top_logprobs: 2, seed: 1, temperature: 0.5 });
    const [choice] = reply.choices;
    assert.equal(choice.message.content, TEXT);
    assert.equal(choice.finish_reason, "stop");
    assert.equal(choice.logprobs.content[0].top_logprobs[0].token, "a");
    assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
    assert.equal(reply.edgewise.route, "local");
  },

  async defaults() {
    const neutral = { n: 1, store: false, metadata: {}, service_tier: "auto", user: "me" };
    const limits = { max_completion_tokens: 2, frequency_penalty: 0, presence_penalty: 0, logit_bias: {} };
    const hints = { verbosity: "medium", parallel_tool_calls: true };
    const said = [{ role: "developer", content: "Be brief." }, ...messages];
    const reply = await create({ ...neutral, ...limits, ...hints, messages: said, modalities: ["text"] });
    assert.equal(reply.choices[0].finish_reason, "length");
  },

  async stream() {
    const chunks = [];
    const asked = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await create(asked)) chunks.push(chunk);
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? "").join(""), TEXT);
    assert.equal(chunks.at(-2).choices[0].finish_reason, "stop");
    assert.equal(chunks.at(-1).usage.completion_tokens, 3);
    const whole = await client.chat.completions.stream({ model, messages }).finalChatCompletion();
    assert.equal(whole.choices[0].message.content, TEXT);
  },

  async tools() {
    const first = await create({ tools, tool_choice: "required" });
    const said = first.choices[0].message;
    assert.equal(first.choices[0].finish_reason, "tool_calls");
    assert.equal(said.tool_calls[0].function.name, "look");
    const answer = { role: "tool", tool_call_id: said.tool_calls[0].id, content: "42" };
    const second = await create({ tools, messages: [...messages, said, answer] });
    assert.equal(second.choices[0].message.content, TEXT);
    const asked = { model, messages, tools, tool_choice: "required" };
    const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
    assert.equal(streamed.choices[0].message.tool_calls[0].function.arguments, '{"a":1}');
  },

  async schema() {
    const response_format = zodResponseFormat(fruit, "fruit");
    const reply = await client.chat.completions.parse({ model, messages, response_format });
    assert.deepEqual(reply.choices[0].message.parsed, { name: "apple", grams: 5 });
    const format = zodTextFormat(fruit, "fruit");
    const response = await client.responses.parse({ model, input: "x", text: { format } });
    assert.deepEqual(response.output_parsed, { name: "apple", grams: 5 });
  },

  async completions() {
    const asked = { model, prompt: ["ab", "cd"], max_tokens: 0, echo: true, logprobs: 2 };
    const reply = await client.completions.create(asked);
    assert.deepEqual(reply.choices.map((choice) => choice.text), ["ab", "cd"]);
    assert.deepEqual(reply.choices[0].logprobs.token_logprobs, [null, -0.5]);
  },

  async responses() {
    const reply = await client.responses.create({ model, input: "hi", instructions: "Be brief." });
    assert.equal(reply.output_text, TEXT);
    const user = { role: "user", content: "more" };
    const again = await client.responses.create({ model, input: [user, ...reply.output, user] });
    assert.equal(again.output_text, TEXT);
    const types = [];
    for await (const event of await client.responses.create({ model, input: "hi", stream: true })) {
      types.push(event.type);
    }
    assert.equal(types[0], "response.created");
    assert.equal(types.at(-1), "response.completed");
    const whole = await client.responses.stream({ model, input: "hi" }).finalResponse();
    assert.equal(whole.output[0].content[0].text, TEXT);
  },

  async refused() {
    const refusals = [
      [{ n: 2 }, "n", "parameter-unsupported"],
      [{ presence_penalty: 0.5 }, "presence_penalty", "parameter-unsupported"],
      [{ reasoning_effort: "high" }, "reasoning_effort", "parameter-unsupported"],
      [{ verbosity: "low" }, "verbosity", "parameter-unsupported"],
      [{ store: true }, "store", "parameter-unsupported"],
      [{ invented: 1 }, "invented", "parameter-unknown"],
      [{ temperature: -1 }, "temperature", "parameter-invalid"],
    ];
    for (const [fields, param, code] of refusals) {
      const error = await refusal(create(fields), OpenAI.BadRequestError);
      assert.deepEqual([error.param, error.code], [param, code]);
    }
  },

  async token() {
    await refusal(client.models.list(), OpenAI.AuthenticationError);
    const known = clientWith({ apiKey: "correct-horse-battery" });
    assert.equal((await known.models.list()).data[0].id, model);
  },

  async busy() {
    await create({});
    const error = await refusal(create({}), OpenAI.RateLimitError);
    assert.equal(error.code, "rate-limited");
    assert(Number(error.headers.get("retry-after")) >= 1);
  },

  async declined() {
    const policy = await refusal(create({}), OpenAI.PermissionDeniedError);
    assert.equal(policy.code, "declined-by-policy");
    const state = await refusal(create({}), OpenAI.InternalServerError);
    assert.deepEqual([state.status, state.code], [503, "declined-by-state"]);
    assert(Number(state.headers.get("retry-after")) >= 1);
  },

  async retried() {
    const patient = clientWith({ maxRetries: 1 });
    const reply = await patient.chat.completions.create({ model, messages });
    assert.equal(reply.choices[0].message.content, TEXT);
  },

  async abort() {
    const stopping = new AbortController();
    for await (const _ of await create({ stream: true }, { signal: stopping.signal })) stopping.abort();
    const whole = new AbortController();
    setTimeout(() => whole.abort(), 200);
    await refusal(create({}, { signal: whole.signal }), OpenAI.APIUserAbortError);
    assert.equal((await create({ max_tokens: 2 })).choices[0].finish_reason, "length");
  },

  async broken() {
    const finishes = new Set();
    const read = async () => {
      const stream = await create({ stream: true, edgewise: { deadline_s: 0.1 } });
      for await (const chunk of stream) finishes.add(chunk.choices[0].finish_reason);
    };
    const error = await refusal(read(), OpenAI.APIError);
    assert.equal(error.code, "deadline-exceeded");
    assert.deepEqual([...finishes], [null]);
  },
};

await checks[check]();
