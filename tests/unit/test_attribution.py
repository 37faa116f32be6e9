"""Statements in other words than the files': what supports them is cited, what contradicts them is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cited import numbered

from sherlock.rag.application.agreement import agree, numbers, words
from sherlock.rag.application.cite import citations

FOUND = numbered(
    "The Marlowe turbine was built in 1974."
    " Its emergency shut-off code is KX-4471-Q."
    " It is inspected every eleven weeks by two engineers.",
    "The public garden of Hallorand opens at nine in the morning."
    " Dogs are welcome on a lead."
    " Bicycles are not allowed inside.",
    "A pump must not be started while its inlet valve is closed."
    " The bearings hold 1,250 grams of grease."
    " The pump weighs 12.5 kilograms.",
    "Das Ventil darf während des Betriebs nicht geöffnet werden."
    " Der Behälter fasst 5.200 Liter."
    " Hunde sind im Garten erlaubt.",
    "La porte est fermée le lundi. Le musée n'accepte pas les cartes. L'entrée coûte 8,50 euros.",
    "Насос нельзя включать без воды. Вентиль открыт зимой.",
    "El museo abre los domingos. No se permite fumar en la sala.",
    "水泵不能在没有水的情况下启动。阀门在冬天打开。",
    "The yearly report is due on Tuesday, March 3."
    " Reports are read in May, and may be handed in early."
    " Vaccines are stored between 2 and 8 degrees."
    " The shop opens at 9 and closes at 17."
    " The lower gate is closed in winter."
    " At most the maximum load of the crane is 40 tonnes."
    " Visitors sign the book before the tour.",
    "Der Antrag muss im März gestellt werden. Das Tor ist im Winter geschlossen."
    " La réunion a lieu en août. La oficina cierra los viernes.",
)

SUPPORTED = [
    ("The emergency shut-off code is KX-4471-Q.", 1),
    ("Two engineers inspect it every 11 weeks.", 1),
    ("The turbine was built in 1974.", 1),
    ("The garden opens at nine in the morning.", 2),
    ("It opens at 9 in the morning.", 2),
    ("Bicycles aren't allowed inside.", 2),
    ("Dogs are welcome on a lead, but bicycles are not allowed inside.", 2),
    ("A pump must never be started while the inlet valve is closed.", 3),
    ("The bearings hold 1250 grams of grease.", 3),
    ("The pump weighs 12,5 kilograms.", 3),
    ("Das Ventil darf im Betrieb nicht geöffnet werden.", 4),
    ("Der Behälter fasst 5200 Liter.", 4),
    ("Im Garten sind Hunde erlaubt.", 4),
    ("Le musée n'accepte pas les cartes.", 5),
    ("La porte est fermée lundi.", 5),
    ("L'entrée coûte 8.50 euros.", 5),
    ("Насос нельзя включать без воды.", 6),
    ("Вентиль зимой открыт.", 6),
    ("El museo abre los domingos.", 7),
    ("No se permite fumar en la sala.", 7),
    ("水泵不能在没有水的情况下启动。", 8),
    ("阀门在冬天打开。", 8),
    ("The yearly report is due in March.", 9),
    ("On Tuesday 3 March the yearly report is due.", 9),
    ("May reports be handed in early?", 9),
    ("In May the reports are read.", 9),
    ("Vaccines are stored at 2 to 8 degrees.", 9),
    ("Between 2 and 8 degrees vaccines are stored.", 9),
    ("The shop closes at 17 and opens at 9.", 9),
    ("In winter the lower gate is closed.", 9),
    ("The maximum load of the crane is 40 tonnes.", 9),
    ("Visitors sign the book before a tour.", 9),
    ("Der Antrag muss im März gestellt werden.", 10),
    ("La réunion a lieu en août.", 10),
]  # fmt: skip

CONTRADICTED = [
    "The emergency shut-off code is not KX-4471-Q.",
    "It is inspected every twelve weeks by two engineers.",
    "It is inspected every eleven weeks by three engineers.",
    "The turbine was never built in 1974.",
    "Dogs are not welcome on a lead.",
    "Bicycles are allowed inside.",
    "The garden doesn't open at nine in the morning.",
    "The garden opens at ten in the morning.",
    "A pump must be started while its inlet valve is closed.",
    "The bearings hold 1,520 grams of grease.",
    "The pump weighs 5.12 kilograms.",
    "The pump weighs 125 kilograms.",
    "Das Ventil darf während des Betriebs geöffnet werden.",
    "Hunde sind im Garten nicht erlaubt.",
    "Der Behälter fasst keine 5.200 Liter.",
    "Im Garten sind keine Hunde erlaubt.",
    "La porte n'est pas fermée le lundi.",
    "Le musée accepte les cartes.",
    "L'entrée coûte 50,8 euros.",
    "Насос можно включать без воды.",
    "Вентиль не открыт зимой.",
    "El museo no abre los domingos.",
    "Se permite fumar en la sala.",
    "阀门在冬天没打开。",
    "The yearly report is due in May.",
    "The yearly report is due on Wednesday, March 3.",
    "Reports are read in June.",
    "Vaccines are stored between 8 and 2 degrees.",
    "Vaccines are stored at 8 to 2 degrees.",
    "The shop opens at 17 and closes at 9.",
    "The lower gate is open in winter.",
    "The minimum load of the crane is 40 tonnes.",
    "Visitors sign the book after the tour.",
    "Der Antrag muss im Mai gestellt werden.",
    "Das Tor ist im Winter geöffnet.",
    "La réunion a lieu en juillet.",
    "La oficina cierra los lunes.",
]  # fmt: skip

UNSUPPORTED = [
    "The moon is made of green cheese.",
    "I do not know.",
    "The passages do not hold the answer.",
    "The turbine sings beautifully in winter nights.",
    "Please ask the gardener of the town.",
    "Das weiß ich leider nicht.",
]


@pytest.mark.parametrize(("statement", "number"), SUPPORTED)
def test_what_a_passage_says_is_attributed_to_it(statement: str, number: int) -> None:
    assert [citation.filename for citation in citations(statement, FOUND)] == [f"{number}.txt"]


@pytest.mark.parametrize("statement", [*CONTRADICTED, *UNSUPPORTED])
def test_what_no_passage_says_stays_uncited(statement: str) -> None:
    assert citations(statement, FOUND) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,250 and 1.250 and 1 250", {"1250", "1", "250"}),
        ("12.5 or 12,5", {"12.5"}),
        ("09:05 on 2020-01-05", {"9", "5", "2020", "1"}),
        ("٤٢ and ４２", {"42"}),
        ("eleven, zwölf, deux", {"11", "12", "2"}),
        ("one, elf and once", set()),
        ("KX-4471-Q", {"4471"}),
        ("0 and 0.5", {"0", "0.5"}),
    ],
)
def test_numbers_have_one_notation(text: str, found: set[str]) -> None:
    assert numbers(text) == found


@pytest.mark.parametrize(
    ("statement", "quote", "agreed"),
    [
        ("The turbine was built in 1974", "The turbine, which is not old, was built in 1974.", True),
        ("The fan is on and the pump is not running.", "The pump is not running; the fan is on.", True),
        ("See No. 5 of the list.", "It is No. 5 of the list.", True),
        ("It must not be opened without tools.", "It must be opened with tools.", True),
        ("It must not be opened.", "It must be opened.", False),
        ("It cannot be opened.", "It can't be opened.", True),
        ("不锈钢阀门打开了。", "阀门打开了。", True),
        ("It was signed on March 5, 2020.", "Signed: 2020-03-05.", True),
        ("It was signed on April 5, 2020.", "Signed: 2020-03-05.", False),
        ("It lists parts 5 and 7.", "It lists parts 7 and 5.", True),
        ("It went up from 5 to 7 percent.", "It went up to 7 percent, from 5.", True),
        ("It went up from 5 to 7 percent.", "It went up from 7 to 5 percent.", False),
        ("Open from 9 o'clock to 17 o'clock.", "Open from 9 to 17 o'clock.", True),
        ("The gate is open.", "The gate, closed in winter, is open.", True),
    ],
)
def test_a_negation_counts_in_its_clause(statement: str, quote: str, agreed: bool) -> None:
    assert agree(statement, quote) is agreed


SENTENCES = st.text(alphabet="ab 1.,not nó'№一不漢٤\n", max_size=60)


@given(SENTENCES)
def test_a_text_agrees_with_itself(text: str) -> None:
    assert agree(text, text)
    assert words(text) <= words(text + " and more")
