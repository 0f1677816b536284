"""HttpRolloutClient against answers that an engine should never give."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from rlflow.engines.rollout import EngineGone, EngineRefused, EngineTimeout, HttpRolloutClient, SamplingParams, client
from rlflow.errors import EngineError

META: dict[str, Any] = {
    "id": "r",
    "finish_reason": {"type": "length", "length": 2},
    "weight_version": "3",
    "weight_versions": [{"version": "3", "start": 0, "end": 2}],
    "prompt_tokens": 1,
    "completion_tokens": 2,
    "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
}
ANSWER: dict[str, Any] = {"text": "ab", "output_ids": [7, 8], "meta_info": META}


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[HttpRolloutClient, list[Any]]]:
    """A client of a server that answers everything with `body`, and the bodies that it was sent."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield HttpRolloutClient(f"http://127.0.0.1:{server.server_port}", timeout=5), seen
    finally:
        server.shutdown()
        server.server_close()


def generate(status: int, answer: Any) -> Any:
    with answering(status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()) as (client, _):
        return client.generate([5], SamplingParams())


def with_meta(**changes: Any) -> dict[str, Any]:
    return ANSWER | {"meta_info": META | changes}


def test_a_good_answer() -> None:
    g = generate(200, ANSWER)
    assert (g.output_ids, g.log_probs, g.weight_version, g.prompt_tokens, g.num_retractions) == ([7, 8], [-0.5, -0.25], "3", 1, 0)
    assert [(s.version, s.start, s.end) for s in g.spans] == [("3", 0, 2)]


def test_what_is_sent() -> None:
    with answering(200, json.dumps(ANSWER).encode()) as (client, seen):
        client.generate((5, 6), SamplingParams(max_new_tokens=3, top_p=0.5), rid="t-1")
    params = {"max_new_tokens": 3, "top_p": 0.5}
    assert seen == [{"input_ids": [5, 6], "sampling_params": params, "rid": "t-1", "return_logprob": True}]


def test_unknown_keys_of_a_newer_server_are_ignored() -> None:
    assert generate(200, with_meta(queue_time=0.1) | {"new": 1}).output_ids == [7, 8]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_token_logprobs": [[-0.5, 7, None]]}, "returned 2 tokens but 1 log-probs"),
        ({"output_token_logprobs": None}, "returned 2 tokens but 0 log-probs"),
        ({"output_token_logprobs": [[-0.5, 7, None], [-0.2, 9, None]]}, "belong to other tokens"),
        ({"output_token_logprobs": [[-0.5, 7, None], [None, 8, None]]}, "log-probs are missing"),
        ({"finish_reason": None}, "came back unfinished"),
    ],
)
def test_answers_that_break_the_contract(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        generate(200, with_meta(**changes))


def test_an_answer_that_is_something_else_is_shown() -> None:
    with pytest.raises(EngineError, match=r"outside its contract.*hello"):
        generate(200, {"hello": 1})


@pytest.mark.parametrize(
    "body",
    [{"error": {"message": "too long"}}, {"error": "too long"}, {"success": False, "message": "too long"}, b"too long\n"],
)
def test_the_message_of_every_error_form_is_found(body: Any) -> None:
    with pytest.raises(EngineRefused, match=r"refused /generate: 400 too long$") as caught:
        generate(400, body)
    assert caught.value.status == 400


def listening(accept: Any) -> str:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_dropped_connection_means_that_the_engine_is_gone() -> None:
    def drop(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.close()

    url = listening(drop)
    with pytest.raises(EngineGone, match=f"engine at {url} is gone: /generate"):
        HttpRolloutClient(url, timeout=5).generate([5], SamplingParams())


def test_nobody_listening_means_that_the_engine_is_gone() -> None:
    with pytest.raises(EngineGone, match=r"engine at http://127\.0\.0\.1:9 is gone"):
        HttpRolloutClient("http://127.0.0.1:9").ready()


def test_silence_is_a_timeout() -> None:
    accepted: list[Any] = []
    url = listening(lambda listener: accepted.append(listener.accept()))
    with pytest.raises(EngineTimeout, match=f"engine at {url} did not answer /generate within 0.1 s"):
        HttpRolloutClient(url, timeout=0.1).generate([5], SamplingParams())


def test_an_engine_that_hangs_holds_up_the_abort_of_one_request_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ABORT_SECONDS", 0.1)
    accepted: list[Any] = []
    url = listening(lambda listener: accepted.append(listener.accept()))
    with pytest.raises(EngineTimeout, match=f"engine at {url} did not answer /abort_request within 0.1 s"):
        HttpRolloutClient(url, timeout=600).abort("one")


def test_the_client_loads_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, rlflow.engines.rollout; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
