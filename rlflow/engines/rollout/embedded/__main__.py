"""`python -m rlflow.engines.rollout.embedded --model-path DIR --ready-file FILE`

    die with the parent → load the model → engine thread → HTTP → ready file → … → SIGTERM: abort, close, exit 0
Exit code 1 if the engine thread dies.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlflow.engines.rollout.embedded.ready import write_ready_file
from rlflow.process import die_with_parent


def main() -> None:
    args = _arguments().parse_args()
    if args.parent_pid is not None:
        die_with_parent(args.parent_pid)  # before the slow imports
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a folder is served; nothing is looked up
    import uvloop

    code = uvloop.run(_serve(args))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed by now; taking the interpreter down with torch in it costs another second


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rlflow.engines.rollout.embedded", description="The embedded rollout engine.")
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="Hugging Face folder of a Llama or Qwen2 causal model")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: a free one, see the ready file")
    add("--ready-file", type=Path, help='written once requests can be served: {"url", "pid"}')
    add("--parent-pid", type=int, help="exit when this process, the direct parent, is gone")
    add("--weight-version", default="default", help="name of the weights in the folder")
    add("--max-running-requests", type=int, default=256)
    add("--max-total-tokens", type=int, default=262_144, help="K/V slots: running requests × the longest of them")
    add("--max-prefill-tokens", type=int, default=16_384)
    add("--update-timeout", type=float, default=60.0, help="seconds that an update waits for running requests, unpaused")
    add("--threads", type=int, default=1, help="torch threads")
    add("--seed", type=int, default=0, help="seeds requests that bring no sampling_seed")
    add("--dtype", choices=["float32"], default="float32")
    return parser


async def _serve(args: argparse.Namespace) -> int:
    import torch
    import uvicorn
    from transformers.utils import logging as transformers_logging

    from rlflow.engines.rollout.embedded.app import build_app
    from rlflow.engines.rollout.embedded.config import ServerConfig
    from rlflow.engines.rollout.embedded.core import EngineCore
    from rlflow.engines.rollout.embedded.engine import Engine
    from rlflow.engines.tiny import load_tokenizer
    from rlflow.errors import RlflowError

    torch.set_num_threads(args.threads)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    names = ("model_path", "weight_version", "max_running_requests", "max_total_tokens", "max_prefill_tokens", "seed", "threads")
    config = ServerConfig(**{name: getattr(args, name) for name in names}, update_timeout=args.update_timeout)
    try:
        tokenizer = load_tokenizer(config.model_path) if (config.model_path / "tokenizer.json").is_file() else None
        core = EngineCore(config, tokenizer)
    except RlflowError as error:
        print(f"embedded engine: {error}", file=sys.stderr)
        return 2
    failures: list[str] = []

    def on_fatal(trace: str) -> None:
        print(f"the engine thread died:\n{trace}", file=sys.stderr, flush=True)
        failures.append(trace)
        server.should_exit = True

    engine = Engine(core, asyncio.get_running_loop(), on_fatal)
    server = _server(uvicorn, build_app(engine, core))
    engine.start()
    await _run_until_stopped(server, engine, args)
    return 1 if failures else 0


def _server(uvicorn: Any, app: Any) -> Any:
    class Server(uvicorn.Server):  # type: ignore[misc]
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # ours: a clean exit with code 0

    # clients keep connections open between the turns of a trajectory: an idle one must not be closed under them
    keep = {"timeout_keep_alive": 3600, "timeout_graceful_shutdown": 3}
    return Server(uvicorn.Config(app, http="httptools", lifespan="off", access_log=False, log_level="warning", **keep))


async def _run_until_stopped(server: Any, engine: Any, args: argparse.Namespace) -> None:
    def stop() -> None:
        engine.stop()  # what is in flight is answered as aborted
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    listener = socket.socket(socket.AF_INET6 if ":" in args.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((args.host, args.port))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started and args.ready_file is not None:
        host = f"[{args.host}]" if ":" in args.host else args.host
        write_ready_file(args.ready_file, f"http://{host}:{listener.getsockname()[1]}")
    await serving


if __name__ == "__main__":
    main()
