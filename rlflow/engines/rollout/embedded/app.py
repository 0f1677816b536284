"""The HTTP application: one route table over one engine."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Route

from rlflow.engines.rollout.embedded.contract import Limits
from rlflow.engines.rollout.embedded.core import EngineCore
from rlflow.engines.rollout.embedded.engine import Engine
from rlflow.engines.rollout.embedded.routes_control import ControlRoutes
from rlflow.engines.rollout.embedded.routes_generate import Generate
from rlflow.engines.rollout.embedded.routes_info import InfoRoutes
from rlflow.engines.rollout.embedded.routes_weights import WeightRoutes

__all__ = ["build_app", "eos_ids"]


def build_app(engine: Engine, core: EngineCore) -> Starlette:
    config = core.config
    limits = Limits(
        vocab_size=core.runner.vocab_size,
        context_length=core.runner.context_length,
        max_total_tokens=config.max_total_tokens,
        eos_ids=eos_ids(config.model_path),
        tokenizer=core.tokenizer,
    )
    generate = Route("/generate", Generate(engine, limits, config.seed), methods=["POST", "PUT"])
    return Starlette(
        routes=[
            generate,
            *ControlRoutes(engine).routes(),
            *WeightRoutes(engine, config.update_timeout).routes(),
            *InfoRoutes(engine, config).routes(),
        ]
    )


def eos_ids(folder: Path) -> tuple[int, ...]:
    """End-of-sequence ids of a model folder: generation_config.json's, else config.json's; may be several, may be none."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        found = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return tuple(found) if isinstance(found, list) else (found,)
    return ()
