"""Text in many languages and in the encodings they were written in, as files without a mark hold it."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sherlock.rag.domain.errors import IngestError
from sherlock.rag.parsers import parse, text
from sherlock.rag.parsers.charsets import utf16_without_mark

TEXTS = {
    "German": "Die Pumpe läuft seit drei Jahren ohne Störung. Für größere Mengen öffnet man das Ventil.",
    "French": "La pompe s’arrête dès que la pression dépasse la limite fixée à l’été. Où est le réservoir ?",
    "Spanish": "¿Cuándo se cambió la válvula? El año pasado, después de la inspección, según el técnico.",
    "Swedish": "Pumpen står på taket och går hela natten. Öppna ventilen långsamt när trycket är för högt.",
    "Polish": "Pompa stoi na dachu i pracuje całą noc. Gdy ciśnienie jest wysokie, należy otworzyć zawór.",
    "Czech": "Čerpadlo stojí na střeše a běží celou noc. Když je tlak příliš vysoký, otevřete pomalu ventil.",
    "Hungarian": "A szivattyú a tetőn áll és egész éjjel működik. Ha nagy a nyomás, nyissa ki a szelepet.",
    "Turkish": "Pompa çatıda durur ve bütün gece çalışır. Basınç çok yüksek olduğunda vanayı yavaşça açın.",
    "Lithuanian": "Siurblys stovi ant stogo ir veikia visą naktį. Kai slėgis aukštas, atsukite vožtuvą.",
    "Russian": "Насос стоит на крыше и работает всю ночь. Когда давление слишком высокое, откройте клапан.",
    "Ukrainian": "Насос стоїть на даху й працює всю ніч. Коли тиск зависокий, повільно відкрийте клапан.",
    "Greek": "Η αντλία βρίσκεται στη στέγη και λειτουργεί όλη τη νύχτα. Ανοίξτε αργά τη βαλβίδα.",
    "Hebrew": "המשאבה נמצאת על הגג ופועלת כל הלילה. כאשר הלחץ גבוה מדי פותחים לאט את השסתום.",
    "Arabic": "توجد المضخة على السطح وتعمل طوال الليل. عندما يكون الضغط مرتفعا افتح الصمام ببطء.",
    "Japanese": "ポンプは屋上にあり、一晩中動いています。圧力が高すぎるときは、弁を開けてください。",
    "Chinese": "水泵安装在屋顶上，整夜运转。压力过高时，请慢慢打开阀门。",
    "Taiwanese": "水泵安裝在屋頂上，整夜運轉。壓力過高時，請慢慢打開閥門。",
    "Korean": "펌프는 옥상에 있고 밤새 작동합니다. 압력이 너무 높으면 밸브를 천천히 여십시오.",
}
WESTERN, CENTRAL, CYRILLIC = ("cp1252",), ("cp1250",), ("cp1251", "koi8-r", "cp866")
ENCODINGS = {
    "German": WESTERN, "French": WESTERN, "Spanish": WESTERN, "Swedish": WESTERN,
    "Polish": CENTRAL, "Czech": CENTRAL, "Hungarian": CENTRAL, "Turkish": ("cp1254",),
    "Lithuanian": ("cp1257",),
    "Russian": CYRILLIC, "Ukrainian": ("cp1251",), "Greek": ("cp1253",),
    "Hebrew": ("cp1255",), "Arabic": ("cp1256",),
    "Japanese": ("cp932", "euc_jp", "iso2022_jp"), "Chinese": ("gb18030",), "Taiwanese": ("big5",),
    "Korean": ("cp949",),
}  # fmt: skip
UNICODE = ("utf-8", "utf-16-le", "utf-16-be")
CASES = [(name, encoding) for name, own in ENCODINGS.items() for encoding in (*own, *UNICODE)]
ASCII = "# A line of a log that says nothing: 200 OK\n" * 2_000


def long_text(name: str) -> str:
    """Some pages, each line another part of the sample."""
    words = TEXTS[name].split(". ")
    return "".join(f"{number}. {words[number % len(words)]}\n" for number in range(60)) + TEXTS[name] + "\n"


@pytest.mark.parametrize(("name", "encoding"), CASES)
def test_a_text_of_some_size(name: str, encoding: str):
    assert text.decode(long_text(name).encode(encoding)) == long_text(name)


@pytest.mark.parametrize(("name", "encoding"), [case for case in CASES if case[1] not in UNICODE[1:]])
def test_what_tells_may_stand_far_behind(tmp_path: Path, name: str, encoding: str):
    source = ASCII + long_text(name)
    path = tmp_path / "stored"
    path.write_bytes(source.encode(encoding))
    first, *rest = parse(path, "a.txt")
    assert first.encoding is not None
    assert "".join(section.text for section in rest) == source


def test_all_of_the_text_is_looked_at():
    """A quotation at the beginning, longer than what is looked at in one piece, does not decide."""
    quoted = "“The café’s owner said so,” it went on.\n" * 300
    russian = long_text("Russian") * 30
    assert text.decode((quoted.replace("é", "e") + russian).encode("cp1251")).endswith(russian)


def binaries() -> Iterator[bytes]:
    for seed in range(300):
        rng = random.Random(seed)
        size = rng.choice((32, 64, 512, 4096))
        yield rng.randbytes(size)
        yield b"".join(rng.randrange(-2000, 2000).to_bytes(2, "little", signed=True) for _ in range(size))
        yield b"".join(rng.randrange(100_000).to_bytes(4, "little") for _ in range(size // 4))


def test_what_is_no_text_is_not_taken_for_utf_16(tmp_path: Path):
    for content in binaries():
        assert utf16_without_mark(content) is None
    (tmp_path / "stored").write_bytes(random.Random(0).randbytes(4096))
    with pytest.raises(IngestError):
        [*parse(tmp_path / "stored", "a.txt")]
