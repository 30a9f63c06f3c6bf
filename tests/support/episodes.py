"""The game and the recipe of docs/episodes.md, and environments with steps that go wrong."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/episodes.md"


def game() -> str:
    """The Python file of the page."""
    return _blocks("python")[0]


def recipe() -> str:
    """Its recipe."""
    return _blocks("toml")[0]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


WILD = """
import random, time

class Count:
    def reset(self, seed):
        self.left, self.reward = 3, 0.0
        return f"Count down from 3, {seed % 100}"
    def step(self, completion):
        self.left -= 1
        self.reward = 0.25 * (3 - self.left)
        return f"{completion} heard, {self.left} left", self.left == 0

class Gym(Count):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed), {"seed": seed}
    def step(self, action):
        observation, done = super().step(action)
        return observation, 0.25, done, False, {}

class OnlyOnSuccess(Count):
    def reset(self, seed):
        return "What?"
    def step(self, completion):
        if completion == "right":
            self.reward = 1.0
        return "", True

class Default(OnlyOnSuccess):
    def __init__(self):
        self.reward = 0.25

class Random(Count):
    def step(self, completion): return f"{random.SystemRandom().random()}", False

class Prompts(Count):
    def reset(self, seed): return f"{random.SystemRandom().random()}"

class NoReward:
    def reset(self, seed): return "a"
    def step(self, completion): return "b", True

class Rich(Count):
    def step(self, completion):
        self.reward = 7
        return "b", True

class Single(Count):
    def step(self, completion): return "b"

class Raises(Count):
    def step(self, completion): raise KeyError(completion)

class Loops(Count):
    def step(self, completion):
        while True: pass

class NoStep:
    def reset(self, seed): return "a"

class Seedless(Count):
    def reset(self): return "a"

class NoPrompt(Count):
    def reset(self, seed): return None
"""
"""The source of a file with such environments."""
