// The official TypeScript client with the official package for tasks, against a server with the five tools of README.md:
//
//   node ext_tasks_client.mjs URL
//
// The package leaves it to its host to send what the SDK's own schemas refuse: `RawWire` is that, over the SDK's transport.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import {
  createApplicationInputHandler,
  createTaskSessionFromClient,
  resultFromTaskOutcome,
} from "@modelcontextprotocol/ext-tasks/client";

import { Checks, must, textOf } from "./checks.mjs";

const [url] = process.argv.slice(2);
const clientInfo = { name: "interop", version: "1" };
const clientCapabilities = { elicitation: { form: {} }, extensions: { "io.modelcontextprotocol/tasks": {} } };

class RawWire {
  sent = [];
  #transport;
  #waiting = new Map();

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
      const id = `raw-${this.sent.push(request)}`;
      this.#waiting.set(id, answered);
      const { signal, context } = options;
      signal?.addEventListener("abort", () => failed(signal.reason), { once: true });
      this.#transport
        .send({ jsonrpc: "2.0", id, ...request }, { headers: context?.headers, requestSignal: signal })
        .catch(failed);
    });
}

async function connect() {
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
      sampling: () => Promise.reject(new Error("nobody asked for this")),
      roots: () => Promise.reject(new Error("nobody asked for this")),
    }),
  });
  return { client, session, wire, questions };
}

async function closed({ client, session }) {
  await session.close();
  await client.close();
}

const checks = new Checks("@modelcontextprotocol/ext-tasks");
const peer = await connect();
const { client, session, wire, questions } = peer;

await checks.run("negotiation", async () => {
  const version = client.getNegotiatedProtocolVersion();
  must(version === "2026-07-28", `negotiated ${version}`);
  must(session.capabilities.execution, "the session cannot execute tasks");
  return `${version}, ${client.getServerVersion()?.name ?? "a server"}`;
});

await checks.run("quick", async () => {
  const call = await session.callTool("quick", {});
  must(call.kind === "immediate", `expected an answer, got a ${call.kind}`);
  const text = textOf(resultFromTaskOutcome((await call.settle()).outcome));
  must(text.includes("quick: done"), `answered ${text}`);
  return text;
});

await checks.run("slow", async () => {
  const call = await session.callTool("slow", { seconds: 1 });
  must(call.kind === "task", `expected a task, got an ${call.kind} answer`);
  const seen = [];
  const { outcome } = await call.settle({ onEvent: (event) => seen.push(event.task?.status ?? event.outcome?.status) });
  const text = textOf(resultFromTaskOutcome(outcome));
  must(text.includes("slow: done"), `answered ${text}`);
  return `${seen.join(", ")}: ${text}`;
});

await checks.run("asks", async () => {
  const call = await session.callTool("asks", {});
  must(call.kind === "task", `expected a task, got an ${call.kind} answer`);
  const text = textOf(resultFromTaskOutcome((await call.settle()).outcome));
  must(text.includes("asks: hello Ada"), `answered ${text}`);
  must(questions.length === 1, `asked ${questions.length} times`);
  return `${questions[0]} ${text}`;
});

await checks.run("fails", async () => {
  const call = await session.callTool("fails", {});
  const { outcome } = await call.settle();
  must(outcome.status === "failed", `ended as ${outcome.status}`);
  must(outcome.error.message.includes("it went wrong"), `failed with ${outcome.error.message}`);
  return `${outcome.error.code}: ${outcome.error.message}`;
});

await checks.run("cancel", async () => {
  const call = await session.callTool("cancellable", {});
  await call.cancel();
  const task = session.task(call.handle.taskId);
  for (;;) {
    const { status } = await task.snapshot();
    if (status === "cancelled") return status;
    must(status === "working", `ended as ${status}`);
    await new Promise((done) => setTimeout(done, 100));
  }
});

await checks.run("resume", async () => {
  let reference;
  const first = await session.callTool("slow", { seconds: 2 });
  await first.handoff((saved) => {
    reference = JSON.stringify(saved);
  });
  await closed(peer);
  const second = await connect();
  const call = await second.session.resumeTask(JSON.parse(reference));
  const text = textOf(resultFromTaskOutcome((await call.settle()).outcome));
  must(text.includes("slow: done"), `answered ${text}`);
  await closed(second);
  return `from a second client: ${text}`;
});

await checks.run("wire", async () => {
  const methods = new Set(wire.sent.map((request) => request.method));
  for (const method of ["tools/call", "tasks/get", "tasks/update", "tasks/cancel"]) {
    must(methods.has(method), `never sent ${method}`);
  }
  return [...methods].join(", ");
});

checks.end();
