"""Questions in the layouts of other trainers, and the recipes of docs/data.md that read them."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl

LAYOUTS = ("verl", "trl", "open_r1")
_PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
_SYSTEM = {"role": "system", "content": "You are good at sums."}
_TINY = """
title = "Questions of another trainer"
iterations = 1
model = { source = "scratch", hidden = 32, heads = 1, kv_heads = 1, layers = 1, intermediate = 64 }
sample = { puzzles_per_iteration = 8, sampling = { samples_per_prompt = 2, max_tokens = 8 } }
evaluate = { puzzles = 4, sampled = { samples_per_prompt = 1, max_tokens = 8 } }
final = { puzzles = 4, sampled = { samples_per_prompt = 1, max_tokens = 8 } }
[puzzles]
train = 16
val = 8
test = 8
"""


def _sums() -> list[tuple[int, int]]:
    return [(first, second) for first in range(16) for second in range(16)]


def write_layout(layout: str, folder: Path) -> None:
    """Writes 256 sums in the layout of a trainer, as the file that its recipe names."""
    rows: list[dict[str, Any]] = []
    for number, (first, second) in enumerate(_sums()):
        question, answer = f"What is {first} + {second}?", first + second
        boxed = f"{question} Put the answer into \\boxed{{}}."
        match layout:
            case "verl":
                rows.append(
                    {
                        "data_source": "sums",
                        "prompt": [_SYSTEM, {"role": "user", "content": question}],
                        "ability": "math",
                        "reward_model": {"style": "rule", "ground_truth": float(answer)},
                        "extra_info": {"split": "train", "index": number, "question": question},
                    }
                )
            case "trl":
                prompt = [_SYSTEM, {"role": "user", "content": f"{question} Reply with the number only."}]
                rows.append({"prompt": prompt, "ground_truth": f"{answer}"})
            case _:
                solution = f"Counting {second} on from {first} gives $\\boxed{{{answer}}}$."
                generations = [f"<think>Hm.</think>{solution}"]
                rows.append({"problem": boxed, "solution": solution, "generations": generations, "uuid": f"{number}"})
    if layout == "trl":
        (folder / "trl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pl.DataFrame(rows).write_parquet(folder / f"{layout}.parquet")


def recipe_of(layout: str) -> str:
    """Returns the recipe of a tiny model on the file of `write_layout`, with the lines of the page."""
    block = next(text for text in blocks("toml", "Layouts of other trainers") if f'path = "{layout}.' in text)
    return _TINY + block


def blocks(kind: str, section: str) -> list[str]:
    """Returns the code blocks of a section of the page."""
    text = _PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S)
