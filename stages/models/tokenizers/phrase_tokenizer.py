"""Builds a tokenizer of whole phrases from the texts that a small model will see.

A model of a few hundred thousand parameters is too small to learn spelling. Here ``" Miss Peach"`` is one token,
and so is every text block that all puzzles share, which makes prompts several times shorter. Other text falls back to
bytes, so every text can be encoded and decodes to itself.

Texts that only give answers are mostly lines that many puzzles share. Running text, such as a derivation, repeats its
words around names and numbers instead, so it needs phrases of another kind: see `learn_phrases`.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

END_OF_TURN = "<|end|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
SPECIAL_TOKENS = (END_OF_TURN, USER, ASSISTANT)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_LINE = re.compile(r"\n*[^\n]+|\n+")
_PIECE = re.compile(r"\n+|[ \t]?\w+|[ \t]?[^\w\s]+|\s")
_BYTES = 256
_SHARED_LINE_PERCENT = 10
"""If there are no names, a line that occurs in at least this share of the texts is a phrase."""
_RAREST_PAIR = 3
_COMMON_LINE_PERCENT = 45
"""The same share if there are names. Half of the texts are prompts, so such a line is in nine prompts of ten."""
_RAREST_JOIN_PERCENT = 1
"""Smallest count of a pair that is joined, in percent of the texts."""


def _join_neighbours(sequences: list[list[str]], weights: list[int], *, both_ways: bool) -> list[list[str]]:
    """Joins pieces that always occur together, until there are no such pieces.

    A pair is joined if it occurs at least `_RAREST_PAIR` times and its first piece is never followed by another piece,
    or its second piece is never preceded by another.

    Args:
        sequences: Pieces of each text.
        weights: Number of times that each sequence counts.
        both_ways: Whether both conditions must hold instead of one.
    """
    while True:
        followers: dict[str, set[str]] = {}
        leaders: dict[str, set[str]] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for sequence, weight in zip(sequences, weights, strict=True):
            for pair in pairwise(sequence):
                counts[pair] += weight
            bounded = ["", *sequence, ""]
            for first, second in pairwise(bounded):
                followers.setdefault(first, set()).add(second)
                leaders.setdefault(second, set()).add(first)
        joined: set[tuple[str, str]] = set()
        for (first, second), count in counts.items():
            sides = (len(followers[first]) == 1, len(leaders[second]) == 1)
            if count >= _RAREST_PAIR and (all(sides) if both_ways else any(sides)):
                joined.add((first, second))
        if not joined:
            return sequences
        sequences = [_merge(sequence, joined) for sequence in sequences]


def _merge(sequence: list[str], joined: set[tuple[str, str]]) -> list[str]:
    merged: list[str] = []
    position = 0
    while position < len(sequence):
        if position + 1 < len(sequence) and (sequence[position], sequence[position + 1]) in joined:
            merged.append(sequence[position] + sequence[position + 1])
            position += 2
        else:
            merged.append(sequence[position])
            position += 1
    return merged


def learn_phrases(texts: Iterable[str], names: Collection[str] = (), *, whole_lines: bool = False) -> list[str]:
    """Returns the phrases of some texts, sorted.

    Without names, a line that occurs in at least one text of ten is one phrase; such lines that always follow each
    other are joined. Other lines are split into words, and two words are joined if one never occurs without the other
    (``Mr. Boddy``).

    With names, only lines that nearly all prompts share are phrases. In other lines every name and every number is a
    phrase of its own, and the words between two of them are joined pair by pair, the most frequent pair first (byte
    pair encoding of Gage 1994 and Sennrich et al. 2016, over words). So ``" was in the"`` is one phrase, and the rooms
    after it are not part of it.

    Args:
        texts: Texts that the model will read and write, prompts and written texts in equal numbers, in any order.
        names: Names that are phrases of their own, such as those of people; empty for prompts with answers only.
        whole_lines: Whether every line is a phrase, and `names` serve only to find the lines that all prompts share.
    """
    documents: list[list[str]] = [_LINE.findall(text) for text in sorted(texts)]
    spread = Counter(line for document in documents for line in set(document))
    percent = _COMMON_LINE_PERCENT if names else _SHARED_LINE_PERCENT
    shared = {line for line, count in spread.items() if count * 100 >= percent * len(documents)}
    blocks, after = _shared_blocks(documents, shared)
    other_lines = {line: spread[line] for line in sorted(spread) if line not in shared}
    joined_blocks = _join_neighbours(blocks, [1] * len(blocks), both_ways=True)
    if whole_lines:
        shared_phrases = {phrase for sequence in joined_blocks for phrase in sequence}
        with_newline = {f"{phrase}\n" for phrase in shared_phrases - _before_other_lines(joined_blocks, after)}
        return sorted(shared_phrases | with_newline | _own_lines(documents, shared))
    if names:
        rarest = max(_RAREST_PAIR, len(documents) * _RAREST_JOIN_PERCENT // 100)
        joined_words = _join_between_names(other_lines, names, rarest)
    else:
        words = [_PIECE.findall(line) for line in other_lines]
        joined_words = _join_neighbours(words, list(other_lines.values()), both_ways=False)
    return sorted({phrase for sequence in (*joined_blocks, *joined_words) for phrase in sequence})


def _shared_blocks(documents: Iterable[Sequence[str]], shared: Collection[str]) -> tuple[list[list[str]], list[str]]:
    """Returns the stretches of shared lines, and the line after each; an empty one at the end of a text."""
    blocks: list[list[str]] = []
    after: list[str] = []
    for document in documents:
        parts = [list(lines) for _, lines in itertools.groupby(document, shared.__contains__)]
        for part, following in zip(parts, [*parts, [""]][1:], strict=True):
            if part[0] in shared:
                blocks.append(part)
                after.append(following[0])
    return blocks, after


def _before_other_lines(blocks: Sequence[Sequence[str]], after: Sequence[str]) -> set[str]:
    """Returns the phrases that may precede a shared phrase, or a line without a blank line before it.

    They do not take the newline of a blank line (see `_own_lines`): what follows would then be spelled in bytes.

    Args:
        blocks: Phrases of each stretch of shared lines.
        after: The line after each; an empty one at the end of a text.
    """
    inside = {phrase for block in blocks for phrase in block[:-1]}
    return inside | {
        block[-1] for block, line in zip(blocks, after, strict=True) if line and not line.startswith("\n\n")
    }


def _own_lines(documents: Iterable[Sequence[str]], shared: Collection[str]) -> set[str]:
    """Returns the lines that are not shared.

    A newline of the blank line after a shared line belongs to that line, so that the first item of a list is the same
    phrase as it is further down.
    """
    pairs = {pair for document in documents for pair in pairwise(["", *document])}
    return {line.replace("\n\n", "\n", 1) if before in shared else line for before, line in pairs if line not in shared}


def _join_between_names(lines: Mapping[str, int], names: Collection[str], rarest: int) -> list[list[str]]:
    """Returns the phrases of lines, each a list; names and numbers are never joined with their neighbours.

    Args:
        lines: Lines, and how often each counts.
        names: Names.
        rarest: Smallest count of a pair that is joined.
    """
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    name = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    piece = re.compile(rf"[ \t]?{name}|^\n+(?={name})|^\n*\w+[^\w\s]*|^\n*[^\w\s]+|{_PIECE.pattern}")
    alone = re.compile(rf"[ \t]?{name}|.*\d.*", re.DOTALL)
    runs: Counter[tuple[str, ...]] = Counter()
    for line, count in lines.items():
        for is_alone, run in itertools.groupby(piece.findall(line), lambda part: alone.fullmatch(part) is not None):
            parts = tuple(run)
            for phrase in [(part,) for part in parts] if is_alone else [parts]:
                runs[phrase] += count
    return _joined_most_frequent_first([list(run) for run in sorted(runs)], [runs[run] for run in sorted(runs)], rarest)


def _joined_most_frequent_first(sequences: list[list[str]], weights: list[int], rarest: int) -> list[list[str]]:
    """Joins the most frequent pair of neighbours, again and again, until it occurs fewer than `rarest` times."""
    while True:
        counts: Counter[tuple[str, str]] = Counter()
        for sequence, weight in zip(sequences, weights, strict=True):
            for pair in pairwise(sequence):
                counts[pair] += weight
        if not counts:
            return sequences
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        if counts[best] < rarest:
            return sequences
        sequences = [_merge(sequence, {best}) for sequence in sequences]


def build_tokenizer(
    texts: Sequence[str], max_vocabulary: int, names: Collection[str] = (), *, whole_lines: bool = False
) -> Tokenizer:
    """Builds the phrase tokenizer: 256 bytes, then the special tokens, then the phrases.

    Bytes are a byte-level BPE without merges, and phrases are added tokens. transformers uses its Qwen2Tokenizer for
    every Qwen2 model, whatever class the file names, and this is the only layout that it loads unchanged.

    Args:
        texts: Prompts and answers; at least one.
        max_vocabulary: Largest number of tokens.
        names: See `learn_phrases`.
        whole_lines: See `learn_phrases`.

    Returns:
        A tokenizer for which ``decode(encode(text)) == text``.

    Raises:
        ValueError: The texts have more phrases than fit.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: token_id for token_id, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    phrases = [
        phrase
        for phrase in learn_phrases(texts, names, whole_lines=whole_lines)
        if len(phrase.encode()) > 1 and phrase not in SPECIAL_TOKENS and _survives_decoding(phrase, alphabet)
    ]
    size = _BYTES + len(SPECIAL_TOKENS) + len(phrases)
    if size > max_vocabulary:
        raise ValueError(f"{size} tokens are needed and {max_vocabulary} allowed")
    tokenizer.add_tokens([AddedToken(phrase, special=False, normalized=False) for phrase in phrases])
    return tokenizer


def _survives_decoding(phrase: str, alphabet: list[str]) -> bool:
    """Returns whether a phrase decodes to itself.

    The byte-level decoder reads an added token that consists only of letters of its alphabet as bytes, and only ASCII
    survives that.
    """
    return phrase.isascii() or any(letter not in alphabet for letter in phrase)
