// The MCP Inspector's command lines against a server with the five tools of README.md:
//
//   node inspector_client.mjs URL
//
// `mcp-inspector --cli` makes one request and ends; what needs several is done with `mcpdo`, of the same package, which
// keeps a connection between commands. Both keep their files in a folder that goes with this run.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { Checks, must, textOf } from "./checks.mjs";

const [url] = process.argv.slice(2);
const inspector = join(dirname(fileURLToPath(import.meta.url)), "node_modules/@modelcontextprotocol/inspector/clients");
const home = mkdtempSync(join(tmpdir(), "inspector-"));
const env = {
  ...process.env,
  HOME: home,
  MCP_INSPECTOR_SECRET_STORE: "file",
  MCP_INSPECTOR_DAEMON_DIR: join(home, "daemon"),
  MCP_INSPECTOR_DAEMON_TOKEN: randomBytes(32).toString("hex"),
};

/** Runs a script of the Inspector; gives its status, and what it printed as JSON. */
function run(script, args) {
  return new Promise((done, failed) => {
    const child = spawn(process.execPath, [join(inspector, script), ...args], { env, timeout: 25_000 });
    let [stdout, stderr] = ["", ""];
    child.stdout.on("data", (data) => (stdout += data));
    child.stderr.on("data", (data) => (stderr += data));
    child.on("error", failed);
    child.on("close", (status) => done({ status, out: json(stdout), err: json(stderr.trim().split("\n").at(-1)) }));
  });
}

function json(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const cli = (...args) =>
  run("launcher/build/index.js", [
    ...["--cli", url, "--transport", "http", "--protocol-era", "modern", "--format", "json", "--method"],
    ...args,
  ]);
const call = (tool, ...args) => cli("tools/call", "--tool-name", tool, ...args);
const mcpdo = (...args) => run("mcpdo/build/mcp-bin.js", ["--format", "json", "--connection", url, ...args]);

const said = ({ status, out, err }) => `status ${status}: ${JSON.stringify(out || err)}`;

/** Starts a task beside the Inspector, and gives its id. */
async function start(tool) {
  const [name, version] = ["io.modelcontextprotocol", "2026-07-28"];
  const _meta = {
    [`${name}/protocolVersion`]: version,
    [`${name}/clientInfo`]: { name: "interop", version: "1" },
    [`${name}/clientCapabilities`]: { elicitation: {}, extensions: { [`${name}/tasks`]: {} } },
  };
  const answer = await fetch(url, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      "mcp-protocol-version": version,
      "mcp-method": "tools/call",
      "mcp-name": tool,
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool, arguments: {}, _meta } }),
  });
  const { result } = await answer.json();
  must(result?.resultType === "task", `expected a task of ${tool}`);
  return result.taskId;
}

const checks = new Checks("the Inspector");

await checks.run("--cli initialize", async () => {
  const answer = await cli("initialize");
  const result = answer.out.result;
  must(result?.protocolVersion === "2026-07-28", said(answer));
  must(result.capabilities.extensions?.["io.modelcontextprotocol/tasks"], `no tasks in ${said(answer)}`);
  return `${result.protocolVersion}, with tasks`;
});

await checks.run("--cli tools/list", async () => {
  const answer = await cli("tools/list");
  const names = answer.out.result?.tools?.map((tool) => tool.name).sort().join(", ");
  must(names === "asks, cancellable, fails, quick, slow", said(answer));
  return names;
});

await checks.run("--cli tools/list --strict", async () => {
  const answer = await cli("tools/list", "--strict");
  must(answer.status === 0, said(answer));
  return "no tool has a schema that other clients could not read";
});

await checks.run("--cli quick", async () => {
  const answer = await call("quick");
  must(answer.status === 0 && textOf(answer.out.result).includes("quick: done"), said(answer));
  return textOf(answer.out.result);
});

await checks.run("--cli slow", async () => {
  const answer = await call("slow", "--tool-arg", "seconds=1");
  must(answer.status === 0 && textOf(answer.out.result).includes("slow: done"), said(answer));
  return textOf(answer.out.result);
});

await checks.run("--cli fails", async () => {
  const answer = await call("fails");
  must(answer.status !== 0 && answer.err.error?.message?.includes("it went wrong"), said(answer));
  return `status ${answer.status}, ${answer.err.error.message}`;
});

checks.notOffered("--cli asks", "--cli declares no elicitation, and nothing could answer; see mcpdo below");
await checks.run("--cli asks is refused", async () => {
  const answer = await call("asks");
  must(answer.status !== 0 && answer.err.error?.message, said(answer));
  return `status ${answer.status}, ${answer.err.error.message}`;
});

const unsupported = await cli("tasks/get");
checks.notOffered("--cli tasks/get, tasks/update, tasks/cancel", unsupported.err.error?.message ?? said(unsupported));

await checks.run("mcpdo connect", async () => {
  const answer = await run("mcpdo/build/mcp-bin.js", [
    ...["--format", "json", "connect", url, "--transport", "http", "--era", "modern", "--elicit", "both"],
  ]);
  must(answer.status === 0 && answer.out.protocolEra === "modern", said(answer));
  return answer.out.protocolEra;
});

await checks.run("mcpdo asks", async () => {
  const asked = await mcpdo("tools/call", "asks");
  const question = asked.out.elicitationPending;
  must(question?.origin === "task-input-required", said(asked));
  const answered = await mcpdo("elicitation/respond", question.elicitationId, "name:=Ada");
  must(textOf(answered.out).includes("asks: hello Ada"), said(answered));
  return `${question.message} ${textOf(answered.out)}`;
});

checks.notOffered("mcpdo's own call by id", "it waits for a call and shows no id of its task, and other commands wait behind it");
await checks.run("mcpdo tasks/get, tasks/cancel", async () => {
  const id = await start("cancellable");
  const running = await mcpdo("tasks/get", id);
  must(running.out.task?.status === "working", said(running));
  const cancelled = await mcpdo("tasks/cancel", id);
  must(cancelled.status === 0 && cancelled.out.cancelled, said(cancelled));
  for (;;) {
    const got = await mcpdo("tasks/get", id);
    if (got.out.task?.status === "cancelled") return "working, then cancelled";
    must(got.out.task?.status === "working", said(got));
  }
});

await checks.run("mcpdo tasks/update", async () => {
  const id = await start("asks");
  const answer = JSON.stringify({ name: { action: "accept", content: { name: "Ada" } } });
  const updated = await mcpdo("tasks/update", id, "--input-responses", answer);
  must(updated.status === 0 && updated.out.updated, said(updated));
  for (;;) {
    const got = await mcpdo("tasks/get", id);
    if (got.out.task?.status === "completed") return "completed";
    must(got.out.task?.status === "working" || got.out.task?.status === "input_required", said(got));
  }
});

await mcpdo("daemon", "stop");
rmSync(home, { recursive: true, force: true });
checks.end();
