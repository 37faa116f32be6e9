"""Right-to-left lines come in the order they are read."""

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag.parsers import parse
from sherlock.rag.parsers.bidi import as_read

DATA = Path(__file__).parents[1] / "data"

# What stands in right_to_left.pdf, laid out by an implementation of UAX #9 other than ours.
LINES = [
    "המשאבה על הגג נעצרת ב-7.5 בר (בלבד).",
    "שסתום V-17 נסגר בשנת 2024, אחרי הבדיקה.",
    "הפרויקט הוא Open Source לכל דבר, גרסה 3.11.2 בלבד.",
    'מחיר: 1,250.00 ש"ח (כולל מע"מ) - 17%',
    "תאריך 12/05/2024 בשעה 10:30",
    "The word שלום עולם means hello world, 12 times.",
    "تعمل المضخة على السطح منذ 2019 (دائما).",
    "الضغط 7.5 بار، والحرارة 40%.",
    "ראו https://example.org/a?b=1 לפרטים",
]

WORDS = st.sampled_from(
    ["שלום", "بار", "V-17", "Open", "7.5", "12/05", "(", ")", ",", ".", "%", " ", "\u05b8", "-"]
)


def test_a_pdf_in_hebrew_and_arabic() -> None:
    text = "".join(section.text for section in parse(DATA / "right_to_left.pdf", "right_to_left.pdf"))
    assert text.strip().splitlines() == LINES


@given(st.lists(st.sampled_from(["pump", "Ventil.", "7.5", "(", "漢字", "é", "\n", " - "])).map("".join))
def test_other_text_stays_as_it_is(text: str) -> None:
    assert as_read(text) == text


@given(st.lists(WORDS, max_size=12).map(" ".join) | st.lists(WORDS, max_size=12).map("".join))
def test_no_character_is_lost(line: str) -> None:
    def folded(text: str) -> Counter[str]:
        return Counter(text.translate(str.maketrans(")", "(")))

    assert folded(as_read(line)) == folded(line)


@given(st.lists(st.sampled_from(["שלום", "משאבה", "בר"]), min_size=1, max_size=8))
def test_words_alone_are_in_order_already(words: list[str]) -> None:
    assert as_read(" ".join(words)) == " ".join(words)
