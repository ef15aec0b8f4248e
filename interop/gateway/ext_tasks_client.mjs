// The official TypeScript client with the official package for tasks, against a gateway:
//
//   node ext_tasks_client.mjs URL everything|plain
//
// The package leaves it to its host to send what the SDK's own schemas refuse: see ../ext_tasks_client.mjs, whose `RawWire`
// this is.
import { randomUUID } from "node:crypto";

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import {
  createApplicationInputHandler,
  createTaskSessionFromClient,
  resultFromTaskOutcome,
} from "@modelcontextprotocol/ext-tasks/client";

import { Checks, must, textOf } from "./checks.mjs";

const [url, upstream] = process.argv.slice(2);
const tools = {
  everything: {
    quick: ["echo", { message: "hi" }, "Echo: hi"],
    slow: ["trigger-long-running-operation", { duration: 3, steps: 3 }, "Long running operation completed"],
    asks: ["trigger-elicitation-request", {}, "- Name: Ada"],
    samples: ["trigger-sampling-request", { prompt: "What is the capital of France?" }, "Paris"],
    fails: ["no-such-tool", {}, "not found"],
    endless: ["trigger-long-running-operation", { duration: 60, steps: 60 }],
  },
  plain: {
    quick: ["times", { label: "never" }, "0"],
    slow: ["slow", { seconds: 3 }, "slow: done"],
    asks: ["asks", {}, "asks: hello Ada"],
    samples: ["samples", {}, "samples: Paris"],
    fails: ["fails", {}, "it went wrong, as it should"],
    endless: ["cancellable", { label: randomUUID() }],
  },
}[upstream];
const clientInfo = { name: "interop", version: "1" };
const clientCapabilities = {
  elicitation: { form: {} },
  sampling: {},
  extensions: { "io.modelcontextprotocol/tasks": {} },
};

class RawWire {
  #transport;
  #waiting = new Map();
  #sent = 0;

  constructor(transport) {
    this.#transport = transport;
  }

  /** Takes the answers to its own requests out of what the SDK sees. To be called once the SDK listens. */
  listen() {
    const sdk = this.#transport.onmessage;
    this.#transport.onmessage = (message, extra) => {
      const waiting = this.#waiting.get(message.id);
      if (!waiting) return sdk?.(message, extra);
      this.#waiting.delete(message.id);
      waiting(message.error ? { kind: "error", error: message.error } : { kind: "result", result: message.result });
    };
  }

  dispatch = (request, options = {}) =>
    new Promise((answered, failed) => {
      this.#sent += 1;
      const id = `raw-${this.#sent}`;
      this.#waiting.set(id, answered);
      const { signal, context } = options;
      signal?.addEventListener("abort", () => failed(signal.reason), { once: true });
      this.#transport
        .send({ jsonrpc: "2.0", id, ...request }, { headers: context?.headers, requestSignal: signal })
        .catch(failed);
    });
}

const transport = new StreamableHTTPClientTransport(new URL(url));
const client = new Client(clientInfo, { capabilities: clientCapabilities, versionNegotiation: { mode: "auto" } });
await client.connect(transport);
const wire = new RawWire(transport);
wire.listen();
const questions = [];
const session = createTaskSessionFromClient(client, {
  endpointId: "interop",
  rawDispatch: wire.dispatch,
  v2RequestFraming: { protocolVersion: client.getNegotiatedProtocolVersion(), clientInfo, clientCapabilities },
  onInputRequest: createApplicationInputHandler({
    elicitation: (request) => {
      questions.push(request.params.message);
      return { action: "accept", content: { name: "Ada" } };
    },
    sampling: (request) => {
      questions.push(request.params.messages[0].content.text);
      return { role: "assistant", model: "a-model", stopReason: "endTurn", content: { type: "text", text: "Paris" } };
    },
    roots: () => Promise.reject(new Error("nobody asked for this")),
  }),
});

/** Calls a tool, and gives back the call's kind, its text, and every status and message that was seen. */
async function call([tool, args]) {
  const begun = await session.callTool(tool, args);
  const seen = [];
  const { outcome } = await begun.settle({
    onEvent: ({ task }) => task && seen.push(task.statusMessage ?? task.status),
  });
  return { kind: begun.kind, text: textOf(resultFromTaskOutcome(outcome)), seen };
}

const checks = new Checks(upstream);

await checks.run("quick", async () => {
  const { kind, text } = await call(tools.quick);
  must(kind === "immediate", `expected an answer, got a ${kind}`);
  must(text.includes(tools.quick[2]), `answered ${text}`);
  return text;
});

await checks.run("slow call as task, with progress", async () => {
  const { kind, text, seen } = await call(tools.slow);
  must(kind === "task", `expected a task, got an ${kind} answer`);
  must(text.includes(tools.slow[2]), `answered ${text}`);
  must(seen.some((message) => /\d\/\d/.test(message)), `saw ${seen}`);
  return `${seen.join(", ")}: ${text}`;
});

for (const [name, key] of [["elicitation", "asks"], ["sampling", "samples"]]) {
  await checks.run(name, async () => {
    questions.length = 0;
    const { kind, text } = await call(tools[key]);
    must(kind === "task", `expected a task, got an ${kind} answer`);
    must(text.includes(tools[key][2]), `answered ${text}`);
    must(questions.length === 1, `asked ${questions.length} times`);
    return `asked: ${questions[0]}`;
  });
}

await checks.run("a tool's error", async () => {
  const begun = await session.callTool(...tools.fails);
  const result = resultFromTaskOutcome((await begun.settle()).outcome);
  must(result.isError, `no error: ${JSON.stringify(result)}`);
  must(textOf(result).includes(tools.fails[2]), `answered ${textOf(result)}`);
  return textOf(result);
});

await checks.run("cancel", async () => {
  const begun = await session.callTool(...tools.endless);
  await begun.cancel();
  const task = session.task(begun.handle.taskId);
  for (;;) {
    const { status } = await task.snapshot();
    if (status === "cancelled") break;
    must(status === "working", `ended as ${status}`);
    await new Promise((done) => setTimeout(done, 100));
  }
  if (upstream !== "plain") return "cancelled; this server goes on with what it was asked to end";
  for (;;) {
    const { text } = await call(["was_cancelled", tools.endless[1]]);
    if (text.includes("yes")) return "cancelled, at the server too";
    await new Promise((done) => setTimeout(done, 100));
  }
});

checks.end();
