"""Halves of surrogate pairs: JSON and file names can carry them, UTF-8 and tokenizers cannot."""


def whole_characters(text: str) -> str:
    """`text`, pairs joined to the character they stand for, each lone half replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_surrogates(text: str) -> str:
    """`text`, each lone half replaced by `?`."""
    return text.encode("utf-8", "replace").decode()
