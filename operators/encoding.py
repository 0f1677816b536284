"""Text → token ids, refusing what a tokenizer would lose without a word."""

from __future__ import annotations

from typing import Any

from rlflow.errors import DataError

__all__ = ["encode"]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of `text`, without special tokens. Raises DataError naming the characters that the tokenizer has no token for."""
    from rlflow.engines.tiny import encode_text

    ids = encode_text(tokenizer, text)
    if tokenizer.decode(ids, skip_special_tokens=False) != text and (lost := _lost(tokenizer, text)):
        raise DataError(f"the tokenizer has no token for {lost!r} in {text[:80]!r}")
    return ids


def _lost(tokenizer: Any, text: str) -> str:
    """Characters, white space aside, that became no token or the one for unknown text."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    model = tokenizer.model
    unknown = tokenizer.token_to_id(model.unk_token) if getattr(model, "unk_token", None) else getattr(model, "unk_id", None)
    spans = [span for number, span in zip(encoding.ids, encoding.offsets, strict=True) if number != unknown]
    kept = {at for start, end in spans for at in range(start, end)}
    return "".join(dict.fromkeys(character for at, character in enumerate(text) if at not in kept and not character.isspace()))
