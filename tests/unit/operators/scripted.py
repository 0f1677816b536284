"""An environment for tests: it does what it was told to, step by step."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from operators.environment import Reply, Start


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """script: what each step does, the last one for ever. reset: what each reset does ("" nothing), the last one for ever.

    "say:text"  "reward:0.5"  "end"  "raise:why"  "await:seconds"  "block:seconds"  "exit:code"  "return:what"
    "echo" repeats what was said, with a newline and 1 point; "echo2" with a colon
    log: a file that gets a line for every call.
    """

    script: tuple[str, ...] = ("say:more\n",)
    resets: tuple[str, ...] = ("",)
    opening: str = ""
    close: str = ""
    log: str = ""

    async def reset(self, prompt: str, answer: str, *, seed: int) -> Start:
        number = self.told(f"reset {answer} {seed}").count("reset")
        await act(self.resets[min(number, len(self.resets)) - 1])
        return Start(ScriptedEpisode(self), self.opening)

    def told(self, line: str) -> str:
        if not self.log:
            return "reset"
        with Path(self.log).open("a") as file:
            file.write(f"{line} {os.getpid()}\n")
        return Path(self.log).read_text()


@dataclass
class ScriptedEpisode:
    rules: Scripted
    said: list[str] = field(default_factory=list)

    async def step(self, text: str) -> Reply:
        self.rules.told(f"step {text}")
        self.said.append(text)
        what = self.rules.script[min(len(self.said), len(self.rules.script)) - 1]
        if what == "echo2":
            return Reply(f"{text}:")
        if what == "echo":
            return Reply(f"{text}\n", reward=1.0)
        reply: Any = await act(what)
        return reply

    async def close(self) -> None:
        self.rules.told("close")
        await act(self.rules.close)


async def act(what: str) -> Any:
    verb, _, rest = what.partition(":")
    match verb:
        case "say":
            return Reply(rest)
        case "reward":
            return Reply("go on\n", reward=float(rest))
        case "end":
            return Reply(reward=float(rest or 0), done=True)
        case "raise":
            raise RuntimeError(rest)
        case "await":
            await asyncio.sleep(float(rest))
        case "block":
            time.sleep(float(rest))
        case "exit":
            os._exit(int(rest))
        case "return":
            nan, number, state = Reply("up", reward=float("nan")), Reply(5), Reply("up", state=7)  # type: ignore[arg-type]
            return {"5": 5, "text": "up", "empty": Reply(), "nan": nan, "number": number, "state": state}[rest]
    return Reply("late\n")
