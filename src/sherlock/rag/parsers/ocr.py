"""Words in pictures of pages, by Tesseract within this process.

A reading process may start no program, and its bounds on memory and time hold for what runs inside it: so the
library is called, through tesserocr (the extra `ocr`), and not the command.
"""

import importlib.util
import math
import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

_FOLDERS: Final = (
    "/usr/share/tesseract-ocr/5/tessdata",
    "/usr/share/tesseract-ocr/4.00/tessdata",
    "/usr/share/tessdata",
    "/usr/local/share/tessdata",
    "/opt/homebrew/share/tessdata",
)
"""Where systems keep the language data, which `TESSDATA_PREFIX` goes before."""

DOTS_PER_INCH: Final = 300
"""What the language data was trained for."""
_MOST_DOTS: Final = 16 << 20  # of a page; an A4 page has 8.7 million
_LONGEST_SIDE: Final = 16_000  # dots; Tesseract takes twice that
_TIMEOUT_MS: Final = 30_000  # for a page, which takes one or a few seconds
_LEAST_CONFIDENCE: Final = 50  # per cent, the mean of a page's words; photographs give less
_LANGUAGES: Final = re.compile(r"\w+(\+\w+)*", re.ASCII)


class Picture(NamedTuple):
    """A page in grey: one byte a dot, in rows of `stride` bytes from the top."""

    dots: bytes
    width: int
    height: int
    stride: int
    dots_per_inch: int


class Ocr:
    """Reads pictures in the languages given as Tesseract names them, `deu+eng`; for one thread at a time."""

    def __init__(self, languages: str, most_pages: int) -> None:
        """`most_pages` is how many of one document are read at most. See `fault` for what may be missing."""
        # Its threads gain little on one page, and a confined process may start none.
        os.environ["OMP_THREAD_LIMIT"] = "1"
        from tesserocr import PyTessBaseAPI

        self.most_pages: Final = most_pages
        self._tesseract: Any = PyTessBaseAPI(path=f"{_folder(languages)}{os.sep}", lang=languages)

    def words(self, picture: Picture) -> str:
        """The lines of a page; blank where none can be told, or not in time."""
        dots, width, height, stride, dots_per_inch = picture
        try:
            self._tesseract.SetImageBytes(dots, width, height, 1, stride)
            self._tesseract.SetSourceResolution(dots_per_inch)
            if not self._tesseract.Recognize(_TIMEOUT_MS):
                return ""
            sure = self._tesseract.MeanTextConf() >= _LEAST_CONFIDENCE
            return str(self._tesseract.GetUTF8Text()).strip() if sure else ""
        except RuntimeError:
            return ""
        finally:
            self._tesseract.Clear()


def scale_for(width: float, height: float) -> float:
    """Dots for each point (1/72 inch) of a page of that size: as many as are wanted, or may be held."""
    wanted = DOTS_PER_INCH / 72
    return min(wanted, math.sqrt(_MOST_DOTS / (width * height)), _LONGEST_SIDE / max(width, height))


def fault(languages: str) -> str | None:
    """What is missing to read pictures in these languages, in words; `None`: nothing, or none are asked."""
    if not languages:
        return None
    if not _LANGUAGES.fullmatch(languages):
        return "it names languages as Tesseract does, such as eng or deu+eng"
    if importlib.util.find_spec("tesserocr") is None:
        return "it needs the package tesserocr, which the extra `ocr` brings"
    if _folder(languages) is None:
        return "the language data of Tesseract is not installed for all of these languages"
    return None


def _folder(languages: str) -> Path | None:
    """The folder that has the data of all the languages."""
    wanted = [f"{language}.traineddata" for language in languages.split("+")]
    folders = (Path(folder) for folder in (os.environ.get("TESSDATA_PREFIX"), *_FOLDERS) if folder)
    return next((one for one in folders if all((one / name).is_file() for name in wanted)), None)
