"""The share of a text in one script, which measures DeepSeek-R1's language consistency without a dictionary."""

import re
import unicodedata
from functools import lru_cache
from typing import Literal

Script = Literal["latin", "greek", "cyrillic", "hebrew", "arabic", "devanagari", "hangul", "han"]

_NAMES: dict[str, Script] = {
    "LATIN": "latin", "GREEK": "greek", "CYRILLIC": "cyrillic", "HEBREW": "hebrew", "ARABIC": "arabic",
    "DEVANAGARI": "devanagari", "HANGUL": "hangul", "CJK": "han",
}  # fmt: skip
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_HAN}]|[^\W\d_{_HAN}]+")


def share_in_script(text: str, script: Script) -> float:
    """Returns the share of words that are written in a script; 0 for a text without words.

    DeepSeek-R1 (arXiv 2501.12948, section 2.3.2) adds the proportion of words in the target language to the reward. The
    script distinguishes only languages that are written differently: English from Chinese, but not from French. A word
    is a run of letters; it is in the script if all its letters are. Each Han character is a word, because Chinese has
    no spaces. Digits, punctuation and accents are ignored.
    """
    return _share(text, script) or 0.0


def share_outside(text: str, script: Script) -> float:
    """Returns the share of words that are not written in a script; 0 for a text without words."""
    share = _share(text, script)
    return 0.0 if share is None else 1.0 - share


def _share(text: str, script: Script) -> float | None:
    if text.isascii():
        return float(script == "latin") if _WORD.search(text) else None
    decomposed = unicodedata.normalize("NFKD", text)
    without_marks = "".join(letter for letter in decomposed if not unicodedata.category(letter).startswith("M"))
    words = _WORD.findall(without_marks)
    return sum(all(_script_of(letter) == script for letter in word) for word in words) / len(words) if words else None


@lru_cache(maxsize=1 << 14)
def _script_of(letter: str) -> Script | None:
    return _NAMES.get(unicodedata.name(letter, "").split(" ")[0])
