"""What is known of SmolLM2's own tokenizer.json."""

from stages.models.tokenizers.chat import ChatTokenizer

TEXT, TOKENS = "On\n\n1  2", ["On", "\n\n", "1", "  ", "2"]


def divides_digits_off(chat: ChatTokenizer) -> bool:
    """Returns whether a prompt with TEXT has TOKENS: digits are divided off before words are."""
    spelled = [chat.decode([token]) for token in chat.prompt_token_ids(TEXT)]
    first = spelled.index("On")
    return spelled[first : first + len(TOKENS)] == TOKENS
