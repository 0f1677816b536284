"""POST /generate: the hot path.

    body → Prompt(s) → engine thread → one future for all → answer
A client that disconnects aborts what it asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from starlette.types import Receive, Scope, Send

from rlflow.engines.rollout.embedded.answers import generate_answer
from rlflow.engines.rollout.embedded.contract import Limits, Prompt, RequestError, parse_generate
from rlflow.engines.rollout.embedded.engine import Engine
from rlflow.engines.rollout.embedded.http import ClientGoneError, read_body, send_json
from rlflow.engines.rollout.embedded.request import Request
from rlflow.engines.rollout.embedded.sampling import mix64

__all__ = ["Generate"]


class Generate:
    """ASGI endpoint. Keeps the ids in flight, so that a second request of one id is refused."""

    def __init__(self, engine: Engine, limits: Limits, seed: int) -> None:
        self._engine, self._limits = engine, limits
        self._seed, self._count = seed, 0
        self._in_flight: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, answer = await self._answer(receive)
        except ClientGoneError:
            return
        except RequestError as error:
            status, answer = 400, error.body
        await send_json(send, answer, status)

    async def _answer(self, receive: Receive) -> tuple[int, Any]:
        """HTTP status and body. Raises RequestError before anything is sampled, ClientGoneError after aborting it."""
        prompts, request, is_list = parse_generate(await read_body(receive), self._limits, self._next_seed())
        self._take_ids(prompts)
        try:
            done = await self._run(prompts, receive)
        finally:
            self._in_flight.difference_update(p.rid for p in prompts)
        failed = next((r.finish for r in done if r.finish is not None and r.finish.status_code is not None), None)
        if failed is not None:
            return failed.status_code or 500, {"error": {"message": failed.message}}
        with_ids, tokenizer = bool(request.return_prompt_token_ids), self._limits.tokenizer
        answers = [generate_answer(r, tokenizer, prompt_ids=with_ids, index=i if is_list else None) for i, r in enumerate(done)]
        return 200, answers if is_list else answers[0]

    def _next_seed(self) -> int:
        """The seed of the next unseeded request: reproducible for one order of arrival."""
        self._count += 1
        return int(mix64(np.array([(self._seed * 0x1_0000_0001 + self._count) % 2**64], np.uint64))[0])

    def _take_ids(self, prompts: list[Prompt]) -> None:
        for prompt in prompts:
            if prompt.rid in self._in_flight:
                raise RequestError(f"Duplicate request ID detected: {prompt.rid}")
        self._in_flight.update(p.rid for p in prompts)

    async def _run(self, prompts: list[Prompt], receive: Receive) -> list[Request]:
        """The finished requests. Raises ClientGoneError if the client left, after aborting them."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        left = len(prompts)

        def deliver(request: Request) -> None:  # on the engine thread
            nonlocal left
            left -= 1
            if left == 0:
                self._engine.answer(finished, None)

        requests = [_request(p, deliver) for p in prompts]
        for request in requests:
            self._engine.submit(request)
        watcher = loop.create_task(_until_disconnect(receive))
        try:
            await asyncio.wait((finished, watcher), return_when=asyncio.FIRST_COMPLETED)
            if finished.done():
                return requests
            for request in requests:
                self._engine.abort(request.rid)
            await finished
            raise ClientGoneError
        finally:
            watcher.cancel()


def _request(prompt: Prompt, deliver: Any) -> Request:
    return Request(
        rid=prompt.rid,
        input_ids=prompt.input_ids,
        sampling=prompt.sampling,
        return_logprob=prompt.return_logprob,
        prompt_logprobs=prompt.prompt_logprobs,
        deliver=deliver,
    )


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
