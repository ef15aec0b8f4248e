#!/usr/bin/env python3
"""Drives a running fixture server with FastMCP's Python client.

Usage: fastmcp_check.py URL

FastMCP and fastmcp-tasks are an independent implementation of the client side of the Tasks
extension, so what passes here works for somebody else's code and not only for ours. Each check
opens a connection of its own and prints one line; `fastmcp.sh` supplies the server.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError

# Importing fastmcp_tasks is also what makes every Client declare the extension.
from fastmcp_tasks import ToolTask, call_tool_task

EXTENSION = "io.modelcontextprotocol/tasks"
PROTOCOL = "2026-07-28"

CHECK_SECONDS = 30.0
"""The longest that one check may take, its connection included."""

WAIT_SECONDS = 15.0
"""The longest wait for a task to reach a state; the client polls at most every `pollIntervalMs`."""


class Session:
    """A connected client that remembers what it sent and what it was asked."""

    def __init__(self, url: str) -> None:
        self.requests: list[dict[str, Any]] = []
        self.questions: list[str] = []
        transport = StreamableHttpTransport(url, httpx_client_factory=self._http_client)
        self.client = Client(
            transport,
            elicitation_handler=self._answer,
            timeout=WAIT_SECONDS,
            init_timeout=WAIT_SECONDS,
        )

    def sent(self, method: str) -> list[dict[str, Any]]:
        """The params of every request of this method, in the order they were sent."""
        return [r.get("params", {}) for r in self.requests if r.get("method") == method]

    def _http_client(self, **options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(event_hooks={"request": [self._record]}, **options)

    async def _record(self, request: httpx2.Request) -> None:
        if request.method == "POST":
            self.requests.append(json.loads(request.content))

    async def _answer(self, message: str, _type: Any, params: Any, _context: Any) -> dict[str, Any]:
        self.questions.append(message)
        # A question by URL has no schema and takes no content.
        schema = getattr(params, "requested_schema", None) or {}
        return {name: sample(field) for name, field in schema.get("properties", {}).items()}


def sample(schema: dict[str, Any]) -> Any:
    """A value that satisfies one property of an elicitation form: consent, where it is asked."""
    choices = schema.get("enum") or [c["const"] for c in schema.get("oneOf", []) if "const" in c]
    if choices:
        return choices[0]
    match schema.get("type"):
        case "boolean":
            return True
        case "integer" | "number":
            return schema.get("minimum", schema.get("maximum", 7))
        case "array":
            items = schema.get("items", {})
            return [sample({**items, "oneOf": items.get("anyOf", items.get("oneOf", []))})]
        case _:
            return schema.get("default") or "x" * max(4, schema.get("minLength", 0))


def text_of(result: Any) -> str:
    """Everything that a tool result says, as one string to search in."""
    parts = [block.text for block in result.content if hasattr(block, "text")]
    return " ".join([*parts, json.dumps(result.structured_content)])


def require(holds: bool, otherwise: str) -> None:
    """Fails the running check; `assert` would vanish under `python -O`."""
    if not holds:
        raise AssertionError(otherwise)


async def tool_error(awaitable: Awaitable[Any]) -> str:
    """The message of the ToolError that this must end in."""
    try:
        await awaitable
    except ToolError as error:
        return str(error)
    raise AssertionError("expected a ToolError, got a result")


async def negotiation(s: Session) -> str:
    # A discovery answer that the client cannot accept makes it fall back to `initialize` without a
    # word, and every call then runs synchronously: say so here rather than eight times below.
    version = s.client.protocol_version
    require(version == PROTOCOL, f"negotiated {version}, not {PROTOCOL}")
    extensions = s.client.server_capabilities.extensions or {}
    require(EXTENSION in extensions, f"server declares {sorted(extensions)}")
    return f"{version}, extension declared"


async def sync_tool(s: Session) -> str:
    result = await s.client.call_tool("greet", {"name": "Ada"})
    require("Ada" in text_of(result), f"name missing from {text_of(result)!r}")
    require(not s.sent("tasks/get"), "a tool that cannot be a task became one")
    return "answered at once"


async def transparent_call(s: Session) -> str:
    result = await s.client.call_tool("slow_compute", {"seconds": 1, "label": "transparent"})
    require("transparent" in text_of(result), f"label missing from {text_of(result)!r}")
    polls = len(s.sent("tasks/get"))
    require(polls > 0, "the call ran synchronously although the client declared the extension")
    return f"became a task, {polls} polls"


async def handle(s: Session) -> str:
    task = await call_tool_task(s.client, "slow_compute", {"seconds": 1, "label": "handled"})
    first = await task.status()
    require(first.task_id == task.task_id, f"asked for {task.task_id}, got {first.task_id}")
    require(first.status in ("working", "completed"), f"status {first.status}")
    result = await task.result()
    require("handled" in text_of(result), f"label missing from {text_of(result)!r}")
    last = await task.status()
    require(last.status == "completed", f"status {last.status} after the result")
    require(last.created_at == first.created_at, "createdAt changed")
    return f"{first.status}, then completed"


async def cancellation(s: Session) -> str:
    task = await call_tool_task(s.client, "slow_compute", {"seconds": 60, "label": "cancelled"})
    await task.cancel()
    final = await task.wait(timeout=WAIT_SECONDS)
    require(final.status == "cancelled", f"status {final.status}")
    require(final.result is None and final.error is None, "a cancelled task carries an outcome")
    await tool_error(task.result())
    await task.cancel()  # a second cancel is acknowledged and changes nothing
    again = await task.status()
    require(again.status == "cancelled", f"status {again.status} after a second cancel")
    return "cancelled within the wait"


async def tool_failure(s: Session) -> str:
    task = await call_tool_task(s.client, "failing_job", {})
    final = await task.wait(timeout=WAIT_SECONDS)
    require(final.status == "completed", f"isError must end completed, not {final.status}")
    require((final.result or {}).get("isError") is True, f"isError missing from {final.result}")
    message = await tool_error(s.client.call_tool("failing_job", {}))
    return f"completed with isError: {message}"


async def protocol_failure(s: Session) -> str:
    task = await call_tool_task(s.client, "protocol_error_job", {})
    final = await task.wait(timeout=WAIT_SECONDS)
    require(final.status == "failed", f"status {final.status}")
    require(isinstance((final.error or {}).get("code"), int), f"no error code in {final.error}")
    message = await tool_error(s.client.call_tool("protocol_error_job", {}))
    require(message == final.error["message"], f"call raised {message!r}, not the task's error")
    return f"failed with {final.error['code']}: {message}"


async def one_question(s: Session) -> str:
    result = await s.client.call_tool("confirm_delete", {"filename": "report.txt"})
    require("report.txt" in text_of(result), f"filename missing from {text_of(result)!r}")
    require(bool(s.sent("tasks/get")), "the call ran synchronously")
    # This client asks again whatever a poll still lists, so an answered question that is listed
    # once more shows up as a second prompt to the person.
    require(len(s.questions) == 1, f"asked {len(s.questions)} times: {s.questions}")
    require(len(s.sent("tasks/update")) == 1, "more than one tasks/update")
    return f"asked once: {s.questions[0]}"


async def two_questions(s: Session) -> str:
    task = await call_tool_task(s.client, "multi_input", {})
    keys = await outstanding(task, 2)
    result = await task.result()
    updates = [set(p["inputResponses"]) for p in s.sent("tasks/update")]
    require(updates == [keys], f"{sorted(keys)} outstanding, answered {updates}")
    require(len(s.questions) == 2, f"asked {len(s.questions)} times: {s.questions}")
    require(not result.is_error, f"ended in an error: {text_of(result)}")
    return f"both answered in one update: {s.questions}"


async def outstanding(task: ToolTask, count: int) -> set[str]:
    """Waits, bounded, until a task lists this many questions, and returns their keys."""
    # The driving client answers the first non-empty set that it sees. Waiting for all of them
    # first keeps the check independent of how fast the server gathers its questions.
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            now = await task.status()
            require(now.status in ("working", "input_required"), f"ended {now.status} unasked")
            if len(now.input_requests or {}) >= count:
                return set(now.input_requests)
            await asyncio.sleep(0.1)


CHECKS: list[tuple[str, Callable[[Session], Awaitable[str]]]] = [
    ("negotiation", negotiation),
    ("sync tool", sync_tool),
    ("transparent call", transparent_call),
    ("handle", handle),
    ("cancel", cancellation),
    ("isError task", tool_failure),
    ("failed task", protocol_failure),
    ("one question", one_question),
    ("two questions", two_questions),
]


@asynccontextmanager
async def connected(url: str):
    session = Session(url)
    async with session.client:
        yield session


async def run(url: str) -> int:
    """Runs every check against the server at `url` and returns how many failed."""
    failed = 0
    for name, check in CHECKS:
        try:
            async with asyncio.timeout(CHECK_SECONDS), connected(url) as session:
                line = f"ok {name}: {await check(session)}"
        except Exception as error:  # one failed check must not hide the others
            failed += 1
            line = f"FAIL {name}: {type(error).__name__}: {error}"
        print(" ".join(line.split())[:400], flush=True)
    print(f"fastmcp: {len(CHECKS) - failed} passed, {failed} failed", flush=True)
    return failed


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    # Every failure is reported by its check; the library's own account of it would only repeat it.
    logging.disable(logging.ERROR)
    # The timeouts above end a check that waits; this ends one that will not be cancelled.
    faulthandler.dump_traceback_later(CHECK_SECONDS * (len(CHECKS) + 1), exit=True)
    return 1 if asyncio.run(run(sys.argv[1])) else 0


if __name__ == "__main__":
    sys.exit(main())
