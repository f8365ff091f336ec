// Turns and durable steps of Restate, asked for over its HTTP ingress by clients in a closed loop.
//
// node restate_turns.mjs INGRESS_URL [SECONDS] [CLIENTS_MAX]

import http from "node:http";
import { randomUUID } from "node:crypto";

const [ingress, seconds = "5", clientsMax = "256"] = process.argv.slice(2);
if (!ingress) {
  console.error("Give the URL of Restate's ingress, for example http://127.0.0.1:8080");
  process.exit(2);
}

const TURNS = [[1, 1], [16, 16], [64, 64], [256, 256], [1, 2], [1, 16]];
const STEPS = [1, 16, 64];
const N_STEPS = 50;
const agent = new http.Agent({ keepAlive: true, maxSockets: 512 });

function post(path, body) {
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json" };
    const request = http.request(`${ingress}/${path}`, { method: "POST", agent, headers }, (answer) => {
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (part) => (text += part));
      answer.on("end", () => {
        const ok = answer.statusCode === 200;
        if (ok) resolve(text && JSON.parse(text));
        else reject(new Error(`${path}: ${answer.statusCode} ${text}`));
      });
    });
    request.on("error", reject);
    // Restate repeats a failing handler for hours; a measurement must end.
    request.setTimeout(30_000, () => request.destroy(new Error(`${path}: no answer for 30 s`)));
    request.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

/** Clients that ask again as soon as they are answered, until the time is up. */
async function load(nThreads, nClients, ask) {
  const name = randomUUID().slice(0, 8);
  const [turns, begun] = [[], performance.now()];
  const client = async (thread) => {
    while (performance.now() < begun + seconds * 1e3) {
      const [asked, message] = [performance.now(), randomUUID()];
      await ask(thread, message);
      turns.push({ thread, message, took: performance.now() - asked });
    }
  };
  await Promise.all(Array.from({ length: nClients }, (_, idx) => client(`${name}-${idx % nThreads}`)));
  return { turns, spent: (performance.now() - begun) / 1e3 };
}

/** How often each message is answered in the stored histories. */
async function answers(turns) {
  const found = new Map();
  for (const thread of new Set(turns.map((turn) => turn.thread))) {
    const { messages } = await post(`Thread/${thread}/stored`);
    const asked = new Set(messages.map((message) => message.id));
    for (const { answers } of messages) {
      if (answers && asked.has(answers)) found.set(answers, (found.get(answers) ?? 0) + 1);
    }
  }
  return found;
}

function share(millis, part) {
  return Number((millis[Math.floor((millis.length - 1) * part)] ?? 0).toFixed(2));
}

function figures(store, threads, clients, { turns, spent }, lost, doubled) {
  const millis = turns.map((turn) => turn.took).sort((a, b) => a - b);
  const [p50_ms, p99_ms] = [share(millis, 0.5), share(millis, 0.99)];
  const turns_per_s = Number((turns.length / spent).toFixed(1));
  print({ store, threads, clients, turns: turns.length, turns_per_s, p50_ms, p99_ms, lost, doubled });
}

function print(fields) {
  console.log(JSON.stringify({ peer: "restate", ...fields }));
}

async function measureTurns(threads, clients) {
  const done = await load(threads, clients, (thread, message) => post(`Thread/${thread}/turn`, message));
  const found = await answers(done.turns);
  const counted = done.turns.map(({ message }) => found.get(message) ?? 0);
  const lost = counted.filter((n) => n === 0).length;
  figures("its own", threads, clients, done, lost, counted.filter((n) => n > 1).length);
}

/** One thread without a history; its counter shows turns that were lost or doubled. */
async function measureCount(clients) {
  const done = await load(1, clients, (thread, message) => post(`Thread/${thread}/count`, message));
  const { n } = await post(`Thread/${done.turns[0].thread}/stored`);
  const [lost, doubled] = [Math.max(done.turns.length - n, 0), Math.max(n - done.turns.length, 0)];
  figures("its own, no history", 1, clients, done, lost, doubled);
}

async function measureSteps(workflows) {
  const { turns, spent } = await load(workflows, workflows, () => post("Steps/run"));
  const steps_per_s = Number(((turns.length * N_STEPS) / spent).toFixed(1));
  print({ store: "its own", workflows, steps_per_s });
}

// Not counted: it opens connections and lets the programs warm up.
await load(16, 16, (thread, message) => post(`Thread/${thread}/turn`, message));
for (const [threads, clients] of TURNS) {
  if (clients <= clientsMax) await measureTurns(threads, clients);
}
await measureCount(Math.min(16, clientsMax));
for (const workflows of STEPS) {
  if (workflows <= clientsMax) await measureSteps(workflows);
}
agent.destroy();
