"""Greetings, thanks and goodbyes: messages that no file has to answer."""

import re

MOST_CHARS = 80

# English, German, French, Spanish.
_PHRASES = (
    "hello, hi, hey, good morning, good afternoon, good evening, good night, how are you, how do you do, "
    "how is it going, how's it going, nice to meet you, who are you, what can you do, thanks, thank you, "
    "bye, goodbye, see you, ok, okay, doing, today, there, all, everyone, a lot, very much, so much, "
    "again, soon, later, tomorrow, hallo, guten morgen, guten tag, guten abend, gute nacht, moin, wie "
    "geht es, wie geht's, dir, ihnen, euch, danke, dankeschön, vielen dank, sehr, schön, tschüss, auf "
    "wiedersehen, bis bald, bis morgen, wer bist du, wer sind sie, bonjour, bonsoir, salut, comment ça "
    "va, ça va, merci, beaucoup, au revoir, hola, buenos días, buenas tardes, buenas noches, qué tal, "
    "cómo estás, muchas gracias, gracias, adiós"
)
_SMALL_TALK = re.compile(
    rf"\W*(?:\b(?:{'|'.join(map(re.escape, _PHRASES.split(', ')))})\b\W*)+", re.IGNORECASE
)


def is_small_talk(text: str) -> bool:
    """Whether the message is that and nothing else, in one of a few languages."""
    text = " ".join(text.replace("’", "'").split())
    return len(text) <= MOST_CHARS and _SMALL_TALK.fullmatch(text) is not None
