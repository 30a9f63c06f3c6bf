"""Values that programs stumble over, and random damage to texts and JSON documents."""

import json
import random
from typing import Any

DIGITS = "9" * 5000
WORDS = (
    "", " ", "-", ".", "..", "/", "~", "null", "nan", "inf", "-inf", "true", "0", "-1", "1e400", "1.5", "[]", "{}",
    "''", DIGITS, "x" * 300, "x" * 10_000, "../../etc", "/dev/null", "/dev/full", "~nobody-here/x", "a\nerror: forged",
    "a\x1b[31mred", "\u202eevil", "[bold]x[/bold]", "[/]", "{% include 'x' %}", "{{1/0}}", "%s%n", "$(reboot)",
    "a\0b", "\ud800", "\udcff", "é" * 200, "٣", "1_0", "0x10", "1e3", "\u200b", "a,b,,c", "x@", "@1", "made@x", "a:b",
    ":", "made:", "made:none", "recipe:", f"recipe:{'x' * 300}", "gguf:a/b", "gguf:a/b.gguf", "hub:one", "file://", "s3://[b",
    "quickstart.toml", ".toml", "x.json", "TRAIN", "=", "a=b",
)  # fmt: skip
"""Used as words of a command line, and in place of names and paths."""

TOML = (
    "inf", "-inf", "nan", "-1", "-0.0", "0", "1e308", "1e400", "1.5", "true", "false", "[]", "{}", "[[]]", "{a=1}",
    '""', "''", '"null"', '"x\\u0000"', '"\\u202e"', '"a\\nb"', DIGITS, "1" * 18, f"-{'9' * 17}", "0x" + "f" * 5000,
    "[" * 10_000, "1979-05-27", "07:32:00", "'nobody'", "[1, 'a']", "[inf]", "=", "\ud800",
    "'" + "x" * 5_000 + "'", "'~nobody-here/x'", "'s3://[b'", "'file://'", "'\x1b[31m'",
)  # fmt: skip
"""Used as values in TOML; many are invalid."""

JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, float("inf"), float("nan"), 10**400, "", " ", "null", "x" * 5_000, "\ud800", "\0",
    "a\nerror: forged", "\x1b[31m", "\u202e", [], {}, [[]], {"a": 1}, [None], "../../x", "1", -(10**18),
)  # fmt: skip


def printable(text: str) -> str:
    """Returns a text in which characters that UTF-8 cannot encode are replaced."""
    return text.encode(errors="surrogatepass").decode(errors="replace")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Returns the data with one to three random faults: cut, flipped, doubled, moved, or with a strange value in it."""
    for _ in range(chance.randint(1, 3)):
        data = _damaged_once(data, chance)
    return data


def _damaged_once(data: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(data) + 1)
    end = min(len(data), begin + chance.choice((1, 2, 10, 200)))
    strange = chance.choice((*WORDS, *TOML)).encode(errors="surrogatepass")
    match chance.randrange(8):
        case 0:
            return data[:begin]
        case 1:
            return data[:begin] + data[end:]
        case 2:
            return data[:begin] + bytes([chance.randrange(256)]) + data[begin + 1 :]
        case 3:
            return data[:end] + data[begin:]
        case 4:
            return data[:begin] + strange + data[begin:]
        case 5:
            return data[:begin] + strange + data[end:]
        case 6:
            lines = data.split(b"\n")
            chance.shuffle(lines)
            return b"\n".join(lines)
        case _:
            return chance.choice((b"", b"\xff\xfe", b"\xef\xbb\xbf" + data, b"[" * 100_000, data + b"\0", data * 2))


def damaged_json(document: Any, chance: random.Random) -> bytes:
    """Returns a JSON document with one node replaced, removed, renamed or added."""
    holder = {"document": json.loads(json.dumps(document))}
    places = list(_places(holder))
    parent, key = chance.choice(places)
    match chance.randrange(4):
        case 0 if parent is not holder:
            del parent[key]
        case 1 if isinstance(parent, dict) and parent is not holder:
            parent[printable(chance.choice(WORDS))] = parent.pop(key)
        case 2 if isinstance(parent, dict) and parent is not holder:
            parent[printable(chance.choice(WORDS))] = chance.choice(JSON)
        case _:
            parent[key] = chance.choice(JSON)
    return json.dumps(holder["document"]).encode()


def _places(node: Any) -> Any:
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    for key, child in items:
        yield node, key
        yield from _places(child)
