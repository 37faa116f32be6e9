"""The exported form of an encoder: the same vectors, one file, and never a damaged or a foreign one."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sherlock.rag import exported_encoder
from sherlock.rag.exported_encoder import Batch, Forward, open_exported

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


class TinyEncoder(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Word pieces to the mean of their rows in a table: all that an exporter and a session have to know."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = torch.nn.Embedding(100, 16)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        mask = features["attention_mask"].unsqueeze(-1).float()
        total = (self.table(features["input_ids"]) * mask).sum(1)
        return {"sentence_embedding": total / mask.sum(1)}

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        with torch.inference_mode():
            vectors: np.ndarray = self(features)["sentence_embedding"].numpy()
        return vectors


def batch(rows: int, tokens: int) -> Batch:
    ids = np.arange(rows * tokens).reshape(rows, tokens) % 100
    mask = np.ones_like(ids)
    mask[0, tokens // 2 + 1 :] = 0
    return ids, mask


SAMPLES = [batch(1, 1), batch(1, 12), batch(5, 30)]
OTHER = batch(3, 50)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model's folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def opened(source: Path, *folders: Path, seed: int = 1) -> Forward:
    encoder = TinyEncoder(seed)
    forward = open_exported(encoder, source, folders, encoder.encode, SAMPLES)
    assert np.allclose(forward(*OTHER), encoder.encode(*OTHER), atol=1e-6)
    return forward


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_it_is_made_once_and_found_again(source: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    opened(source, first, second)
    made = only_file(first).stat().st_mtime_ns
    opened(source, second, first)
    assert only_file(first).stat().st_mtime_ns == made
    assert not second.exists()


def test_another_version_of_the_model_has_a_file_of_its_own(source: Path, tmp_path: Path) -> None:
    opened(source, tmp_path / "kept")
    (source / "model.safetensors").write_bytes(b"other weights")
    (source / "README.md").write_text("no part of it")
    opened(source, tmp_path / "kept", seed=2)
    opened(source, tmp_path / "kept", seed=2)
    assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"no model", "cut", "another model's"])
def test_a_file_that_is_damaged_or_wrong_is_made_again(
    content: bytes | str, source: Path, tmp_path: Path
) -> None:
    opened(source, tmp_path / "kept")
    file = only_file(tmp_path / "kept")
    if content == "another model's":
        opened(source, tmp_path / "other", seed=2)
        content = only_file(tmp_path / "other").read_bytes()
    file.write_bytes(file.read_bytes()[:-100] if isinstance(content, str) else content)
    damaged = file.read_bytes()
    opened(source, tmp_path / "kept")
    assert only_file(tmp_path / "kept") == file
    assert file.read_bytes() != damaged


def test_what_cannot_be_written_is_kept_elsewhere_or_in_memory(source: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "a file, not a folder"
    blocked.touch()
    opened(source, blocked / "models", tmp_path / "data")
    assert only_file(tmp_path / "data").suffix == ".onnx"
    opened(source, blocked / "models")
    opened(source)
    assert blocked.read_bytes() == b""


async def test_two_at_once_and_killed_ones_leave_one_file(source: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    killed, writing = kept / "x.onnx.1.partial", kept / "x.onnx.2.partial"
    for partial in (killed, writing):
        partial.touch()
    os.utime(killed, times=(time.time() - 7200, time.time() - 7200))
    await asyncio.gather(*(asyncio.to_thread(opened, source, kept) for _ in range(2)))
    assert sorted(file.suffix for file in kept.iterdir()) == [".onnx", ".partial"]
    assert writing.exists()


def test_one_that_comes_out_wrong_is_neither_used_nor_kept(source: Path, tmp_path: Path) -> None:
    encoder, wrong = TinyEncoder(1), TinyEncoder(2)
    with pytest.raises(ValueError, match="other vectors"):
        open_exported(wrong, source, [tmp_path / "kept"], encoder.encode, SAMPLES)
    assert not (tmp_path / "kept").exists()


def test_a_large_model_is_not_exported(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_encoder, "MAX_MODEL_BYTES", 5)
    with pytest.raises(ValueError, match="too large"):
        opened(source, tmp_path / "kept")
