// The official TypeScript SDK's server of the generation before, with its experimental tasks of protocol 2025-11-25, in memory:
//
//   node typescript_2025_server.mjs [PORT]
//
// It offers the five tools that every peer here offers; see README.md.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { ErrorCode, McpError } from "@modelcontextprotocol/sdk/types.js";
import { z } from "zod";

/** The SDK's store keeps results alone: an error is thrown when its result is asked for. */
class Store extends InMemoryTaskStore {
  async getTaskResult(id, session) {
    const result = await super.getTaskResult(id, session);
    if (result.error) throw new McpError(ErrorCode.InternalError, result.error);
    return result;
  }
}

const store = new Store();
const queue = new InMemoryTaskMessageQueue();

function text(text) {
  return { content: [{ type: "text", text }] };
}

function fixtures() {
  const server = new McpServer(
    { name: "typescript-2025", version: "1.32.2" },
    {
      capabilities: { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
      taskStore: store,
      taskMessageQueue: queue,
      defaultTaskPollInterval: 200,
    },
  );
  server.registerTool("quick", { description: "Answers at once" }, () => text("quick: done"));

  /** Registers a tool whose calls are tasks. */
  function task(name, description, inputSchema, work) {
    server.experimental.tasks.registerToolTask(
      name,
      { description, inputSchema, execution: { taskSupport: "required" } },
      {
        async createTask(args, { taskStore, taskRequestedTtl }) {
          const task = await taskStore.createTask({ ttl: taskRequestedTtl ?? null, pollInterval: 200 });
          const end = (status, result) =>
            // One that was cancelled meanwhile takes no result.
            taskStore.storeTaskResult(task.taskId, status, result).catch(() => {});
          work(args, task.taskId, taskStore).then(
            (result) => end("completed", text(result)),
            (error) => end("failed", { error: error.message }),
          );
          return { task };
        },
        getTask: (_, { taskId, taskStore }) => taskStore.getTask(taskId),
        getTaskResult: (_, { taskId, taskStore }) => taskStore.getTaskResult(taskId),
      },
    );
  }

  task("slow", "Takes as long as it is told to", { seconds: z.number().default(1) }, async ({ seconds }) => {
    await sleep(seconds * 1000);
    return "slow: done";
  });
  task("asks", "Asks for a name", {}, async (_, taskId, taskStore) => {
    await taskStore.updateTaskStatus(taskId, "input_required");
    const answer = await server.server.elicitInput(
      {
        mode: "form",
        message: "What is your name?",
        requestedSchema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
      },
      { relatedTask: { taskId } },
    );
    await taskStore.updateTaskStatus(taskId, "working");
    return `asks: hello ${answer.action === "accept" ? answer.content.name : "nobody"}`;
  });
  task("fails", "Ends in a JSON-RPC error", {}, async () => {
    await sleep(200);
    throw new Error("it went wrong, as it should");
  });
  task("cancellable", "Takes a minute, unless it is cancelled", {}, async () => {
    await sleep(60_000, undefined, { ref: false });
    return "cancellable: done";
  });
  return server;
}

const sessions = new Map();

async function handle(request, response) {
  const known = sessions.get(request.headers["mcp-session-id"]);
  if (known) return known.handleRequest(request, response);
  if (request.headers["mcp-session-id"]) return response.writeHead(404).end();
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await fixtures().connect(transport);
  return transport.handleRequest(request, response);
}

const http = createServer((request, response) => {
  handle(request, response).catch((error) => response.writeHead(500).end(String(error)));
});
http.listen(Number(process.argv[2] ?? 0), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${http.address().port}/mcp`);
});
