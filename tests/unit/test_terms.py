"""The keyword analyser: which terms a text has, their keys, and that the weights are BM25."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag import terms

ANY_TEXT = st.text(st.characters(codec=None), max_size=200)  # lone surrogates and NUL too
WORDS = st.lists(st.sampled_from(["pump", "valve", "seal", "rotor", "blade", "casing"]), max_size=40)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The pumps were pumping", ["pump", "pump"]),
        ("Ünïcode naïve", ["unicod", "naiv"]),
        ("книгами", ["книг"]),
        ("ёлка", ["елк"]),
        ("readFile MAX_SIZE", ["read", "file", "readfile", "max", "size", "maxsize"]),
        ("HTTPServer2", ["http", "server", "httpserver2"]),
        ("KX-4471-Q", ["kx", "4471", "q"]),
        ("x86 E0425", ["86", "x86", "0425", "e0425"]),
        ("__init__", ["init"]),
        ("東京都", ["東京", "京都"]),
        ("年", ["年"]),
        ("ｈａｌｆ", ["half"]),
        ("python言語", ["python", "言語"]),
        ("हिन्दी", ["हिन्दी"]),
        ("", []),
        ("?! — …", []),
        ("the of and", []),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms.terms(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Café", "cafe\u0301"),
        ("CAFÉ", "cafe"),
        ("maxSize", "max_size"),
        ("running", "runs"),
        ("Straße", "STRASSE"),
        ("كِتَاب", "كتاب"),
        ("ﾃｽﾄ", "テスト"),
    ],
)
def test_spellings_of_a_word_meet(one: str, other: str) -> None:
    assert set(terms.terms(one)) & set(terms.terms(other))


def test_words_that_only_look_alike_stay_apart() -> None:
    # In Devanagari a mark is a vowel: folding it away would make these one word.
    assert terms.terms("कि") != terms.terms("की")


@given(ANY_TEXT)
def test_any_text_has_terms_with_keys_and_weights(text: str) -> None:
    found = terms.terms(text)
    assert all(found)
    weights = terms.document_weights(found)
    assert all(0 <= key < 2**29 for key in weights)
    assert all(0 < weight < terms.K1 + 1 for weight in weights.values())
    assert len(weights) <= len(set(found))


@given(st.text("".join(map(chr, [*range(128), *terms._TYPOGRAPHY])), max_size=60))
def test_plain_text_has_the_terms_it_has_beside_other_scripts(text: str) -> None:
    assert terms.terms(f"{text} я") == [*terms.terms(text), "я"]


@given(ANY_TEXT, ANY_TEXT)
def test_terms_of_texts_on_lines_are_those_of_the_lines(one: str, other: str) -> None:
    assert terms.terms(f"{one}\n{other}") == terms.terms(one) + terms.terms(other)


def test_keys_never_change() -> None:
    # They are stored with the chunks: another hash would need every store to be indexed anew.
    assert terms.term_key("turbin") == 429194479
    assert terms.store_key(7, 429194479) == 1520634378
    assert terms.store_key(1, 2) == 779996176


@given(st.integers(1, 2**31 - 1), st.sets(st.integers(0, 2**29 - 1), max_size=200))
def test_terms_of_one_store_never_share_a_store_key(store_no: int, keys: set[int]) -> None:
    store_keys = {terms.store_key(store_no, key) for key in keys}
    assert len(store_keys) == len(keys)
    assert all(-(2**31) <= key < 2**31 for key in store_keys)


def test_store_keys_of_different_stores_are_unrelated() -> None:
    lists = [{terms.store_key(store_no, key) for key in range(2000)} for store_no in range(1, 6)]
    assert len(set.union(*lists)) >= 5 * 2000 - 5


@given(WORDS, WORDS.filter(bool), st.integers(0, 500))
def test_the_weights_multiply_to_bm25(document: list[str], query: list[str], others: int) -> None:
    stems = terms.terms(" ".join(document))
    asked = terms.terms(" ".join(query))
    n = others + 1
    df = {terms.term_key(stem): 1 for stem in stems}
    weights = terms.document_weights(stems)
    asked_weights = terms.query_weights(asked, df, n)
    product = sum(asked_weights[key] * weights.get(key, 0) for key in asked_weights)

    count = Counter(stems)
    expected = 0.0
    for stem in asked:
        holding = 1 if count[stem] else 0
        idf = math.log(1 + (n - holding + 0.5) / (holding + 0.5))
        length = 1 - terms.B + terms.B * len(stems) / terms.AVERAGE_TERMS
        expected += idf * count[stem] * (terms.K1 + 1) / (count[stem] + terms.K1 * length)
    assert product == pytest.approx(expected)
    assert 0 <= product <= terms.best_score(asked_weights)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_idf_is_positive_and_falls_with_frequency(df: int, n: int) -> None:
    assert terms.idf(df, n) > 0
    assert terms.idf(df + 1, n) <= terms.idf(df, n)


def test_a_term_asked_for_twice_counts_twice() -> None:
    once, twice = (terms.query_weights(["pump"] * times, {}, 10) for times in (1, 2))
    assert {key: 2 * weight for key, weight in once.items()} == twice


def test_a_term_counts_less_in_a_longer_text() -> None:
    key = terms.term_key("pump")
    short, long = (terms.document_weights(["pump", *["other"] * length]) for length in (10, 300))
    assert short[key] > long[key]


# ── phrases ─────────────────────────────────────────────────────────────────


def holds(text: str, phrase: str) -> bool:
    return terms.folded_phrase(phrase) in terms.folded(text)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The Feed-Pump, stops", "feed pump"),
        ("see /etc/app/config.yaml.", "config.yaml"),
        ("the pump", "the"),
        ("Café au lait", "cafe AU"),
        ("MAX_SIZE is 5", "max_size is"),
        ("新東京都庁", "東京都"),
        ("die python言語", "Python言"),
        ("서울에서 만나", "서울"),
        ("call readFile now", "READFILE"),
        ("at -5 °C", "5 c"),
    ],
)
def test_a_text_holds_a_phrase(text: str, phrase: str) -> None:
    assert holds(text, phrase)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The pump feeds", "feed pump"),
        ("feed the pump", "feed pump"),
        ("feed pumps", "feed pump"),
        ("refeed pump", "feed pump"),
        ("readFile", "read"),
        ("東 京", "東京"),
        ("university", "universe"),
    ],
)
def test_a_text_does_not_hold_a_phrase(text: str, phrase: str) -> None:
    assert not holds(text, phrase)


@given(ANY_TEXT, st.data())
def test_what_is_cut_out_of_a_text_at_blanks_is_held_by_it(text: str, data: st.DataObject) -> None:
    words = text.split()
    start = data.draw(st.integers(0, len(words)))
    end = data.draw(st.integers(start, len(words)))
    assert holds(text, " ".join(words[start:end]))


SPELT = st.text(st.sampled_from("abAB_9é東京か -"), max_size=12)


@given(SPELT, SPELT)
def test_a_text_that_holds_a_phrase_has_its_keys(text: str, phrase: str) -> None:
    found = {terms.term_key(term) for term in terms.terms(text)}
    if holds(text, phrase):
        assert all(found & keys for keys in terms.phrase_keys(phrase))
