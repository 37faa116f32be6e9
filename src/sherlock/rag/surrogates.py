"""Halves of surrogate pairs: JSON and file names can carry them, UTF-8 and tokenizers cannot."""


def without_surrogates(text: str) -> str:
    """`text`, each lone half replaced by `?`."""
    return text.encode("utf-8", "replace").decode()
