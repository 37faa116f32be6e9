"""What is to be said about a file beside its text, gathered from its sections while they pass."""

from collections.abc import Iterator

from sherlock.rag.domain.models import ReadingNotes, Section


class NoteTaker:
    """Listens to one document."""

    def __init__(self) -> None:
        self._encoding: str | None = None
        self._pages = 0
        self._skipped: list[int] = []
        self._recognized: list[int] = []

    def listen(self, sections: Iterator[Section]) -> Iterator[Section]:
        """The same sections."""
        for section in sections:
            self._encoding = self._encoding or section.encoding
            if section.page is not None:
                self._pages = max(self._pages, section.page)
                if section.scan:
                    (self._recognized if section.ocr else self._skipped).append(section.page)
            yield section

    @property
    def notes(self) -> ReadingNotes:
        return ReadingNotes(
            self._encoding, self._pages or None, as_ranges(self._skipped), as_ranges(self._recognized)
        )


def as_ranges(pages: list[int]) -> str:
    """Ascending page numbers as one writes them to print some pages: `3, 7-9`."""
    ranges: list[list[int]] = []
    for page in pages:
        if ranges and page == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], page]
        else:
            ranges.append([page])
    return ", ".join("-".join(map(str, pair)) for pair in ranges)
