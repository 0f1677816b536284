from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from train_cases import Objective, Rows, make_rows, parameters
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from operators.loss import ppo_clip
from rlflow.engines.train import checkpoint
from rlflow.engines.train.torch import TorchEngine
from rlflow.errors import EngineError


def step(rows: Rows) -> Objective:
    return Objective((ppo_clip(),), ((rows.take([0, 1]), rows.take([2, 3])),))


def trained(path: Path, steps: int = 2, lr: float = 1e-3) -> TorchEngine:
    engine = TorchEngine(path, lr=lr, weight_decay=0.01, warmup_steps=3)
    for k in range(steps):
        engine.train(step(make_rows((6, 9, 4, 8), seed=k)))
    return engine


def test_C11_restored_run_is_the_straight_run_to_the_bit(policy_path: Path, tmp_path: Path) -> None:
    straight = trained(policy_path, steps=2)
    straight.save(tmp_path / "c")
    resumed = trained(policy_path, steps=1)  # holds other weights and moments before
    resumed.restore(tmp_path / "c")
    assert (resumed.version, resumed.steps) == (2, 2)
    for k in (2, 3):
        one, other = (engine.train(step(make_rows((6, 9, 4, 8), seed=k))) for engine in (straight, resumed))
        assert one == other
    assert all(torch.equal(parameters(resumed)[name], tensor) for name, tensor in parameters(straight).items())


def test_random_state_is_restored(policy_path: Path, tmp_path: Path) -> None:
    engine = trained(policy_path)
    torch.manual_seed(11)
    engine.save(tmp_path / "c")
    expected = torch.rand(3)
    torch.manual_seed(12)
    TorchEngine(policy_path).restore(tmp_path / "c")
    assert torch.equal(torch.rand(3), expected)


def test_checkpoint_before_the_first_step(policy_path: Path, tmp_path: Path) -> None:
    trained(policy_path, steps=0).save(tmp_path / "c")
    resumed = trained(policy_path, steps=0)
    resumed.restore(tmp_path / "c")
    one, other = (engine.train(step(make_rows((6, 9, 4, 8)))) for engine in (trained(policy_path, steps=0), resumed))
    assert one == other


def test_transformers_loads_the_folder_by_itself(policy_path: Path, tmp_path: Path) -> None:
    engine = trained(policy_path)
    engine.save(tmp_path / "c")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in engine.named_tensors())
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "c")
    assert tokenizer.decode(tokenizer.encode("1+2=")) == "1+2="


def test_nothing_in_a_checkpoint_is_pickled(policy_path: Path, tmp_path: Path) -> None:
    trained(policy_path).save(tmp_path / "c")
    suffixes = {file.suffix for file in (tmp_path / "c").rglob("*") if file.is_file()}
    assert suffixes == {".json", ".safetensors"}


def test_second_save_replaces_the_first_and_leaves_nothing_beside(policy_path: Path, tmp_path: Path) -> None:
    engine = trained(policy_path)
    engine.save(tmp_path / "c")
    engine.train(step(make_rows((6, 9, 4, 8))))
    engine.save(tmp_path / "c")
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
    resumed = TorchEngine(policy_path)
    resumed.restore(tmp_path / "c")
    assert resumed.version == 3


# --- killed in the middle -------------------------------------------------------------------------------------------------------------
class Killed(BaseException):
    """What a kill is to the code: nothing after it runs, not even handlers of Exception."""


def killed_save(engine: TorchEngine, path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        match at:
            case "writing":
                patch.setattr(checkpoint, "save_file", die)
            case "before the rename":
                patch.setattr(checkpoint, "_put_in_place", die)
            case "between the renames":
                rename = Path.rename
                patch.setattr(Path, "rename", lambda self, to: die() if self.name.endswith(".new") else rename(self, to))
            case "after the renames":
                sync = checkpoint.sync
                patch.setattr(checkpoint, "sync", lambda entry: die() if entry == path.parent else sync(entry))
        with pytest.raises(Killed):
            engine.save(path)


@pytest.mark.parametrize("at", ["writing", "before the rename", "between the renames"])
def test_C9_kill_during_a_save_leaves_the_previous_checkpoint(
    policy_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    engine = trained(policy_path, steps=1)
    engine.save(tmp_path / "c")
    engine.train(step(make_rows((6, 9, 4, 8), seed=5)))
    killed_save(engine, tmp_path / "c", monkeypatch, at)
    assert len(list(tmp_path.iterdir())) > 1  # the half-written one lies beside
    resumed = TorchEngine(policy_path)
    resumed.restore(tmp_path / "c")
    assert resumed.version == 1
    engine.save(tmp_path / "c")
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_C9_kill_after_the_rename_leaves_the_new_checkpoint(policy_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = trained(policy_path, steps=1)
    engine.save(tmp_path / "c")
    engine.train(step(make_rows((6, 9, 4, 8), seed=5)))
    killed_save(engine, tmp_path / "c", monkeypatch, "after the renames")
    resumed = TorchEngine(policy_path)
    resumed.restore(tmp_path / "c")
    assert resumed.version == 2


def test_half_written_folder_is_never_loaded(policy_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_save(trained(policy_path), tmp_path / "c", monkeypatch, "writing")
    (half,) = tmp_path.iterdir()
    with pytest.raises(EngineError, match="is no complete checkpoint"):
        TorchEngine(policy_path).restore(half)
    with pytest.raises(EngineError, match="is no complete checkpoint"):
        TorchEngine(policy_path).restore(tmp_path / "c")


def test_damaged_state_is_named(policy_path: Path, tmp_path: Path) -> None:
    trained(policy_path).save(tmp_path / "c")
    for content in (b"", b"\xff" * 40):
        (tmp_path / "c" / "trainer" / "state.json").write_bytes(content)
        with pytest.raises(EngineError, match=r"state\.json is damaged: "):
            TorchEngine(policy_path).restore(tmp_path / "c")


def test_file_cut_short_is_named(policy_path: Path, tmp_path: Path) -> None:
    trained(policy_path).save(tmp_path / "c")
    moments = tmp_path / "c" / "trainer" / "optimizer.safetensors"
    moments.write_bytes(moments.read_bytes()[:-1])
    with pytest.raises(EngineError, match=r"optimizer\.safetensors is \d+ bytes long, \d+ bytes were written"):
        TorchEngine(policy_path).restore(tmp_path / "c")


def test_full_disk_keeps_what_was_there(policy_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = trained(policy_path, steps=1)
    engine.save(tmp_path / "c")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(EngineError, match=r"No space left on device.*what was there before is unchanged"):
            engine.save(tmp_path / "c")
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
    TorchEngine(policy_path).restore(tmp_path / "c")


def test_checkpoint_of_another_kind_is_refused(policy_path: Path, tmp_path: Path) -> None:
    TorchEngine(policy_path).save(tmp_path / "c")
    with pytest.raises(EngineError, match="is of a policy, this engine is a critic"):
        TorchEngine(policy_path, kind="critic").restore(tmp_path / "c")


def test_moments_of_another_model_are_refused(policy_path: Path, tmp_path: Path) -> None:
    trained(policy_path).save(tmp_path / "c")
    state = tmp_path / "c" / "trainer" / "state.json"
    content = json.loads(state.read_text())
    from safetensors.torch import load_file, save_file

    file = tmp_path / "c" / "trainer" / "optimizer.safetensors"
    tensors = load_file(file)
    del tensors["exp_avg.lm_head.weight"]
    save_file(tensors, file)
    content["files"]["trainer/optimizer.safetensors"] = file.stat().st_size
    state.write_text(json.dumps(content))
    with pytest.raises(EngineError, match=r"no fitting exp_avg\.lm_head\.weight"):
        TorchEngine(policy_path).restore(tmp_path / "c")


def test_load_takes_weights_only(policy_path: Path, tmp_path: Path) -> None:
    engine = trained(policy_path)
    engine.save(tmp_path / "c")
    other = trained(policy_path, steps=1)
    other.load(tmp_path / "c", version=9)
    assert (other.version, other.steps, other._optimizer) == (9, 0, None)
    assert all(torch.equal(parameters(other)[name], tensor) for name, tensor in parameters(engine).items())
