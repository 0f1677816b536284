"""A seeded tiny checkpoint in Hugging Face format, made at first use; no downloads.

    make_tiny_model(path, alphabet="0123456789+= ", seed=0)
        path/config.json  model.safetensors  tokenizer.json  tokenizer_config.json  generation_config.json

The tokenizer is one token a character: ids 0, 1, 2 are <pad>, <bos>, <eos>, then the alphabet in its order.
Text that happens to spell "<eos>" is five characters, never the special token, so encode → decode is exact for
every string over the alphabet; any other character is an error, never a silent <unk>. (`load_tokenizer` reads it; with
transformers use PreTrainedTokenizerFast, as AutoTokenizer puts Qwen's own splitting in place of it for a qwen2 config.)
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rlflow.errors import DataError

__all__ = ["BOS_ID", "EOS_ID", "PAD_ID", "character_tokenizer", "encode_text", "load_tokenizer", "make_tiny_model"]

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")
RECIPE_FILE = "rlflow_tiny.json"

Architecture = Literal["llama", "qwen2"]
Kind = Literal["policy", "critic"]


def make_tiny_model(
    path: str | Path,
    *,
    alphabet: str,
    seed: int,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    max_position_embeddings: int = 512,
    initializer_range: float = 0.08,
    architecture: Architecture = "llama",
    kind: Kind = "policy",
) -> Path:
    """Make the checkpoint at `path`, or keep the one that is there if it was made with the same arguments.

    `kind="policy"` is a causal language model, `"critic"` the same trunk with one output a token
    (AutoModelForTokenClassification, num_labels=1). The folder appears in one rename, so a reader never sees half of it;
    equal arguments give equal bytes. torch's global random state is left as it was.

    Raises DataError if `path` holds something else, or for a repeated character or sizes that do not divide.
    """
    path = Path(path)
    recipe = {
        "alphabet": alphabet,
        "seed": seed,
        "hidden_size": hidden_size,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "max_position_embeddings": max_position_embeddings,
        "initializer_range": initializer_range,
        "architecture": architecture,
        "kind": kind,
    }
    _check_recipe(recipe)
    if path.exists():
        return _same_or_refuse(path, recipe)
    path.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        _write_checkpoint(building, recipe)
        building.chmod(0o755)
        try:
            building.rename(path)
        except OSError:
            if not path.exists():
                raise
            return _same_or_refuse(path, recipe)  # another process was first
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return path


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder, without importing transformers.

    Special tokens are matched in ids only, never in text, so a prompt cannot spell an <eos>.
    """
    file = Path(path) / "tokenizer.json"
    if not file.is_file():
        raise DataError(f"{file} does not exist; a checkpoint folder needs a tokenizer.json")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text`. Raises DataError naming the characters that a character tokenizer does not have."""
    try:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    except Exception as error:  # the library raises a bare Exception
        unknown = sorted({c for c in text if tokenizer.token_to_id(c) is None})
        raise DataError(
            f"the tokenizer has no token for {unknown!r} in {text[:80]!r} ({error}); make the model with an alphabet that contains them"
        ) from error


def _check_recipe(recipe: dict[str, Any]) -> None:
    alphabet: str = recipe["alphabet"]
    repeated = sorted({c for c in alphabet if alphabet.count(c) > 1})
    if not alphabet or repeated:
        raise DataError(f"alphabet {alphabet!r} is empty or repeats {repeated!r}; give each character once")
    if recipe["hidden_size"] % recipe["heads"] or recipe["heads"] % recipe["kv_heads"]:
        raise DataError(
            f"hidden_size={recipe['hidden_size']} must divide by heads={recipe['heads']}, and heads by kv_heads={recipe['kv_heads']}"
        )
    if recipe["hidden_size"] // recipe["heads"] % 2:
        raise DataError(f"head_dim {recipe['hidden_size'] // recipe['heads']} is odd; rotary embeddings need an even one")
    if recipe["architecture"] not in ("llama", "qwen2") or recipe["kind"] not in ("policy", "critic"):
        raise DataError(f"architecture={recipe['architecture']!r}, kind={recipe['kind']!r}: use llama or qwen2, policy or critic")


def _same_or_refuse(path: Path, recipe: dict[str, Any]) -> Path:
    file = path / RECIPE_FILE
    found = json.loads(file.read_text()) if file.is_file() else None
    if found != recipe:
        differs = sorted(k for k in recipe if found is None or found.get(k) != recipe[k])
        raise DataError(f"{path} already holds another model (differs in {', '.join(differs)}); choose another path or delete it")
    return path


def _write_checkpoint(folder: Path, recipe: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    character_tokenizer(recipe["alphabet"]).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(recipe["max_position_embeddings"]))
    model = _initialised_model(recipe)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID})
    _write_json(folder / RECIPE_FILE, recipe)


def character_tokenizer(alphabet: str) -> Tokenizer:
    vocab = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _tokenizer_config(max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }


def _initialised_model(recipe: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, LlamaConfig, Qwen2Config

    config_class: Any = {"llama": LlamaConfig, "qwen2": Qwen2Config}[recipe["architecture"]]
    extra = {"num_labels": 1} if recipe["kind"] == "critic" else {}
    config = config_class(
        vocab_size=len(SPECIAL_TOKENS) + len(recipe["alphabet"]),
        hidden_size=recipe["hidden_size"],
        intermediate_size=-(-recipe["hidden_size"] * 8 // 3 // 16) * 16,  # the usual 8/3 of a gated MLP, in steps of 16
        num_hidden_layers=recipe["layers"],
        num_attention_heads=recipe["heads"],
        num_key_value_heads=recipe["kv_heads"],
        max_position_embeddings=recipe["max_position_embeddings"],
        initializer_range=recipe["initializer_range"],  # the usual 0.02 learns half as fast from scratch at this size
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        tie_word_embeddings=False,
        **extra,
    )
    auto: Any = AutoModelForTokenClassification if recipe["kind"] == "critic" else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe["seed"])
        return auto.from_config(config, dtype=torch.float32)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")
