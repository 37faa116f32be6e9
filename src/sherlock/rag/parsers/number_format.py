"""A cell's number as its format shows it (ECMA-376 part 1, section 18.8.31), in English notation.

Dates are written year first, for what a format with bare slashes shows depends on the reader's country, and
digits are not grouped, so that a number is found however its reader would group it.
"""

import re
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Final

# The formats that stand in no file, by id (section 18.8.30).
BUILT_IN: Final = {
    1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00",
    14: "yyyy-mm-dd", 15: "yyyy-mm-dd", 16: "yyyy-mm-dd", 17: "yyyy-mm-dd", 18: "h:mm", 19: "h:mm:ss",
    20: "h:mm", 21: "h:mm:ss", 22: "yyyy-mm-dd h:mm", 37: "#,##0;(#,##0)", 38: "#,##0;(#,##0)",
    39: "#,##0.00;(#,##0.00)", 40: "#,##0.00;(#,##0.00)", 45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0",
    48: "0.0E+0",
}  # fmt: skip

_QUOTED: Final = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!\$)(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
_CURRENCY: Final = re.compile(r"\[\$([^\]-]*)[^\]]*\]")
_DIGITS: Final = re.compile(r"[0#?][0#?.,]*(?:E[+-]?[0#?]+)?|\.[0#?]+")
_LONGEST: Final = 400  # characters of a format; no sound one is longer
_LARGEST: Final = 30  # decimal exponent; beyond, a number is shown as General shows it
_LARGEST_BINARY: Final = 307  # what a spreadsheet itself can hold
_LAST_DAY: Final = 2_958_466  # 1 January 10000


def as_shown(value: str, code: str, *, from_1904: bool = False) -> str:
    """`value` as it stands in the file under the format `code`; what is no number comes back as it is."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        return value
    if not number.is_finite() or abs(number.adjusted()) > _LARGEST_BINARY:
        return value
    if len(code) > _LONGEST or code in ("", "General", "@") or abs(number.adjusted()) > _LARGEST:
        return _general(number)
    plain = _QUOTED.sub("", _CURRENCY.sub("", code))
    if re.search("[ymdhs]", plain.partition(";")[0], re.IGNORECASE):
        return _date(number, plain.lower(), from_1904) or _general(number)
    sections = _sections(code)
    section, magnitude = sections[0], number
    if number < 0 and len(sections) > 1:
        section, magnitude = sections[1], -number
    elif number == 0 and len(sections) > 2:
        section = sections[2]
    return _number(magnitude, section) or _general(number)


def _general(number: Decimal) -> str:
    if number == 0:
        return "0"
    return format(Decimal(format(number, ".15g")).normalize(), "f") if -5 <= number.adjusted() < 21 else (
        format(float(number), ".15g")
    )  # fmt: skip


def _sections(code: str) -> list[str]:
    return [
        section.replace("\1", ";")
        for section in re.sub(r'"[^"]*"|\\;', lambda found: found[0].replace(";", "\1"), code).split(";")
    ]


def _number(number: Decimal, section: str) -> str:
    """Blank for what is no format of numbers, such as a fraction."""
    section = _CURRENCY.sub(r"\1", section)
    literals: list[str] = []

    def keep(found: re.Match[str]) -> str:
        literal = found[0]
        kept = literal[1:-1] if literal[0] == '"' else literal[1] if literal[0] == "\\" else ""
        literals.append(kept)
        return "\0"

    section = _QUOTED.sub(keep, section)
    digits = _DIGITS.search(section)
    if "/" in section or (digits is None and not literals):
        return ""
    shown = _digits(number, digits[0], section.count("%")) if digits else ""
    if digits:
        section = section[: digits.start()] + "\1" + _DIGITS.sub("", section[digits.end() :])
    for literal in literals:
        section = section.replace("\0", literal.replace("\1", ""), 1)
    section = section.replace("\1", shown)
    sign = "-" if shown.startswith("-") and not section.startswith("-") else ""
    return (sign + section.replace(shown, shown.lstrip("-"), 1) if sign else section).strip()


def _digits(number: Decimal, code: str, percents: int) -> str:
    number = number.scaleb(2 * percents)
    mantissa, exponent, _ = code.partition("E")
    decimals = mantissa.partition(".")[2]
    scale = len(mantissa) - len(mantissa.rstrip(","))
    number = number.scaleb(-3 * scale)
    places = len(re.sub("[^0#?]", "", decimals))
    if exponent:
        return format(number, f".{places}E")
    rounded = number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    shown = format(rounded, "f")
    optional = len(decimals) - len(decimals.rstrip("#?"))
    if places and optional:
        kept = places - optional
        cut = shown.rstrip("0")
        point = shown.index(".")
        shown = shown[: max(len(cut), point + 1 + kept)].rstrip(".")
    return shown


def _date(serial: Decimal, plain: str, from_1904: bool) -> str:
    """Blank where the serial number is no date."""
    if re.search(r"\[(h+|m+|s+)\]", plain):
        seconds = int((serial * 86_400).quantize(Decimal(1), ROUND_HALF_UP))
        sign = "-" if seconds < 0 else ""
        minutes, seconds = divmod(abs(seconds), 60)
        return f"{sign}{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    if not 0 <= serial < _LAST_DAY:
        return ""
    # 1900 counts a 29 February that never was (section 18.17.4.1).
    epoch = datetime(1904, 1, 1) if from_1904 else datetime(1899, 12, 31 if serial < 60 else 30)
    seconds = int((serial * 86_400).quantize(Decimal(1), ROUND_HALF_UP))
    try:
        moment = epoch + timedelta(seconds=seconds)
    except OverflowError:
        return ""
    time = f"{moment:%H:%M:%S}" if "s" in plain else f"{moment:%H:%M}"
    if not re.search("[yd]", plain) and "h" in plain:
        return time
    if not re.search("[ydm]", re.sub(r"h+:m+|m+:s+", "", plain)):
        return time
    day = f"{moment.year:04}-{moment:%m-%d}"
    return f"{day} {time}" if "h" in plain else day
