"""Which of several encodings made some bytes: by the scripts and letters that each would give."""

import re
from collections import Counter
from typing import Final

from charset_normalizer import from_bytes

# Encodings in use before UTF-8; where the evidence is even, the earlier one wins.
_LEGACY: Final = (
    "cp1252", "cp1250", "cp932", "euc_jp", "cp949", "gb18030", "big5", "cp1251", "koi8_r", "cp866", "cp1253",
    "cp1255", "cp1256", "cp1254",
)  # fmt: skip

# What a language written in Latin letters adds to those of ASCII, and the encoding it was written in.
_ALPHABETS: Final = (
    ("cp1252", "äöüß"),  # German
    ("cp1252", "àâæçéèêëîïôœùûüÿ"),  # French
    ("cp1252", "áéíóúüñ¿¡ºª"),  # Spanish
    ("cp1252", "ãõáâàçéêíóôúü"),  # Portuguese
    ("cp1252", "àèéìíîòóùú"),  # Italian
    ("cp1252", "åäöéæøü"),  # Swedish, Finnish, Danish, Norwegian
    ("cp1252", "ðþáéíóúýæö"),  # Icelandic
    ("cp1252", "éëïóöüáèàç·íò"),  # Dutch, Catalan
    ("cp1250", "ąćęłńóśźż"),  # Polish
    ("cp1250", "áčďéěíňóřšťúůýž"),  # Czech
    ("cp1250", "áäčďéíĺľňóôŕšťúýž"),  # Slovak
    ("cp1250", "áéíóöőúüű"),  # Hungarian
    ("cp1250", "čćđšž"),  # Croatian, Slovene
    ("cp1250", "ăâîşţ"),  # Romanian
    ("cp1254", "çğıiöşüâîû"),  # Turkish
    ("cp1257", "ąčęėįšųūžāēģīķļņõäöü"),  # Lithuanian, Latvian, Estonian
)
_SIGNS: Final = frozenset("„“”‚‘’«»‹›–—…€£§°©®™•·×\u00a0´´±²³µ¶½¼¾")
_HIGH: Final = re.compile(rb"[\x80-\xff]+")
_LONGEST_LATIN_RUN: Final = 1.5  # letters beyond ASCII in a row, on average; in other scripts whole words

# Scripts by their ranges; Japanese and Chinese are one, and Latin goes with any.
_SCRIPTS: Final = (
    (0x0370, 0x03FF), (0x0400, 0x052F), (0x0530, 0x058F), (0x0590, 0x05FF), (0x0600, 0x06FF),
    (0x0900, 0x0DFF), (0x0E00, 0x0E7F), (0x10A0, 0x10FF), (0x3000, 0x9FFF), (0xAC00, 0xD7A3),
)  # fmt: skip
_FEWEST_BYTES: Final = 16
_LEAST_SHARE: Final = 0.97
_LATIN: Final = "latin"
_OTHER: Final = "other"


def legacy_encoding(sample: bytes) -> str:
    """The most likely encoding of text that is no Unicode; `sample` is lines with bytes beyond ASCII."""
    runs = [len(run) for run in _HIGH.findall(sample)]
    if runs and sum(runs) < _LONGEST_LATIN_RUN * len(runs) and (latin := _latin_encoding(sample)):
        return latin
    matches = {
        match.encoding: round(match.coherence - 2 * match.chaos, 1)
        for match in from_bytes(sample, cp_isolation=[*_LEGACY], preemptive_behaviour=False)
    }
    return max(_LEGACY, key=lambda encoding: matches.get(encoding, -0.5 if encoding == "cp1252" else -9.0))


def utf16_without_mark(sample: bytes) -> str | None:
    """The byte order of text in UTF-16 whose letters are not Latin, which no zeros give away."""
    units = sample[: len(sample) // 2 * 2]
    shares = {
        encoding: _share_of_one_script(units.decode(encoding, "replace"))
        for encoding in ("utf-16-le", "utf-16-be")
    }
    best = max(shares, key=lambda encoding: shares[encoding])
    return best if len(units) >= _FEWEST_BYTES and shares[best] >= _LEAST_SHARE else None


def _share_of_one_script(text: str) -> float:
    """How much of a text is its main script, Latin, digits and blanks; 0 where Latin is the main one."""
    scripts = Counter(map(_script, text))
    latin = scripts.pop(_LATIN, 0)
    scripts.pop(_OTHER, 0)
    main = max(scripts.values(), default=0)
    return (main + latin) / len(text) if main * 4 > len(text) else 0.0


def _script(character: str) -> object:
    code = ord(character)
    if code < 0x250:
        return _LATIN if character.isprintable() or character in "\t\r\n\f" else _OTHER
    if 0x2010 <= code <= 0x206F or 0xFF00 <= code <= 0xFFEF or code == 0xFEFF:
        return _LATIN  # signs that all scripts use
    if not character.isprintable():
        return _OTHER
    return next((start for start, end in _SCRIPTS if start <= code <= end), _OTHER)


def _latin_encoding(sample: bytes) -> str | None:
    """By the alphabet that takes in most of the letters beyond ASCII; `None` where none takes in half."""
    best, most = None, 0.5
    for encoding, alphabet in _ALPHABETS:
        letters = [letter for letter in sample.decode(encoding, "replace").lower() if letter > "\x7f"]
        known = sum(letter in alphabet or letter in _SIGNS for letter in letters)
        if letters and known / len(letters) > most:
            best, most = encoding, known / len(letters)
    return best
