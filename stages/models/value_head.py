"""Names of the head of a critic, which takes the place of the output head."""

from typing import Literal

ValueHead = Literal["linear", "bounded"]
"""V = w h, or a sigmoid of it between the bounds of the reward; h is the hidden state, w begins at 0."""
VALUE_HEAD = "value_head"
"""Key of config.json that only Deerstalker's critics have."""
VALUE_HEAD_WEIGHT = "value_head.weight"
"""Name of w in checkpoints and in the trainer."""
