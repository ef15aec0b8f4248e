"""A server as there are many: the official `mcp` package, a few tools, and no word of tasks.

    python plain_server.py          over standard input and output
    python plain_server.py PORT     over Streamable HTTP, at 127.0.0.1; PORT may be 0

It asks in both of the ways that the package has: in the middle of a call, which is how servers were written before protocol
2026-07-28 and what that protocol has no way for, and by parameters that are asked for, which work in every protocol.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from typing import Annotated

import uvicorn
from mcp import MCPDeprecationWarning
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel

warnings.simplefilter("ignore", MCPDeprecationWarning)
server = MCPServer("plain", log_level="ERROR")
cancelled: list[str] = []
begun: list[str] = []


class Person(BaseModel):
    name: str


def question(text: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=TextContent(type="text", text=text))


@server.tool()
async def slow(ctx: Context, seconds: float = 2, steps: int = 4, label: str = "") -> str:
    """Takes a while, and says how far it is."""
    begun.append(label)
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await ctx.report_progress(step, steps, f"step {step} of {steps}")
    return f"slow: done {label}".strip()


@server.tool()
async def times(label: str) -> str:
    """How often the slow tool was called with this label."""
    return str(begun.count(label))


async def whom() -> Elicit[Person]:
    return Elicit("Whom shall I greet?", Person)


@server.tool()
async def asks(person: Annotated[Person, Resolve(whom)]) -> str:
    """Asks for a name."""
    return f"asks: hello {person.name}"


@server.tool()
async def asks_within(ctx: Context) -> str:
    """Asks for a name in the middle of the call."""
    answer = await ctx.elicit("Whom shall I greet?", Person)
    return f"asks_within: hello {answer.data.name}" if answer.action == "accept" else f"asks_within: {answer.action}"


async def capital() -> Sample:
    return Sample([question("What is the capital of France?")], max_tokens=100)


@server.tool()
async def samples(answer: Annotated[CreateMessageResult, Resolve(capital)]) -> str:
    """Asks the caller's model."""
    return f"samples: {answer.content.text}"


@server.tool()
async def samples_within(ctx: Context) -> str:
    """Asks the caller's model in the middle of the call."""
    answer = await ctx.session.create_message(
        [question("What is the capital of France?")], max_tokens=100, related_request_id=ctx.request_id
    )
    return f"samples_within: {answer.content.text}"


@server.tool()
async def fails() -> str:
    """Ends in an error."""
    raise ToolError("it went wrong, as it should")


@server.tool()
async def cancellable(label: str) -> str:
    """Takes a minute, unless it is cancelled."""
    begun.append(label)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        cancelled.append(label)
        raise
    return "cancellable: done"


@server.tool()
async def was_cancelled(label: str) -> str:
    """Whether the call with this label was cancelled."""
    return "yes" if label in cancelled else "no"


async def serve(port: int) -> None:
    uvicorn_server = uvicorn.Server(
        uvicorn.Config(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="error")
    )
    serving = asyncio.create_task(uvicorn_server.serve())
    while not uvicorn_server.started and not serving.done():
        await asyncio.sleep(0.05)
    if not serving.done():
        port = uvicorn_server.servers[0].sockets[0].getsockname()[1]
        print(f"listening on http://127.0.0.1:{port}/mcp", flush=True)
    await serving


if len(sys.argv) > 1:
    asyncio.run(serve(int(sys.argv[1])))
else:
    server.run()
