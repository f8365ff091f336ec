// What Restate runs: a virtual object for each thread, as its documentation keeps chat sessions, and a
// service of many steps. The history is one value that is read and written whole, as documented.

import http2 from "node:http2";
import * as restate from "@restatedev/restate-sdk";

const REPLY = "Nothing new. ".repeat(20);
const N_STEPS = 50;

const thread = restate.object({
  name: "Thread",
  handlers: {
    turn: async (ctx, message) => {
      const messages = (await ctx.get("messages")) ?? [];
      messages.push({ role: "user", id: message, text: "What is new?" });
      const text = await ctx.run("reply", () => REPLY);
      messages.push({ role: "assistant", answers: message, text });
      ctx.set("messages", messages);
      return text;
    },
    // The same without a history to carry: how fast the product itself hands one thread on.
    count: async (ctx, _message) => {
      const n = (await ctx.get("n")) ?? 0;
      const text = await ctx.run("reply", () => REPLY);
      ctx.set("n", n + 1);
      return text;
    },
    stored: restate.handlers.object.shared(async (ctx) => ({
      messages: (await ctx.get("messages")) ?? [],
      n: (await ctx.get("n")) ?? 0,
    })),
  },
});

const steps = restate.service({
  name: "Steps",
  handlers: {
    run: async (ctx) => {
      for (let step = 0; step < N_STEPS; step++) {
        await ctx.run(`step ${step}`, () => REPLY);
      }
    },
  },
});

// Only this machine may call it.
const handler = restate.createEndpointHandler({ services: [thread, steps] });
http2.createServer(handler).listen(Number(process.argv[2]), "127.0.0.1");
