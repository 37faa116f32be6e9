"""Markers of an answer, `[1]` or `[1, 2]`: where they are, and an answer without the ones that were made up.

What stands in brackets is no marker in code, as an index (`a[1]`, `rows_read[2]`, `m[1][2]`), as a link
(`[1](https://...)`, `[text][1]`, `[1]: https://...`) or with a 0 in it: passages count from 1.
"""

import re
from collections.abc import Collection, Iterator

MARKER = re.compile(r"[\[【]\d{1,2}(?:\s{0,2},\s{0,2}\d{1,2}){0,9}[\]】]")
CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)

_NUMBER = re.compile(r"\d+")
_BRACKET = re.compile(r"[\[【]")
_UNFINISHED = re.compile(r"[\[【][\d\s,]{0,50}")
_MARKER_BEFORE = re.compile(rf"{MARKER.pattern}\Z")
_WORD_BEFORE = re.compile(r"""[^\s()\[\]{}'"“”=,;:+*/<>&|]+\Z""")
_INDEXED = re.compile(r"[A-Za-z_]|[A-Za-z_]\w*(?:\.\w+)+|(?=\w*(?:[\d_]|[a-z][A-Z]))[A-Za-z_]\w*")
_SEEN_BEFORE = 60  # characters before a bracket that decide what it is
_BLANKS_HELD = 60  # before a marker, that go with it
_LONGEST_CHAIN = 10  # markers, one directly behind the other, that are looked back over


def markers(text: str) -> Iterator[re.Match[str]]:
    """Every marker of the text, in order, whatever its numbers."""
    code_end, code = 0, CODE.finditer(text)
    span = next(code, None)
    for marker in MARKER.finditer(text):
        while span is not None and span.end() <= marker.start():
            span = next(code, None)
        code_end = span.end() if span is not None and span.start() <= marker.start() else code_end
        if marker.start() >= code_end and is_marker(text, marker):
            yield marker


def numbers(marker: str) -> list[int]:
    """The numbers of a marker, each once."""
    return list(dict.fromkeys(map(int, _NUMBER.findall(marker))))


def is_marker(text: str, match: re.Match[str]) -> bool:
    """Whether what looks like a marker is one, judged by what stands before and after it; code apart."""
    after = text[match.end() : match.end() + 1]
    begins_line = not text[max(0, match.start() - _SEEN_BEFORE) : match.start()].rpartition("\n")[2].strip()
    if 0 in numbers(match[0]) or after == "(" or (after == ":" and begins_line):
        return False
    start = match.start()
    for _ in range(_LONGEST_CHAIN):  # of a chain the first decides
        chained = _MARKER_BEFORE.search(text, max(0, start - _SEEN_BEFORE), start)
        if chained is None:
            break
        start = chained.start()
    before = text[max(0, start - _SEEN_BEFORE) : start]
    word = _WORD_BEFORE.search(before)
    return not before.endswith(("]", "】", "\\")) and not (word and _INDEXED.fullmatch(word[0]))


class MarkerFilter:
    """Gives an answer back, as it comes, without the numbers that no passage has.

    What cannot be decided yet is held back: the blanks before what may become a marker, and a made-up one in
    what may become code. However the answer is cut into pieces, the same comes out.
    """

    def __init__(self, known: Collection[int]) -> None:
        self._known = known
        self._text = ""
        self._at = 0
        """Where that begins which has not been given back yet."""
        self._code_end = 0
        """Where the last piece of code ends that is known to end."""

    def feed(self, piece: str) -> str:
        """What of the answer can be shown now."""
        self._text += piece
        return self._decided(ended=False)

    def end(self) -> str:
        """What has been held back."""
        return self._decided(ended=True)

    def _decided(self, *, ended: bool) -> str:
        given: list[str] = []
        while True:
            bracket = _BRACKET.search(self._text, self._at)
            stop = bracket.start() if bracket else len(self._text)
            blank = self._at + len(self._text[self._at : stop].rstrip(" \t"))
            # A model that writes blanks without end is neither held back nor read again and again.
            blank = stop if ended and bracket is None else max(blank, stop - _BLANKS_HELD)
            given.append(self._text[self._at : blank])
            self._at = blank
            if bracket is None or (decided := self._judged(blank, stop, ended=ended)) is None:
                break
            kept, self._at = decided
            given.append(kept)
        self._forget()
        return "".join(given)

    def _judged(self, blank: int, bracket: int, *, ended: bool) -> tuple[str, int] | None:
        """What is left of the blanks and the bracket, and where they end; `None`: too early to say."""
        text = self._text
        marker = MARKER.match(text, bracket)
        if marker is None:
            unfinished = not ended and _UNFINISHED.fullmatch(text, bracket)
            return None if unfinished else (text[blank : bracket + 1], bracket + 1)
        asis = text[blank : marker.end()], marker.end()
        known = [number for number in numbers(marker[0]) if number in self._known]
        if len(known) == len(numbers(marker[0])):
            return asis
        if not ended and marker.end() == len(text):
            return None
        in_code = self._in_code(bracket, ended=ended)
        if in_code is None:
            return None
        if in_code or not is_marker(text, marker):
            return asis
        if known:
            return (
                f"{text[blank:bracket]}{text[bracket]}{', '.join(map(str, known))}{marker[0][-1]}",
                marker.end(),
            )
        begins_line = blank == 0 or text[blank - 1] == "\n"
        return "", marker.end() + (begins_line and text[marker.end() : marker.end() + 1] == " ")

    def _in_code(self, at: int, *, ended: bool) -> bool | None:
        """`None`: a piece of code may have begun in this line, and the line goes on."""
        if "`" not in self._text:
            return False
        for span in CODE.finditer(self._text, self._code_end):
            if span.start() > at:
                break
            if at < span.end():
                return True
            self._code_end = span.end()
        line = max(self._code_end, self._text.rfind("\n", 0, at))
        may_begin = "`" in self._text[line:at] and "\n" not in self._text[at:]
        return None if may_begin and not ended else False

    def _forget(self) -> None:
        """Earlier lines decide nothing any more, unless code of several lines is among them."""
        line = self._text.rfind("\n", 0, self._at)
        if line > self._code_end and "```" not in self._text[self._code_end :]:
            self._text, self._at, self._code_end = self._text[line:], self._at - line, 0
