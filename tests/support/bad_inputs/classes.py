"""The classes of bad inputs: each yields cases without end, from a seed."""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from artifacts.documents.suggestions import setting_names
from flows.config import recipes
from stages.context import Profile
from tests.support.bad_inputs import hostile
from tests.support.bad_inputs.command_lines import (
    commands,
    is_switch,
    only_looks,
    options,
    positionals,
    refused,
    required,
)
from tests.support.bad_inputs.ground import Ground
from tests.support.bad_inputs.trial import Case

_DEPLOYMENTS = Path(recipes.__file__).parents[2] / "deployments"
_ADDRESSES = (
    "", " ", "file://", "file:///x%00", "file://host/x", "file:relative", "s3://", "s3://[b", "s3:///x", "s3://a b/c",
    "gs://bucket", "http://127.0.0.1:9/x", "nothing://x", "://", "~nobody-here/x", "x" * 300, "x/" * 3_000, "a\nb",
    "a\x1b[31m", "/dev/null", "/dev/null/x", "/proc/self/mem", "/sys/nothing", "a-file", "a-file/x", "link", "loop", "memory://",
    "-", "s3://bucket/../x", "s3://bucket/%00", "file://%zz", "\udcff", "a\0b", "--", "[bold]", "empty", "foreign",
)  # fmt: skip


Damage = Callable[[Path], None]
"""Makes or changes something at a path."""


def _written(files: dict[str, bytes], strange: tuple[str, str] | None = None) -> Damage:
    """Returns what writes files into the folder of a case, and one of `STRANGE_FILES` under a name."""

    def prepare(folder: Path) -> None:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        if strange:
            STRANGE_FILES[strange[1]](folder / strange[0])

    return prepare


def settings(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """Changes of every setting of recipes and profiles."""
    known = [("recipes", name) for name in dict.fromkeys(setting_names(recipes.Recipe))]
    known += [("profiles", name) for name in dict.fromkeys(setting_names(Profile))]
    while True:
        chance.shuffle(known)
        for kind, setting in known:
            stored = "--store", chance.choice((str(ground.store), "new"))
            name = chance.choice(_shipped(kind)).stem
            value = chance.choice((*hostile.TOML, *hostile.WORDS))
            change = f"{_misspelt(setting, chance)}={value}"
            if kind == "profiles":
                words = ("train", "--profile", name, "--set-profile", change, *refused(("train",)), *stored)
            elif chance.random() < 0.5:
                words = ("train", "--recipe", name, "--set", change, *refused(("train",)), *stored)
            else:
                words = ("recipes", "show", name, "--set", change)
            yield Case("settings", words, may_succeed=words[0] == "recipes")


def _misspelt(setting: str, chance: random.Random) -> str:
    if chance.random() < 0.8:
        return setting
    at = chance.randrange(len(setting) + 1)
    return setting[:at] + chance.choice(("", "x", ".", "..", " ", "-", "\n", "[", "'", "é")) + setting[at + 1 :]


def _shipped(kind: str) -> list[Path]:
    return sorted((_DEPLOYMENTS / kind).glob("*.toml"))


def recipe_files(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """Recipes and profiles as files, damaged or with a strange value."""
    while True:
        stored = "--store", chance.choice((str(ground.store), "new"))
        kind = chance.choice(("recipes", "profiles"))
        data = chance.choice(_shipped(kind)).read_bytes()
        data = hostile.damaged(data, chance) if chance.random() < 0.5 else _with_strange_value(data, chance)
        if kind == "recipes":
            forms = [("recipes", "show", "own.toml"), ("recipes", "diff", "quickstart", "own.toml")]
            words = chance.choice([*forms, ("train", "--recipe", "own.toml", *refused(("train",)), *stored)])
        else:
            making = ("puzzles", "make", "--out", "made", "--profile", "own.toml", *refused(("puzzles", "make")))
            words = chance.choice([("train", "--profile", "own.toml", *refused(("train",)), *stored), making])
        files = _written({"own.toml": data})
        yield Case("recipe files", words, files, may_succeed=words[0] == "recipes", told=_told(data))


def _with_strange_value(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    number = chance.choice([n for n, line in enumerate(lines) if b" = " in line])
    name, _, _ = lines[number].partition(b" = ")
    lines[number] = name + b" = " + chance.choice(hostile.TOML).encode(errors="surrogatepass")
    return b"\n".join(lines)


def puzzle_files(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """Puzzles in the published format, damaged as bytes, as JSON, or in their text."""
    while True:
        stored = "--store", chance.choice((str(ground.store), "new"))
        document: list[dict[str, Any]] = json.loads(ground.puzzles)
        match chance.randrange(3):
            case 0:
                data = hostile.damaged(ground.puzzles.encode(), chance)
            case 1:
                data = hostile.damaged_json(document, chance)
            case _:
                prompt = hostile.damaged(document[0]["prompt"].encode(), chance).decode(errors="replace")
                data = json.dumps([{**document[0], "prompt": prompt}]).encode()
        index = chance.choice(("0", "0", "0", "1", "-1", "99", "9" * 18))
        proving = ("puzzles", "prove", "own.json", "said.txt", "--index", index)
        asking = ("solve", "own.json", "--index", index, *refused(("solve",)), *stored)
        words = chance.choice((proving, proving, asking))
        files = _written({"own.json": data, "said.txt": b"A. Nobody\n"})
        yield Case("puzzle files", words, files, may_succeed=words is proving, told=_told(data))


def completions(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """Damaged completions of a model, in a file or on stdin, and prompts that are no text."""
    puzzle = json.loads(ground.puzzles)[0]
    answer = "\n".join(f"{letter}. {said}" for letter, said in puzzle["solution"].items())
    clues = [line for line in puzzle["prompt"].split("\n") if line.strip()]
    while True:
        stored = "--store", chance.choice((str(ground.store), "new"))
        said = "\n".join([*chance.sample(clues, min(len(clues), chance.randint(0, 6))), answer])
        data = hostile.damaged(said.encode(), chance)
        output = ("--json",) if chance.random() < 0.5 else ()
        match chance.randrange(4):
            case 0:
                words = ("puzzles", "prove", "own.json", "-", *output)
            case 1:
                words = ("solve", chance.choice(("-", "said.txt")), *refused(("solve",)), *stored)
            case _:
                words = ("puzzles", "prove", "own.json", "said.txt", *output)
        files = _written({"own.json": ground.puzzles.encode(), "said.txt": data})
        yield Case("completions", words, files, data, may_succeed=words[0] == "puzzles", told=_told(data))


def arguments(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """Every option of every command with a strange value, and strange words in every other place."""
    known = [(path, app, option) for path, app in commands() for option in (*options(app), None)]
    while True:
        chance.shuffle(known)
        for path, app, option in known:
            strange = chance.choice(hostile.WORDS)
            if option is None:
                words = _misplaced(path, required(path, app), strange, chance)
            elif is_switch(option):
                words = [*required(path, app), f"{option.name}={strange}"]
            else:
                given = chance.choice(([option.name, strange], [f"{option.name}={strange}"]))
                words = [*required(path, app, option.name), *given]
            name = option and option.name
            last = ("--no-such-option",) if name in refused(path) else refused(path)
            store = ("--store", str(ground.store)) if _has_store(path) and name != "--store" else ()
            yield Case("arguments", (*path, *words, *last, *store), may_succeed=only_looks(path) or not path)


def _misplaced(path: tuple[str, ...], words: list[str], strange: str, chance: random.Random) -> list[str]:
    """Returns the words with one of them added, replaced or removed."""
    at = chance.randrange(len(words) + 1)
    match chance.randrange(3):
        case 0:
            return [*words[:at], strange, *words[at:]]
        case 1:
            return [*words[:at], strange, *words[at + 1 :]]
        case _:
            return [*words[:at], *words[at + 1 :], chance.choice(("--" + strange, "--", "--no-such", "-x"))]


def _has_store(path: tuple[str, ...]) -> bool:
    return any(option.name == "--store" for option in options(dict(commands())[path]))


def stores(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """Invalid addresses of stores, for every command that takes one."""
    known = [(path, app) for path, app in commands() if _has_store(path) and path != ("doctor",)]
    while True:
        chance.shuffle(known)
        for path, app in known:
            address = chance.choice(_ADDRESSES)
            words = [*path, *required(path, app), *refused(path)]
            if path == ("verify",) and chance.random() < 0.5:
                words.append(address)
            else:
                words.append(f"--store={address}")
            looks = only_looks(path) and positionals(app) < 1
            yield Case("stores", tuple(words), _strange_folders, may_succeed=looks)


def _strange_folders(folder: Path) -> None:
    (folder / "a-file").write_text("a file\n")
    (folder / "empty").mkdir()
    (folder / "foreign" / "runs").mkdir(parents=True)
    (folder / "foreign" / "manifest.json").write_text('{"name": "a web page"}')
    (folder / "link").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")


def damaged_stores(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """Stores with one file that is damaged, foreign, missing or a link, and the commands that read them."""
    looking = [
        ("runs",), ("runs", "--json"), ("show", "made"), ("show", "made", "--json"), ("report", "made"),
        ("lineage", "made"), ("lineage", "made@1", "--depth", "0"), ("diff", "made", "made"), ("prune",),
        ("prune", "made", "--keep-last", "0", "--json"), ("verify",), ("verify", "--json"),
    ]  # fmt: skip
    working = [
        ("iterate", "made", "--more", "1", *refused(("iterate",))),
        ("compare", "made", "--recipes", "own", *refused(("compare",))),
        ("backfill", "made", *refused(("backfill",)), "--suite", "s", "--puzzles", "made:val"),
        ("solve", "made:val", *refused(("solve",))),
        ("train", "--run", "made", *refused(("train",))),
    ]
    files = sorted(path for path in ground.store.rglob("*") if path.is_file())
    told = [path for path in files if path.suffix in (".json", ".sums")]
    while True:
        path = chance.choice(told if chance.random() < 0.75 else files).relative_to(ground.store)
        damage, name = _damage_of(ground.store / path, chance)
        words = chance.choice([*looking, *working])
        prepare = _damaged(ground.store, path, damage)
        told_as = f"{path}: {name}"
        yield Case("damaged stores", (*words, "--store", "store"), prepare, may_succeed=words in looking, told=told_as)


def _damaged(source: Path, path: Path, damage: Damage) -> Damage:
    """Returns what copies a folder to `store` or `model` of a case, and damages one file of it."""
    return lambda folder: damage(Path(shutil.copytree(source, folder / source.name)) / path)


def _damage_of(file: Path, chance: random.Random) -> tuple[Damage, str]:
    """Returns a function that damages a file, and a name for the damage."""
    data = file.read_bytes()
    match chance.randrange(7):
        case 0:
            return Path.unlink, "gone"
        case 1 | 2:
            name = chance.choice(tuple(STRANGE_FILES))
            return lambda path: (path.unlink(), STRANGE_FILES[name](path))[1], name
        case 3 | 4 if file.suffix == ".json":
            strange = hostile.damaged_json(json.loads(data), chance)
        case _:
            strange = hostile.damaged(data, chance)
    return _filled(strange), _told(strange)


def _filled(data: bytes) -> Damage:
    return lambda path: (path.write_bytes(data), None)[1]


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH)  # the name of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _link(target: str) -> Damage:
    return lambda path: path.symlink_to(target)


STRANGE_FILES: dict[str, Damage] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "1 TiB of zeros": _sparse,
    "a link to itself": lambda path: path.symlink_to(path.name),
    **{f"a link to {target}": _link(target) for target in ("nowhere", "/etc/passwd", "/dev/zero", "/dev/tty", "..")},
}
"""Makes something at a path that is no file of the expected kind, by description."""


def strange_files(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """Files that a person names, which are no regular files, or far too large."""
    store = "--store", str(ground.store)
    commands = (
        ("train", "--recipe", "own.toml", *refused(("train",)), *store),
        ("train", "--recipe", "of-task.toml", *refused(("train",)), *store),
        ("train", "--profile", "own.toml", *refused(("train",)), *store),
        ("recipes", "show", "own.toml"),
        ("recipes", "diff", "quickstart", "own.toml"),
        ("puzzles", "prove", "own.json", "said.txt"),
        ("puzzles", "prove", "good.json", "own.txt"),
        ("puzzles", "solve", "own.json"),
        ("solve", "own.json", *refused(("solve",)), *store),
        ("solve", "own.txt", *refused(("solve",)), *store),
        ("evaluate", *refused(("evaluate",)), "--puzzles", "own.json", *store),
        ("evaluate", *refused(("evaluate",)), "--suite", "own.toml", *store),
        ("benchmark", "--models", "own.toml", "--puzzles", "made:val", *store),
        ("backfill", "made", "--suite", "own.toml", *store),
        ("study", "--benchmark", "own.json", *store),
        ("plan", "--recipe", "own.toml", "--gpus", "8x80"),
    )
    files = {
        "good.json": ground.puzzles.encode(),
        "said.txt": b"A. Nobody\n",
        "of-task.toml": b'title = "x"\n[puzzles.puzzle]\nenvironment = "own.py:Task"\n',
    }
    while True:
        words, name = chance.choice(commands), chance.choice(tuple(STRANGE_FILES))
        own = next((word for word in words if word.startswith("own.")), "own.py")
        may_succeed = own == "own.txt"  # any text is a completion
        prepare = _written(files, strange=(own, name))
        yield Case("strange files", words, prepare, may_succeed=may_succeed, told=f"{own}: {name}")


def checkpoints(ground: Ground, chance: random.Random) -> Iterator[Case]:
    """A model folder with a damaged file; `solve` goes as far as the engine, whose key is missing."""
    files = [path for path in sorted(ground.model.iterdir()) if path.is_file()]
    while True:
        path = chance.choice(files)
        damage, name = _damage_of(path, chance)
        if path.suffix == ".safetensors" and chance.random() < 0.8:
            strange = _damaged_header(path.read_bytes(), chance)
            damage, name = _filled(strange), f"header {_told(strange)}"
        words = ("solve", "-", "--checkpoint", "./model", "--profile", str(ground.profile))
        words += ("--store", str(ground.store))
        prepare = _damaged(ground.model, Path(path.name), damage)
        yield Case("checkpoints", words, prepare, b"Who did it?\n", told=f"{path.name}: {name}")


def _damaged_header(data: bytes, chance: random.Random) -> bytes:
    """Returns a safetensors file with a wrong header."""
    size = int.from_bytes(data[:8], "little")
    header, tensors = data[8 : 8 + size], data[8 + size :]
    if chance.random() < 0.2:
        return chance.choice((2**63, 2**64 - 1, 0, 1, size + 1, len(data))).to_bytes(8, "little") + header + tensors
    header = hostile.damaged_json(json.loads(header), chance)
    return len(header).to_bytes(8, "little") + header + tensors


def _told(data: bytes) -> str:
    return repr(data if len(data) < 400 else data[:200] + b" ... " + data[-200:])


CLASSES: dict[str, tuple[Callable[[Ground, random.Random], Iterator[Case]], int]] = {
    "settings": (settings, 25),
    "recipe files": (recipe_files, 14),
    "puzzle files": (puzzle_files, 13),
    "completions": (completions, 10),
    "arguments": (arguments, 18),
    "stores": (stores, 8),
    "damaged stores": (damaged_stores, 8),
    "checkpoints": (checkpoints, 4),
    "strange files": (strange_files, 6),
}
"""The generator of each class's cases, and the share of the class among all."""
