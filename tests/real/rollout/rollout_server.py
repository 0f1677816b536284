"""A real embedded server as a process, a model worth sampling from, and the plain forward that it is compared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import urllib3
from safetensors.torch import load_file, save, save_file

from rlflow.engines.rollout import Generation, HttpRolloutClient, SamplingParams
from rlflow.engines.tiny import make_tiny_model

ALPHABET = "0123456789+-=? abcdefghijklmnopqrstuvwxyz"
VOCAB = 3 + len(ALPHABET)
CONTEXT = 2048
SHARPER = 2.5  # fresh weights give flat distributions, in which few mistakes would show


def sharp_model(path: Path, *, seed: int, architecture: Any = "llama") -> Path:
    """A tiny model whose next-token distributions are far from uniform."""
    make_tiny_model(path, alphabet=ALPHABET, seed=seed, max_position_embeddings=CONTEXT, architecture=architecture)
    file = path / "model.safetensors"
    tensors = {name: t if "norm" in name else t * SHARPER for name, t in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return path


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


def plain_model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def plain_log_probs(model: Any, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0) -> list[float]:
    """log softmax(logits / temperature) of each output id, by one forward over the whole sequence without any cache."""
    ids = torch.tensor([[*prompt, *output]])
    with torch.no_grad():
        table = (model(ids, use_cache=False).logits[0] / temperature).log_softmax(-1)
    return [table[i - 1, ids[0, i]].item() for i in range(len(prompt), ids.shape[1])]


def bucket(tensors: dict[str, torch.Tensor]) -> bytes:
    return save(tensors)


class Server:
    """A running server: its process, a client, and raw HTTP for what the client would not send."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process, self.url = process, url
        self.client = HttpRolloutClient(url, timeout=60, maxsize=8)
        self._http = urllib3.PoolManager()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and decoded body (text if it is no JSON)."""
        response = self._http.request(method, self.url + path, json=body, timeout=60.0, retries=False)
        try:
            return response.status, json.loads(response.data) if response.data else None
        except ValueError:
            return response.status, response.data.decode()

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return self.call("POST", path, {} if body is None else body)

    def get(self, path: str) -> Any:
        status, answer = self.call("GET", path)
        assert status == 200, (path, status, answer)
        return answer

    def load(self) -> dict[str, Any]:
        return self.get("/v1/loads")["loads"][0]

    def memory(self) -> dict[str, int]:
        return self.get("/server_info")["internal_states"][0]["memory_bytes"]

    def start_generations(self, prompts: Sequence[Sequence[int]], params: SamplingParams, **extra: Any) -> InFlight:
        """Start them in threads and return once all of them have produced tokens, far from their end."""
        flight = InFlight(self, prompts, params, extra)
        enough = sum(len(p) for p in prompts) + 20 * len(prompts)
        wait_for(lambda: self.load()["num_used_tokens"] > enough, "the generations to run")
        return flight


class InFlight:
    """Generations in threads; `results` waits for all of them."""

    def __init__(self, server: Server, prompts: Sequence[Sequence[int]], params: SamplingParams, extra: dict[str, Any]) -> None:
        self._results: list[Generation | Exception | None] = [None] * len(prompts)
        self._client = server.client
        rids = extra.get("rids", [None] * len(prompts))
        seeds = range(100, 100 + len(prompts))
        self._threads = [
            threading.Thread(target=self._run, args=(i, prompt, with_seed(params, seed), rid), daemon=True)
            for i, (prompt, seed, rid) in enumerate(zip(prompts, seeds, rids, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, index: int, prompt: Sequence[int], params: SamplingParams, rid: str | None) -> None:
        try:
            self._results[index] = self._client.generate(prompt, params, rid)
        except Exception as error:
            self._results[index] = error

    @property
    def done(self) -> bool:
        return all(r is not None for r in self._results)

    def results(self) -> list[Generation]:
        for thread in self._threads:
            thread.join(60)
        assert all(isinstance(r, Generation) for r in self._results), self._results
        return [r for r in self._results if isinstance(r, Generation)]


def with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    fields = {name: getattr(params, name) for name in params.__struct_fields__}
    return SamplingParams(**(fields | {"sampling_seed": seed}))


def wait_for(condition: Callable[[], bool], what: str, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.005)


def command(model: Path, ready: Path, *extra: str, parent_pid: int | None = None) -> list[str]:
    parent = [] if parent_pid is None else ["--parent-pid", str(parent_pid)]
    module = [sys.executable, "-m", "rlflow.engines.rollout.embedded"]
    return [*module, "--model-path", str(model), "--ready-file", str(ready), *parent, *extra]


@contextmanager
def running_server(model: Path, folder: Path, *extra: str) -> Iterator[Server]:
    ready = folder / f"ready-{time.monotonic_ns()}.json"
    process = subprocess.Popen(command(model, ready, *extra, parent_pid=os.getpid()))
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None, "the ready file", timeout=90)
        assert process.poll() is None, f"the server ended with code {process.returncode}"
        yield Server(process, json.loads(ready.read_text())["url"])
    finally:
        process.terminate()
        process.wait(20)
