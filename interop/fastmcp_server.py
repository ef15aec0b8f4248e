#!/usr/bin/env python3
"""FastMCP's server with its Tasks extension, in memory: fastmcp_server.py [PORT].

It offers the five tools that every peer here offers; see README.md.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import mcp_types as types
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.exceptions import McpError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension

server = FastMCP("fastmcp")
server.add_extension(TasksExtension(url="memory://"))


@server.tool
async def quick() -> str:
    """Answers at once"""
    return "quick: done"


@server.tool(task=True)
async def slow(seconds: float = 1.0) -> str:
    """Takes as long as it is told to"""
    await asyncio.sleep(seconds)
    return "slow: done"


@server.tool(task=TaskConfig(mode="required"))
async def asks(context: Context) -> str | types.InputRequiredResult:
    """Asks for a name"""
    # A task is asked by what a tool returns; it runs again, with the answers.
    answers = context.input_responses
    if not answers:
        return types.InputRequiredResult(
            input_requests={
                "name": types.ElicitRequest(
                    params=types.ElicitRequestFormParams(
                        message="What is your name?",
                        requested_schema={
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                        },
                    )
                )
            }
        )
    answer = answers["name"]
    accepted = answer.action == "accept" and answer.content
    return f"asks: hello {accepted['name'] if accepted else 'nobody'}"


@server.tool(task=True)
async def fails() -> str:
    """Ends in a JSON-RPC error"""
    await asyncio.sleep(0.2)
    raise McpError(types.INTERNAL_ERROR, "it went wrong, as it should")


@server.tool(task=True)
async def cancellable() -> str:
    """Takes a minute, unless it is cancelled"""
    await asyncio.sleep(60)
    return "cancellable: done"


def main() -> None:
    # Bound here, as the server does not say which port the system gave it.
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    host, port = listener.getsockname()
    print(f"listening on http://{host}:{port}/mcp", flush=True)
    app = server.http_app(path="/mcp")
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
