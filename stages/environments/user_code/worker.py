"""Calls the object of a user, in a process of its own (see `stages.processes.limited_calls`)."""

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from artifacts.documents.conversation import read_messages
from stages.environments.solver_tool import without_marks
from stages.environments.user_code.config import entry_point, verifiers_version, version_of
from stages.processes.user_file import check_call, load_from, number_or_text

LARGEST_ITEM = 1_000_000
"""Bytes of the JSON of an item."""
METHODS = {"items": ("count", "seed"), "grade": ("completion", "item")}
"""Methods of an object, with the arguments that they get by name, so that their order does not matter."""
_SEEDS = 1 << 31
"""Number of different seeds of episodes: what numpy's `RandomState` and a signed integer of 32 bits take."""


def load(location: str, name: str, version: str, arguments: str = "") -> Callable[..., Any]:
    """Returns a function that calls a method of the object.

    Args:
        location: The Python file; `package` for an entry point, `verifiers` for an environment of that package.
        name: Name of the object in the file, of the entry point, or of the environment.
        version: Digest of the file, or version of the package.
        arguments: Arguments of an environment of verifiers, as JSON.

    Raises:
        Exception: The object cannot be imported, is of another version, or lacks a method with the right arguments.
    """
    target: Any
    if location == "verifiers":
        target = _from_verifiers(name, version, arguments)
    else:
        target = _from_package(name, version) if location == "package" else load_from(Path(location), name, version)
        target = target() if inspect.isclass(target) else target
        if hasattr(target, "step") or hasattr(target, "reset"):
            _check_method(target, name, "reset", ("seed",))
            _check_method(target, name, "step", ("completion",), by_name=False)  # gymnasium calls it an action
            target = _Stepped(target)
        else:
            for method, names in METHODS.items():
                _check_method(target, name, method, names)

    def call(method: str, *arguments: Any) -> Any:
        methods = {"items": _items, "grade": _grade, "levels": _levels, "observe": _observe, "episode": _episode}
        return methods[method](target, *arguments)

    return call


class _Stepped:
    """Adapts an object with `reset` and `step` to one with `items` and `play`.

    Args:
        target: The user's object.
    """

    episodes = True

    def __init__(self, target: Any) -> None:
        self._target = target
        state = getattr(target, "__dict__", {})
        self._rewards = [state["reward"]] if "reward" in state else []  # before the first episode

    def items(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Returns episodes, each with its prompt and a seed of its own."""
        start = int.from_bytes(sha256(str(seed).encode()).digest()[:8])
        seeds = [(start + number) % _SEEDS for number in range(count)]
        return [{"prompt": self._first(number), "seed": number} for number in seeds]

    def play(self, turns: Sequence[str], item: dict[str, Any]) -> tuple[list[str], bool, Any]:
        """Plays an episode from its start.

        Returns:
            The observation after each turn up to the end of the episode, whether it has ended, and its reward: the
            attribute `reward`, or the sum of the rewards if `step` returns them, as in gymnasium.
        """
        self._first(item["seed"])
        observations, rewards, done = list[str](), list[float](), False
        for turn in turns:
            match self._target.step(turn):
                case (str(observation), done):
                    pass
                case (str(observation), reward, terminated, truncated, _):
                    rewards.append(float(reward))
                    done = terminated or truncated
                case other:
                    expected = "(observation, done), the first of them a text"
                    raise TypeError(f"step returned {_short(other)}, expected {expected}")
            observations.append(observation)
            if done:
                break
        return observations, bool(done), round(sum(rewards), 9) if rewards else self._target.reward

    def _first(self, seed: int) -> Any:
        """Begins an episode and returns its prompt; `reset` of gymnasium returns it with a dict.

        The reward of the episode before is forgotten, because `step` may set one only where the model succeeds.
        """
        with suppress(AttributeError):  # there is none, or it is a property
            del self._target.reward
            for reward in self._rewards:
                self._target.reward = reward
        begun = self._target.reset(seed=seed)
        return begun[0] if isinstance(begun, tuple) and len(begun) == 2 else begun


def _check_method(target: Any, name: str, method: str, names: Sequence[str], *, by_name: bool = True) -> None:
    """Raises TypeError if an object has no method that can be called with arguments of these names."""
    function = getattr(target, method, None)
    expected = f"def {method}(self, {', '.join(names)})"
    if not callable(function):
        raise TypeError(f"{name} has no method {method}; write {expected}")
    try:
        check_call(function, expected, names, by_name=by_name)
    except TypeError as error:
        raise TypeError(f"{name}.{method}{error}") from error


def _from_package(name: str, version: str) -> Any:
    point = entry_point(name)
    if (now := version_of(point)) != version:
        raise ValueError(f"the package has changed: {now}, expected {version}")
    return point.load()


def _from_verifiers(name: str, version: str, arguments: str) -> Any:
    if (now := verifiers_version(name)) != version:
        raise ValueError(f"the environment has changed: {now}, expected {version}")
    from stages.environments.user_code.verifiers_tasks import VerifiersTask

    return VerifiersTask(name, json.loads(arguments or "{}"))


def _items(target: Any, count: int, seed: int, level: str | None) -> tuple[list[str], bool]:
    """Returns the items as JSON, and whether they are episodes of several turns.

    Raises:
        Exception: The method raises, or an item cannot be used.
    """
    settings = {} if level is None else {"level": level}
    _check_method(target, type(target).__name__, "items", (*METHODS["items"], *settings))
    items = [
        item for item, _ in zip(target.items(count=count, seed=seed, **settings), range(100 * count), strict=False)
    ]
    return [_checked(item, number) for number, item in enumerate(items)], getattr(target, "episodes", False)


def _checked(item: Any, number: int) -> str:
    if not isinstance(item, dict):
        raise TypeError(f"item {number} is {_short(item)}, expected a dict")
    prompt = item.get("prompt")
    if isinstance(prompt, list):
        read_messages(cast("list[object]", prompt), f"the prompt of item {number}")
    elif not isinstance(prompt, str) or not prompt.strip():
        raise TypeError(f"item {number} has the prompt {_short(prompt)}, expected a text or a list of messages")
    try:
        written = json.dumps(item, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"item {number} is not JSON ({error})") from error
    stored = json.loads(written)
    for changed in (key for key, value in item.items() if key not in stored or stored[key] != value):
        now = _short(stored[changed]) if changed in stored else "a text as key"
        raise TypeError(
            f"item {number} changes when it is stored as JSON: {changed!r} is {_short(item[changed])} and then {now}; "
            "use lists instead of tuples, and texts as keys"
        )
    if len(written) > LARGEST_ITEM:
        raise ValueError(f"item {number} has {len(written):,} bytes of JSON, expected at most {LARGEST_ITEM:,}")
    return written


def _grade(target: Any, completion: str, item: str) -> float | str:
    """Returns the score, or the text of one that is not a number from 0 to 1."""
    return number_or_text(target.grade(completion=completion, item=json.loads(item)), 0.0, 1.0)


def _observe(target: Any, turns: Sequence[str], item: str) -> str | None:
    """Returns the observation after the last turn; None if the episode has ended."""
    observations, ended, _ = target.play(turns, json.loads(item))
    return None if ended else observations[-1]


def _episode(target: Any, turns: Sequence[str], observed: Sequence[str], item: str) -> float | str:
    """Returns the reward of an episode, or a text that says why there is none.

    Args:
        turns: What the model wrote.
        observed: The observations that it read, after each of these turns but the last.
        item: The item.
    """
    observations, _, reward = target.play(turns, json.loads(item))
    for number, seen in enumerate(observed):
        now = without_marks(observations[number]) if number < len(observations) else None
        if now != seen:
            return f"{_short(now)} after turn {number + 1}, where it had returned {_short(seen)}"
    return number_or_text(reward, 0.0, 1.0)


def _levels(target: Any) -> list[str]:
    return [str(name) for name in getattr(target, "levels", ())]


def _short(value: object) -> str:
    return repr(value)[:80]
