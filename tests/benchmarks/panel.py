"""Every generator of reasoning-gym: whether it works here, how fast it is, and how generous its scorer is.

python -m tests.benchmarks.panel [--items N] [--seconds S] [--json]

A generator works if its items are texts that survive storage as JSON and are the same in a process with another hash
seed, if every right answer gets a full score from the stored item, and if no nonsense does.
`deerstalker` must refuse the others, and no more than those. The scores of answers that are not right show what
`partial_credit` would pay for: a right answer inside a sentence, half of a right answer, and nonsense.
"""

import argparse
import json
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from stages.environments.reasoning_gym.generators import entry_at, is_scorable, level_count, score
from stages.environments.reasoning_gym.refused import REFUSED
from tests.support.bars import Bar, parser_of, progress, tell

NONSENSE = ("banana", "6+6+6+6", "no answer at all", "[[]]")
"""Answers that are wrong for every item whose right answer they do not contain."""
MEMORY_BYTES = 4 << 30
LIMIT_S = 120.0
"""Wall-clock seconds after which a generator counts as one that hangs."""


def first_line(error: BaseException) -> str:
    """The kind and the first line of an error."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:160]


def scored(task: str, answer: str, entry: str) -> float:
    """The score of an answer; one that the scorer may not see, or on which it fails, gets 0."""
    if not is_scorable(task, answer):
        return 0.0
    try:
        return score(task, None, {}, answer, entry)
    except Exception:
        return 0.0


def measure(task: str, items: int, seconds: float) -> dict[str, Any]:
    """Figures of one generator with its default settings; `fails` says why it does not work."""
    figures: dict[str, Any] = {"pass_rates": 0, "items": 0, "fails": ""}
    started = time.process_time()
    try:
        figures["pass_rates"] = level_count(task)
        drawn: list[dict[str, Any]] = []
        for number in range(items):
            index = int.from_bytes(sha256(f"{task}/{number}".encode()).digest()[:4], "big") >> 1
            drawn.append(entry_at(task, None, {}, index))
            if time.process_time() - started > seconds:
                break
        took_s = time.process_time() - started
        texts = [(item["question"], item["answer"]) for item in drawn]
        wrong_kinds = {type(part).__name__ for pair in texts for part in pair} - {"str"}
        if wrong_kinds:
            return {**figures, "fails": f"an item's question or answer is of type {', '.join(sorted(wrong_kinds))}"}
        entries = [json.dumps(item, default=str) for item in drawn]
    except Exception as error:
        return {**figures, "fails": first_line(error)}
    started = time.process_time()
    right = [scored(task, answer.strip(), entry) for (_, answer), entry in zip(texts, entries, strict=True)]
    graded_s = time.process_time() - started
    others = [
        scored(task, other.strip(), entry) == 1.0
        for (_, answer), entry in zip(texts[:8], entries[:8], strict=True)
        for _, other in texts[:8]
        if other != answer
    ]
    wrong = [
        (words, entry)
        for words in NONSENSE
        for (_, gold), entry in zip(texts, entries, strict=True)
        if gold.strip() not in words
    ]
    partial = {
        "sentence": max(
            scored(task, f"I think that it is {gold}", entry) for (_, gold), entry in zip(texts, entries, strict=True)
        ),
        "half": max(
            scored(task, gold[: len(gold) // 2], entry) for (_, gold), entry in zip(texts, entries, strict=True)
        ),
        "nonsense": max((scored(task, words, entry) for words, entry in wrong), default=0.0),
    }
    figures |= {
        "items": len(drawn),
        "items_per_s": len(drawn) / took_s,
        "grades_per_s": len(drawn) / graded_s,
        "repeated": 1.0 - len({question for question, _ in texts}) / len(drawn),
        "prompt_characters": max(len(question) for question, _ in texts),
        "stored_bytes": max(map(len, entries)),
        "answer_of_another": sum(others) / len(others) if others else 0.0,
        "partial": partial,
        "content": [sha256(entry.encode()).hexdigest()[:12] for entry in entries],
    }
    if min(right) < 1.0:
        share = sum(item < 1.0 for item in right) / len(right)
        figures["fails"] = f"{share:.0%} of its right answers do not get a full score"
    elif partial["nonsense"] == 1.0:
        words = next(words for words, entry in wrong if scored(task, words, entry) == 1.0)
        figures["fails"] = f"its scorer accepts {words!r}"
    return figures


def serve(tasks: Sequence[str], items: int, seconds: float) -> None:
    """Prints a line of JSON for each task."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for task in tasks:
        print(f"@{json.dumps({'task': task, **measure(task, items, seconds)})}", flush=True)


def measured(tasks: Sequence[str], items: int, seconds: float, hash_seed: int) -> dict[str, dict[str, Any]]:
    """Figures by task, measured in a child process that is replaced when it hangs or dies."""
    left, figures = list(tasks), dict[str, dict[str, Any]]()
    while left:
        command = [sys.executable, "-m", "tests.benchmarks.panel", "--serve", ",".join(left)]
        child = subprocess.Popen(
            [*command, "--items", str(items), "--seconds", str(seconds)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        )  # fmt: skip
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_follow, args=(child, lines), daemon=True).start()
        while left:
            try:
                line = lines.get(timeout=LIMIT_S)
            except queue.Empty:
                figures[left.pop(0)] = {"pass_rates": 0, "items": 0, "fails": f"it takes more than {LIMIT_S:.0f} s"}
                break
            if not line:
                figures[left.pop(0)] = {"pass_rates": 0, "items": 0, "fails": f"its process ended with {child.wait()}"}
                break
            progress(line[1:].rstrip())  # minutes pass until the table
            found = json.loads(line[1:])
            figures[found.pop("task")] = found
            left.pop(0)
        child.kill()
        child.wait()
    return figures


def _follow(child: subprocess.Popen[str], lines: "queue.Queue[str]") -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("@"):
            lines.put(line)
    lines.put("")


def judged(first: dict[str, dict[str, Any]], again: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Figures by task, in which a generator whose items depend on the hash seed fails."""
    for task, figures in first.items():
        contents = [side[task].pop("content", []) for side in (first, again)]
        common = min(map(len, contents))
        if not figures["fails"] and contents[0][:common] != contents[1][:common]:
            figures["fails"] = "its items differ in a process with another hash seed"
    return first


def main() -> None:
    """Prints the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--items", type=int, default=20, help="items of each generator")
    parser.add_argument("--seconds", type=float, default=2.0, help="no further item is drawn after so much CPU time")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve.split(","), options.items, options.seconds)
        return
    from reasoning_gym.factory import DATASETS  # not before: `--help` works without the extra

    tasks = sorted(DATASETS)
    first, again = (measured(tasks, options.items, options.seconds, hash_seed) for hash_seed in (1, 2))
    figures = judged(first, again)
    failing = {task for task, row in figures.items() if row["fails"]}
    report = {"generators": figures, "refused": REFUSED}
    bars = [
        Bar.at_least("generators that work and are offered", len(figures.keys() - failing - REFUSED.keys()), 95),
        Bar.at_most("generators that fail and are offered", len(failing - REFUSED.keys()), 0),
        Bar.at_most(
            "names that are refused but that the package does not have", len(REFUSED.keys() - figures.keys()), 0
        ),
    ]
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
