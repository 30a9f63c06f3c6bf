"""Checks of texts before supervised training on them, for the stages `distil` and `sft`."""

import itertools
from collections.abc import Sequence

from artifacts.errors import BadInputError
from stages.grpo.groups import Group
from stages.models.tokenizers.chat import ChatTokenizer


def tokens_to_learn(tokenizer: ChatTokenizer, text: str, sampled: Sequence[int] | None) -> Sequence[int]:
    """Returns the tokens of a text with an end token, as a student learns them.

    Args:
        tokenizer: The student's.
        text: The text.
        sampled: The tokens of the text that a teacher with the same tokenizer sampled; they are returned if they end
            with an end token, because the text may have other tokens too. None: the text is tokenized.
    """
    if sampled and sampled[-1] in tokenizer.eos_ids:
        return sampled
    return tokenizer.answer_ids(text)


def check_fits(groups: Sequence[Group], row_tokens: int, section: str, texts: str, remedy: str) -> None:
    """Checks that every text fits into a row after its prompt; a text that is cut teaches neither answers nor an end.

    Args:
        groups: Prompts, each with one text.
        row_tokens: Token budget of a row.
        section: Section of the recipe with the setting `row_tokens`.
        texts: Name of the texts.
        remedy: What the user can do about a text that is too long.

    Raises:
        BadInputError: A text is too long.
    """
    longest = max(group.size_tokens for group in groups)
    if longest > row_tokens:
        too_long = sum(group.size_tokens > row_tokens for group in groups)
        longest_text = max(sum(group.branches[0].own) for group in groups)
        raise BadInputError(
            f"{section}.row_tokens",
            f"{row_tokens}, but {too_long} of {len(groups)} prompts with their {texts} are longer",
            f"at least {longest}",
            f"{remedy}; a model that writes such texts needs max_tokens of {longest_text}",
        )


def check_can_be_sampled(groups: Sequence[Group], max_tokens: int, texts: str) -> None:
    """Checks that a model can write at least half of the texts that it learns before it is cut.

    Args:
        groups: Prompts, each with one text.
        max_tokens: Largest number of tokens of a completion.
        texts: Name of the texts.

    Raises:
        BadInputError: More than half of the texts are longer.
    """
    lengths = [sum(group.branches[0].own) for group in groups]
    too_long = sum(length > max_tokens for length in lengths)
    if 2 * too_long > len(lengths):
        raise BadInputError(
            "sample.sampling.max_tokens",
            f"{max_tokens}, but {too_long} of {len(lengths)} {texts} that the warm start teaches are longer",
            f"at least {max(lengths)}, the length of the longest",
            "raise it, or choose another warm_start.text or warm_start.style",
        )


def check_round_trip(tokenizer: ChatTokenizer, tokens: Sequence[int], text: str, remedy: str) -> None:
    """Checks that the tokens of a text decode to the same text, so that a model can write it.

    Raises:
        BadInputError: They decode to another text.
    """
    decoded = tokenizer.decode(list(tokens))
    if decoded != text:
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(decoded, text, strict=False)))
        start = max(0, same - 20)
        raise BadInputError(
            "the model's tokenizer",
            f"it decodes the tokens to {decoded[start : start + 60]!r} instead of {text[start : start + 60]!r}",
            "a tokenizer that decodes every taught text exactly",
            remedy,
        )
