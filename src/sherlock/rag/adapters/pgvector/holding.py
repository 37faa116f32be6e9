"""A query's operators, as conditions on term keys and as a check of the text.

Keys decide first, in the statement. They suffice for an excluded word; that the words of a phrase stand
side by side shows only in the text. `fts_vector` cannot tell: PostgreSQL's parser keeps `/etc/app.conf` as
one word, a Chinese or Thai sentence too, and folds case as the database's locale does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from sherlock.rag import terms
from sherlock.rag.domain.operators import Operators

MAX_KEY_CONDITIONS = 16
"""Of a phrase's words, those that are looked up; the text is checked for all of them."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What chunks must and must not hold; `keys` are those of `terms.store_key`."""

    keys: list[list[int]]
    """Of each, a chunk has one at least."""
    barred_keys: list[int]
    phrases: list[str]
    """As of `terms.folded_phrase`."""
    barred_phrases: list[str]

    @classmethod
    def of(cls, operators: Operators, store_nos: Sequence[int]) -> Self:
        def in_stores(keys: frozenset[int]) -> list[int]:
            return [terms.store_key(store_no, key) for store_no in store_nos for key in sorted(keys)]

        words = [word for word in operators.excluded_words if terms.is_one_word(word)]
        more = [word for word in operators.excluded_words if not terms.is_one_word(word)]
        needed = [keys for phrase in operators.phrases for keys in terms.phrase_keys(phrase)]
        return cls(
            keys=[in_stores(keys) for keys in dict.fromkeys(needed)][:MAX_KEY_CONDITIONS],
            barred_keys=[
                key for word in words for keys in terms.phrase_keys(word) for key in in_stores(keys)
            ],
            phrases=_folded(operators.phrases),
            barred_phrases=_folded([*more, *operators.excluded_phrases]),
        )

    @property
    def in_text(self) -> bool:
        """Whether the text has to be read."""
        return bool(self.phrases or self.barred_phrases)

    @property
    def parameters(self) -> dict[str, Any]:
        bound: dict[str, Any] = {f"held_{number}": keys for number, keys in enumerate(self.keys)}
        return bound | ({"barred": self.barred_keys} if self.barred_keys else {})

    def of_terms(self) -> str:
        """Further conditions on a row of `chunk_terms`."""
        held = [f"and keys && CAST(:held_{number} as int[])" for number in range(len(self.keys))]
        barred = ["and not keys && CAST(:barred as int[])"] if self.barred_keys else []
        return " ".join(held + barred)

    def of_windows(self, within: str) -> str:
        """The same on a row `w` of `chunk_windows`, all of which are `within` the scope of the search.

        Required keys are few chunks' and found first; barred ones are most often absent, and looked at row by
        row, in a form that cannot become a join and so leaves the order of the graph alone.
        """
        if self.keys:
            held = f"select chunk_id from chunk_terms where {within} {self.of_terms()} offset 0"
            return f"and chunk_id in ({held})"
        if self.barred_keys:
            return (
                "and (select not keys && CAST(:barred as int[]) from chunk_terms as t "
                "where t.chunk_id = w.chunk_id and t.store_no = w.store_no)"
            )
        return ""

    def is_met_by(self, text: str) -> bool:
        """Whether the text holds the phrases, and none of the barred ones."""
        folded = terms.folded(text)
        return all(phrase in folded for phrase in self.phrases) and not any(
            phrase in folded for phrase in self.barred_phrases
        )


def _folded(phrases: Sequence[str]) -> list[str]:
    return [folded for phrase in phrases if (folded := terms.folded_phrase(phrase))]
