"""Environments as users write them: the one of the README, and one that does what a completion asks for."""

from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def readme_task() -> str:
    """The Python file of the README."""
    _, _, section = README.read_text().partition("## Your own task")
    return section.partition("```python\n")[2].partition("```")[0]


def readme_recipe() -> str:
    """The recipe of the README, for that file."""
    _, _, section = README.read_text().partition("## Your own task")
    return section.partition("class Countdown")[2].partition("```toml\n")[2].partition("```")[0]


WILD = """
import os, random, sys
levels = ["easy", "hard"]

class Wild:
    levels = levels
    def items(self, count, seed, level="easy"):
        for number in range(count):
            yield {"prompt": f"{level} {seed} {number}", "answer": number}

    def grade(self, completion, item):
        word, _, value = completion.partition(" ")
        match word:
            case "score": return float(value)
            case "is": return float(value == str(item["answer"]))
            case "value": return eval(value)
            case "raise": raise RuntimeError(value)
            case "once":
                try: os.mkdir(value)
                except FileExistsError: return 1.0
                raise RuntimeError("once")
            case "exit": os._exit(int(value))
            case "loop":
                while True: pass
            case "memory": return len(bytearray(int(value)))
            case "random": return random.SystemRandom().random()
        return 0.0

class Sets(Wild):
    def items(self, count, seed):
        return [{"prompt": f"{i} {word}"} for i, word in enumerate({f"w{number}" for number in range(count)})]

class Few(Wild):
    def items(self, count, seed):
        return [{"prompt": f"p{number % 5}"} for number in range(count)]

class Texts(Wild):
    def items(self, count, seed): return ["a", "b"]

class NoPrompt(Wild):
    def items(self, count, seed): return [{"question": "a"}]

class NotJson(Wild):
    def items(self, count, seed): return [{"prompt": "a", "x": float("nan")}]

class Large(Wild):
    def items(self, count, seed): return [{"prompt": "a", "x": "y" * 1_000_001}]

class Tuples(Wild):
    def items(self, count, seed): return [{"prompt": "a", "pair": (1, 2)}]

class Numbered(Wild):
    def items(self, count, seed): return [{"prompt": "a", "by_id": {1: "x"}}]

class Zero(Wild):
    def items(self, count, seed): return [{"prompt": "a", 0: "x"}]

class Raises(Wild):
    def items(self, count, seed): raise KeyError("gone")

class Unsteady(Wild):
    def items(self, count, seed):
        for number in range(count):
            drawn = random.random() if number == 2 else 0
            yield {"prompt": f"p{number}", "answer": number, "drawn": drawn}

class Growing(Wild):
    def items(self, count, seed):
        return [{"prompt": f"p{number}"} for number in range(count + os.getpid() % 1000)]

class Swapped(Wild):
    def items(self, seed, count):
        return [{"prompt": f"p{seed + number}"} for number in range(count)]
    def grade(self, item, completion): return float(completion == item["prompt"])

class Renamed(Wild):
    def items(self, n, seed): return [{"prompt": "a"}] * n

class Misgraded(Wild):
    def grade(self, text, item): return 1.0

class Half:
    def grade(self, completion, item): return 1.0

many = Wild()
"""
"""The source of a file with environments."""
