"""A sentence encoder in ONNX form, for single queries: half of the time that torch takes for 5 to 20 words.

The form is made from the loaded encoder (some 2 s), compared with it, and kept in a file whose name is a hash
of the encoder's own files, so that another model, or another version of it, never meets the wrong one.
"""

import contextlib
import hashlib
import io
import logging
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Forward = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]
"""Word pieces and attention mask [batch, tokens] -> vectors [batch, dimension], of any length."""
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]

LEAST_COSINE = 0.9999
"""What the exported form must reach on every sample, else it is not used."""
MAX_MODEL_BYTES = 1 << 30
"""The file format ends at 2 GiB; and in an encoder of that size torch's own overhead, which is what the
exported form saves, does not show."""
_OPSET = 17
_EXPORT = f"onnx-{_OPSET}-1"
"""Part of the file's name: change it when the export writes something else."""
_ABANDONED_S = 3600.0
"""A partial file of that age belongs to a process that was killed."""
_PART_OF_MODEL = {".json", ".txt", ".model", ".safetensors", ".bin"}

_exporter = threading.Lock()
"""torch's exporter keeps its state in the module: one export at a time."""

logger = logging.getLogger(__name__)


def open_exported(
    transformer: "SentenceTransformer",
    source: Path,
    folders: Sequence[Path],
    encode: Forward,
    samples: Sequence[Batch],
) -> Forward:
    """The exported form of `transformer`, whose files lie in `source`; from one of `folders`, else made now.

    It is kept in the first folder that can be written, and only in memory where none can. A file that is
    damaged or gives other vectors than `encode` for `samples` is made again. Raises whatever torch or ONNX
    Runtime does for an encoder that cannot be exported, and `ValueError` for one that is too large or comes
    out wrong.
    """
    if sum(file.stat().st_size for file in _files(source)) > MAX_MODEL_BYTES:
        raise ValueError("too large to be exported")
    expected = [encode(*sample) for sample in samples]
    name = f"{_digest(source)}.onnx"
    for folder in folders:
        kept = folder / name
        if kept.is_file():
            try:
                return _checked(kept.read_bytes(), samples, expected)
            except Exception:  # ONNX Runtime's errors have no class of their own in common
                logger.warning("exported encoder is damaged; making it again", exc_info=True)
                with contextlib.suppress(OSError):
                    kept.unlink()
    started = time.monotonic()
    exported = _export(transformer)
    checked = _checked(exported, samples, expected)
    where = next((folder for folder in folders if _keep(exported, folder, name)), None)
    logger.info(
        "encoder exported", extra={"seconds": round(time.monotonic() - started, 1), "kept": where is not None}
    )
    return checked


def _checked(exported: bytes, samples: Sequence[Batch], expected: Sequence[NDArray[np.float32]]) -> Forward:
    forward = _session(exported)
    for sample, theirs in zip(samples, expected, strict=True):
        ours = forward(*sample)
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        # Written so that NaN fails, too.
        if ours.shape != theirs.shape or not np.all(np.sum(ours * theirs, axis=1) >= LEAST_COSINE * lengths):
            raise ValueError("the exported encoder gives other vectors")
    return forward


def _session(exported: bytes) -> Forward:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # Idle threads would burn a core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # errors are raised anyway; the library's own lines would quote paths
    session = onnxruntime.InferenceSession(exported, options, providers=["CPUExecutionProvider"])

    def forward(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32]
        (vectors,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
        return vectors

    return forward


def _export(transformer: "SentenceTransformer") -> bytes:
    import torch

    class Traced(torch.nn.Module):
        """The encoder with tensors as arguments, as the exporter wants it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = transformer

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            return self.inner(features)["sentence_embedding"]

    axes = {0: "batch", 1: "tokens"}
    shape = torch.ones((2, 7), dtype=torch.long)  # only an example: both axes stay free
    file = io.BytesIO()
    with _exporter, warnings.catch_warnings(), torch.no_grad(), _without_onnx_package():
        # Of the exporter's age, and of branches taken as they are now: the comparison tells what that did.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Traced().eval(),
            (shape, shape),
            file,  # type: ignore[arg-type]  # this exporter takes files, too
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_axes={"input_ids": axes, "attention_mask": axes, "vectors": {0: "batch"}},
            opset_version=_OPSET,
            dynamo=False,
        )
    return file.getvalue()


@contextlib.contextmanager
def _without_onnx_package() -> Iterator[None]:
    """Leave out the exporter's last step, which alone needs the package `onnx` (with its own needs 40 MB).

    It adds functions that were written in onnxscript; an encoder has none. With a version of torch that has
    no such step this raises, and queries stay on torch.
    """
    from torch.onnx._internal.torchscript_exporter import onnx_proto_utils

    step = onnx_proto_utils._add_onnxscript_fn
    onnx_proto_utils._add_onnxscript_fn = lambda model_bytes, custom_opsets: model_bytes
    try:
        yield
    finally:
        onnx_proto_utils._add_onnxscript_fn = step


def _keep(exported: bytes, folder: Path, name: str) -> bool:
    """Whether the file is in `folder` now: complete, or not at all, whoever else writes or is killed."""
    partial = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob("*.onnx.*.partial"):
            if time.time() - left_over.stat().st_mtime > _ABANDONED_S:
                left_over.unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile(
            prefix=f"{name}.", suffix=".partial", dir=folder, delete=False
        ) as file:
            partial = Path(file.name)
            file.write(exported)
        partial.chmod(0o644)  # as other files of a model: processes of other users may share the folder
        os.replace(partial, folder / name)
    except OSError:  # not ours to write, or full
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink()
        return False
    return True


def _files(source: Path) -> list[Path]:
    """What makes the encoder what it is: configurations, vocabulary and weights, in a fixed order.

    Forms of the same weights for other runtimes have folders of their own.
    """
    return [
        file
        for file in sorted(source.rglob("*"))
        if file.suffix in _PART_OF_MODEL
        and file.is_file()
        and not {"onnx", "openvino"} & {*file.relative_to(source).parts}
    ]


def _digest(source: Path) -> str:
    digest = hashlib.sha256(_EXPORT.encode())
    for path in _files(source):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(path.relative_to(source).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()
