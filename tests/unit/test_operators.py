"""What counts as an operator in a query, and what is text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.operators import MAX_OPERATORS, Operators, read_operators


@pytest.mark.parametrize(
    ("query", "text", "operators"),
    [
        ('the "feed pump" stops', "the feed pump stops", Operators(("feed pump",))),
        ('"oil"', "oil", Operators(("oil",))),
        ('what is "feed pump"? and "oil valve".', "what is feed pump? and oil valve.",
         Operators(("feed pump", "oil valve"))),
        ("was ist „Halt“ und «tenue»", "was ist Halt und tenue", Operators(("Halt", "tenue"))),
        ("“curly quotes” too", "curly quotes too", Operators(("curly quotes",))),
        ("jaguar speed -car", "jaguar speed", Operators((), ("car",))),
        ("jaguar -car -big-cat.", "jaguar", Operators((), ("big-cat", "car"))),
        ('jaguar -car -"Type E"', "jaguar", Operators((), ("car",), ("Type E",))),
        ('jaguar -"Type E" speed', "jaguar speed", Operators((), (), ("Type E",))),
        ('"jaguar" -car', "jaguar", Operators(("jaguar",), ("car",))),
        ("速度 -車", "速度", Operators((), ("車",))),
        ('"tar -xvf"', "tar -xvf", Operators(("tar -xvf",))),
    ],
)  # fmt: skip
def test_operators(query: str, text: str, operators: Operators) -> None:
    assert read_operators(query) == (text, operators)


@pytest.mark.parametrize(
    "query",
    [
        "e-mail and state-of-the-art",
        "works at -5 °C",
        "frost below -40",
        "pip install --verbose",
        "what does gcc -Wall do",
        "gcc -Wall",
        "gcc -Wall -pthread",
        "rm -rf",
        "find . -name readme",
        "docker run --rm -name",
        "the pump -which is old- stops",
        "ten - three",
        "a dash --",
        "jet flow -dash experimental papers .",
        'print("hello world")',
        'a 5" pipe and a 6" pipe',
        'an "open quote',
        'empty "" and "..." quotes',
        "the customers' oil",
        "-",
        "",
    ],
)
def test_text(query: str) -> None:
    assert read_operators(query) == (query, Operators())


@pytest.mark.parametrize("query", ["-car", '-"feed pump"', '-car -"Type E" ?', " -oil "])
def test_a_query_that_only_excludes_is_refused(query: str) -> None:
    with pytest.raises(InvalidRequest, match="say what to look for") as refused:
        read_operators(query)
    assert refused.value.param == "query"


def test_so_many_operators_and_no_more() -> None:
    _, operators = read_operators("pump" + ' "oil"' * MAX_OPERATORS)
    assert len(operators) == MAX_OPERATORS
    for query in ('pump "oil"' + ' "oil"' * MAX_OPERATORS, "pump" + " -oil" * 10_000):
        with pytest.raises(InvalidRequest, match="phrases and exclusions"):
            read_operators(query)


@given(st.text(st.sampled_from('ab "“”„«»-.é東5\n'), max_size=40))
def test_every_query_is_read_or_refused(query: str) -> None:
    try:
        text, operators = read_operators(query)
    except InvalidRequest:
        return
    if not operators:
        assert text == query
    kept = [*operators.phrases]
    assert all("".join(phrase.split()) in "".join(text.split()) for phrase in kept)
    assert read_operators(text)[1].excluded_phrases == ()


@given(st.lists(st.from_regex(r"[a-zß]{3,8}", fullmatch=True), min_size=1, max_size=5))
def test_quoted_and_excluded_words_come_back(words: list[str]) -> None:
    phrase = " ".join(words)
    assert read_operators(f'pump "{phrase}" -{words[0]}') == (
        f"pump {phrase}",
        Operators((phrase,), (words[0],)),
    )
