// The unmodified npm client: create, stream, lose the connection and come back, wait, double
// texting, cancel, search, state, history. Usage: node npm.mjs BASE_URL REPOSITORY

import { createRequire } from "node:module";
import assert from "node:assert/strict";

const { Client } = createRequire(`${process.env.EVENKEEL_SDK_NODE}/`)("@langchain/langgraph-sdk");
const client = new Client({ apiUrl: process.argv[2], callerOptions: { maxRetries: 0 } });
const says = (content) => ({ messages: [{ role: "user", content }] });

const assistants = await client.assistants.search();
assert(assistants.some((a) => a.graph_id === "chat"));

const thread = (await client.threads.create({ metadata: { from: "npm" } })).thread_id;
const seen = [];
for await (const part of client.runs.stream(thread, "chat", {
  input: says("Hello?"),
  streamMode: ["values", "messages-tuple", "updates"],
})) seen.push(part);
assert.equal(seen[0].event, "metadata");
const run = seen[0].data.run_id;
for (const name of ["values", "messages", "updates"]) assert(seen.some((p) => p.event === name), name);

// The same run once more, from the beginning and from its middle.
const replay = async (lastEventId) => {
  const parts = [];
  for await (const part of client.runs.joinStream(thread, run, { lastEventId, streamMode: ["values", "updates"] }))
    parts.push(part);
  return parts.filter((p) => p.id);
};
const whole = await replay("-1");
const rest = await replay(whole[1].id);
assert.deepEqual(rest, whole.slice(2));

const values = await client.runs.wait(thread, "chat", { input: says("And now?") });
assert.deepEqual(values.messages.map((m) => m.type), ["human", "ai", "human", "ai"]);

// A second message while the first one runs.
const first = await client.runs.create(thread, "chat", { input: says("slow") });
await assert.rejects(
  client.runs.create(thread, "chat", { input: says("no"), multitaskStrategy: "reject" }),
  (error) => error.status === 409,
);
const queued = await client.runs.create(thread, "chat", { input: says("next"), multitaskStrategy: "enqueue" });
await client.runs.join(thread, queued.run_id);
assert.equal((await client.runs.get(thread, first.run_id)).status, "success");
assert.equal((await client.runs.get(thread, queued.run_id)).status, "success");

const slow = await client.runs.create(thread, "chat", { input: says("slow") });
await client.runs.cancel(thread, slow.run_id, true);
assert.equal((await client.runs.get(thread, slow.run_id)).status, "interrupted");

const state = await client.threads.getState(thread);
assert.equal(state.values.messages.at(-1).content, "slow");
await client.threads.updateState(thread, { values: says("noted") });
assert.equal((await client.threads.getState(thread)).values.messages.at(-1).content, "noted");
assert((await client.threads.getHistory(thread, { limit: 3 })).length === 3);
await client.threads.update(thread, { metadata: { more: 1 } });
const found = await client.threads.search({ metadata: { from: "npm" } });
assert.deepEqual(found.map((t) => t.thread_id), [thread]);
assert.equal(found[0].metadata.more, 1);
assert((await client.runs.list(thread)).length >= 4);
await client.runs.delete(thread, slow.run_id);
await client.threads.delete(thread);
await assert.rejects(client.threads.get(thread), (error) => error.status === 404);
console.log("ok");
