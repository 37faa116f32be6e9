"""Passages for the tests of what is cited, and texts to make them of."""

from sherlock.rag.domain.models import Candidate, PageBreaks, Passage, Result
from sherlock.rag.tokens import Cl100kCounter

COUNTER = Cl100kCounter()
COUNTER.count("the vocabulary is loaded here, not in the first test")

TURBINE = (
    "The Marlowe turbine was built in 1974. Its emergency shut-off code is KX-4471-Q. "
    "It is inspected every eleven weeks by two engineers."
)
CODE = "Its emergency shut-off code is KX-4471-Q."
GARDEN = "The public garden of Hallorand opens at nine in the morning. Dogs are welcome on a lead."


def result(
    text: str,
    *,
    file: str = "a.txt",
    index: int = 0,
    start: int = 0,
    page: int | None = None,
    store: str = "vs_1",
    gap: str = "",
    page_breaks: PageBreaks = (),
) -> Result:
    candidate = Candidate(
        chunk_id=index,
        vector_store_id=store,
        file_id=f"file-{file}",
        filename=file,
        attributes=None,
        chunk_index=index,
        text=text,
        start=start,
        end=start + len(text),
        page=page,
        heading=None,
        cosine=0.5,
        keyword=0.5,
        gap=gap,
        page_breaks=page_breaks,
    )
    return Result(candidate, score=0.8, fused=0.8)


def numbered(*texts: str) -> tuple[Passage, ...]:
    """A passage for each text, each from a file of its own that is named after its number."""
    return tuple(
        Passage(number, (result(text, file=f"{number}.txt", index=number, start=100),), 100, text)
        for number, text in enumerate(texts, start=1)
    )
