"""A host that knows nothing of tasks, the official Python client, against a gateway:

python host.py URL everything|plain legacy|auto

`legacy` speaks protocol 2025-11-25, in which a server asks while it holds a call; `auto` gets 2026-07-28, in which it asks by an
answer. The gateway is to hold calls for four seconds.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import Client, MCPDeprecationWarning, MCPError
from mcp.types import CreateMessageResult, ElicitResult, TextContent

warnings.simplefilter("ignore", MCPDeprecationWarning)
URL, UPSTREAM, MODE = sys.argv[1:]
CHECK_SECONDS = 40.0
OWN_TOOLS = {"task_status", "task_result", "task_answer", "task_cancel"}
TOOLS: dict[str, tuple[Any, ...]] = {
    "everything": {
        "quick": ("echo", {"message": "hi"}, "Echo: hi"),
        "slow": ("trigger-long-running-operation", {"duration": 2, "steps": 4}, "Long running operation completed"),
        "slower": ("trigger-long-running-operation", {"duration": 7, "steps": 7}, "Long running operation completed"),
        "endless": ("trigger-long-running-operation", {"duration": 61, "steps": 61}),
        "asks": ("trigger-elicitation-request", {}, "- Name: Ada"),
        "samples": ("trigger-sampling-request", {"prompt": "What is the capital of France?"}, "Paris"),
        "fails": ("no-such-tool", {}, "not found"),
    },
    "plain": {
        "quick": ("times", {"label": "never"}, "0"),
        "slow": ("slow", {"seconds": 2}, "slow: done"),
        "slower": ("slow", {"seconds": 7, "label": str(uuid.uuid4())}, "slow: done"),
        "endless": ("cancellable", {"label": str(uuid.uuid4())}),
        "asks": ("asks", {}, "asks: hello Ada"),
        "samples": ("samples", {}, "samples: Paris"),
        "fails": ("fails", {}, "it went wrong, as it should"),
    },
}[UPSTREAM]


class Host:
    def __init__(self) -> None:
        self.questions: list[str] = []
        self.progress: list[str] = []
        self.client = Client(
            URL, mode=MODE, elicitation_callback=self._elicit, sampling_callback=self._sample
        )

    async def _elicit(self, _context: Any, params: Any) -> ElicitResult:
        self.questions.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def _sample(self, _context: Any, params: Any) -> CreateMessageResult:
        self.questions.append(params.messages[0].content.text)
        content = TextContent(type="text", text="Paris")
        return CreateMessageResult(role="assistant", model="a-model", stop_reason="endTurn", content=content)

    async def _heard(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(f"{progress:g}/{total or 0:g} {message or ''}".strip())

    async def call(self, tool: str, arguments: dict[str, Any], *_: Any) -> Any:
        return await self.client.call_tool(tool, arguments, progress_callback=self._heard)

    async def says(self, tool: str, arguments: dict[str, Any], *_: Any) -> str:
        return text_of(await self.call(tool, arguments))

    async def begun(self, *call: Any) -> str:
        """Makes a call that takes longer than it is held, and gives back the id of the work."""
        text = await self.says(*call)
        require("task_result" in text and "id is " in text, f"answered {text}")
        return text.split("id is ")[1].split(".")[0]


def text_of(result: Any) -> str:
    return " ".join(block.text for block in result.content if hasattr(block, "text"))


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


async def negotiation(host: Host) -> str:
    version = host.client.protocol_version
    require(version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[MODE], f"negotiated {version}")
    names = {tool.name for tool in (await host.client.list_tools()).tools}
    require(OWN_TOOLS <= names, f"tools: {sorted(names)}")
    missing = {TOOLS[key][0] for key in ("quick", "slow", "asks", "samples")} - names
    require(not missing, f"no {sorted(missing)} among the tools")
    return f"{version}, {len(names)} tools, {len(OWN_TOOLS)} of them the gateway's own"


async def quick(host: Host) -> str:
    text = await host.says(*TOOLS["quick"])
    require(TOOLS["quick"][2] in text, f"answered {text}")
    return text


async def slow(host: Host) -> str:
    text = await host.says(*TOOLS["slow"])
    require(TOOLS["slow"][2] in text, f"answered {text}")
    require(len(host.progress) >= 2, f"heard of progress {host.progress}")
    return f"{', '.join(host.progress)}: {text}"


async def elicitation(host: Host) -> str:
    text = await host.says(*TOOLS["asks"])
    require(TOOLS["asks"][2] in text, f"answered {text}")
    require(len(host.questions) == 1, f"asked {host.questions}")
    return f"asked: {host.questions[0]}"


async def sampling(host: Host) -> str:
    text = await host.says(*TOOLS["samples"])
    require(TOOLS["samples"][2] in text, f"answered {text}")
    require(len(host.questions) == 1, f"asked {host.questions}")
    return f"asked: {host.questions[0]}"


async def tool_error(host: Host) -> str:
    result = await host.call(*TOOLS["fails"])
    require(result.is_error, "no error")
    require(TOOLS["fails"][2] in text_of(result), f"answered {text_of(result)}")
    return text_of(result)


async def past_the_hold(host: Host) -> str:
    task = await host.begun(*TOOLS["slower"])
    status = await host.says("task_status", {"task": task})
    require('"working"' in status, f"status {status}")
    result = await host.says("task_result", {"task": task})
    require(TOOLS["slower"][2] in result, f"task_result answered {result}")
    if UPSTREAM == "plain":
        times = await host.says("times", {"label": TOOLS["slower"][1]["label"]})
        require(times == "1", f"the tool was called {times} times")
    return f"{status}, then {result}"


async def called_again(host: Host) -> str:
    arguments = {**TOOLS["slower"][1], **({"label": str(uuid.uuid4())} if UPSTREAM == "plain" else {"steps": 6})}
    await host.begun(TOOLS["slower"][0], arguments)
    again = await host.says(TOOLS["slower"][0], arguments)
    require(TOOLS["slower"][2] in again, f"the same call answered {again}")
    if UPSTREAM == "plain":
        times = await host.says("times", {"label": arguments["label"]})
        require(times == "1", f"the tool was called {times} times")
        return f"waited for the same work, which ran once: {again}"
    return f"waited for the same work: {again}"


async def cancel(host: Host) -> str:
    task = await host.begun(*TOOLS["endless"])
    said = await host.says("task_cancel", {"task": task})
    try:
        outcome = await host.says("task_result", {"task": task})
    except MCPError as error:
        outcome = str(error)
    require("cancelled" in outcome, f"task_result answered {outcome}")
    if UPSTREAM != "plain":
        return f"{said} {outcome}"
    while await host.says("was_cancelled", TOOLS["endless"][1]) != "yes":
        await asyncio.sleep(0.1)
    return f"{said} {outcome}, at the server too"


async def host_gives_up(host: Host) -> str:
    """A host that cuts its calls off, and asks again: the work goes on, and is the same."""
    arguments = {**TOOLS["slower"][1], **({"label": str(uuid.uuid4())} if UPSTREAM == "plain" else {"steps": 5})}
    try:
        await host.client.call_tool(TOOLS["slower"][0], arguments, read_timeout_seconds=1.5)
        raise AssertionError("the host did not cut the call off")
    except MCPError:
        pass
    await asyncio.sleep(0.5)
    text = await host.says(TOOLS["slower"][0], arguments)
    if "task_result" in text:
        text = await host.says(TOOLS["slower"][0], arguments)
    require(TOOLS["slower"][2] in text, f"answered {text}")
    if UPSTREAM == "plain":
        return f"called {await host.says('times', {'label': arguments['label']})} times: {text}"
    return text


CHECKS: list[tuple[str, Callable[[Host], Awaitable[str]]]] = [
    ("negotiation", negotiation),
    ("quick", quick),
    ("slow call held open, with progress", slow),
    ("elicitation", elicitation),
    ("sampling", sampling),
    ("a tool's error", tool_error),
    ("past the hold: task_status, task_result", past_the_hold),
    ("the same call again", called_again),
    ("cancel by task_cancel", cancel),
    ("a host that gives up and calls again", host_gives_up),
]


async def run() -> int:
    failed = 0
    for name, check in CHECKS:
        host = Host()
        try:
            async with asyncio.timeout(CHECK_SECONDS), host.client:
                line = f"ok {name}: {await check(host)}"
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            failed += 1
            line = f"FAIL {name}: {type(error).__name__}: {error}"
        print(" ".join(line.split())[:300], flush=True)
    return failed


sys.exit(1 if asyncio.run(run()) else 0)
