"""Worlds (complete courses of the night) as arrays, the truth of statements in them, and their enumeration.

Array dimensions: N worlds, P pieces (suspects, weapons, Mr. Boddy), T times, S suspects.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stages.environments.logic_puzzles.minimal import as_bits
from stages.environments.temporal_clue.formal import (
    At,
    Beside,
    Carried,
    Either,
    HasMotive,
    Iff,
    KilledWith,
    Moved,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Not,
    Question,
    Ref,
    SameRoom,
    Shape,
    Statement,
    Together,
)

Bools = NDArray[np.bool_]
Ints = NDArray[np.int8]


@dataclass(frozen=True)
class World:
    """One complete course of the night.

    Attributes:
        rooms: Room of each piece at each time, [P][T].
        motives: Motive of each suspect, [S]; empty without motives.
        murderer: Suspect index.
        weapon: Weapon index of the murder weapon.
        time: Time index of the murder.
    """

    rooms: tuple[tuple[int, ...], ...]
    motives: tuple[int, ...]
    murderer: int
    weapon: int
    time: int

    @property
    def room(self) -> int:
        """The room of the murder: Mr. Boddy's last room, because he stays where he died."""
        return self.rooms[-1][-1]


@dataclass(frozen=True)
class Worlds:
    """Worlds of one shape as arrays: rooms int8 [N,P,T], motives int8 [N,S or 0], the others int8 [N]."""

    shape: Shape
    rooms: Ints
    motives: Ints
    murderer: Ints
    weapon: Ints
    time: Ints

    def __len__(self) -> int:
        """Returns the number of worlds."""
        return len(self.murderer)

    @staticmethod
    def of(shape: Shape, worlds: list[World]) -> "Worlds":
        """Returns single worlds as arrays."""
        count = len(worlds)
        return Worlds(
            shape,
            np.array([w.rooms for w in worlds], dtype=np.int8).reshape(count, shape.pieces, shape.times),
            np.array([w.motives for w in worlds], dtype=np.int8).reshape(count, -1),
            np.array([w.murderer for w in worlds], dtype=np.int8),
            np.array([w.weapon for w in worlds], dtype=np.int8),
            np.array([w.time for w in worlds], dtype=np.int8),
        )

    def world(self, index: int) -> World:
        """Returns the world at `index`."""
        return World(
            tuple(tuple(int(room) for room in row) for row in self.rooms[index]),
            tuple(int(motive) for motive in self.motives[index]),
            int(self.murderer[index]),
            int(self.weapon[index]),
            int(self.time[index]),
        )

    def where(self, chosen: Bools) -> "Worlds":
        """Returns the worlds for which `chosen`, bool [N], is true."""
        return Worlds(
            self.shape,
            self.rooms[chosen],
            self.motives[chosen],
            self.murderer[chosen],
            self.weapon[chosen],
            self.time[chosen],
        )

    def same_as(self, world: World) -> Bools:
        """Returns for each world whether it equals `world`, bool [N]."""
        other = Worlds.of(self.shape, [world])
        same = (self.rooms == other.rooms).all(axis=(1, 2)) & (self.motives == other.motives).all(axis=1)
        return same & (self.murderer == other.murderer) & (self.weapon == other.weapon) & (self.time == other.time)

    def lawful(self) -> Bools:
        """Returns for each world whether it obeys the rules of the game, bool [N].

        The numbers of suspects with each motive are assumed to be right.
        """
        shape, rooms = self.shape, self.rooms
        suspects, weapons, boddy = rooms[:, : shape.suspects], rooms[:, shape.suspects : -1], rooms[:, -1]
        index = np.arange(len(self))
        scene = boddy[:, -1]
        present = suspects[index, :, self.time] == scene[:, None]
        lawful = (present.sum(axis=1) == 1) & present[index, self.murderer]
        lawful &= weapons[index, self.weapon, self.time] == scene
        dead = np.arange(shape.times)[None, :] >= self.time[:, None]
        lawful &= (~dead | (boddy == scene[:, None])).all(axis=1)
        if shape.times > 1:
            people = np.concatenate([suspects, boddy[:, None]], axis=1)
            lawful &= reach_table(shape)[people[:, :, :-1], people[:, :, 1:]].all(axis=(1, 2))
            steps = rooms.astype(np.int16)[:, :-1, :-1] * shape.rooms + rooms[:, :-1, 1:]
            carried = (steps[:, shape.suspects :, None] == steps[:, None, : shape.suspects]).any(axis=2)
            lawful &= (carried | (weapons[:, :, :-1] == weapons[:, :, 1:])).all(axis=(1, 2))
        return lawful

    def _bearers(self, ref: Ref) -> list[tuple[int, Bools | None]]:
        """Returns the pieces that `ref` may refer to, each with the worlds in which it does (None for all)."""
        shape = self.shape
        if ref.kind == "suspect":
            return [(ref.index, None)]
        if ref.kind == "weapon":
            return [(shape.suspects + ref.index, None)]
        if ref.kind == "boddy":
            return [(shape.boddy, None)]
        if ref.kind == "murderer":
            return [(s, self.murderer == s) for s in range(shape.suspects)]
        if ref.kind == "murder_weapon":
            return [(shape.suspects + w, self.weapon == w) for w in range(shape.weapons)]
        return [(s, self.motives[:, s] == ref.index) for s in range(shape.suspects)]

    def _some(self, ref: Ref, relation: Callable[[int], Bools]) -> Bools:
        truth = np.zeros(len(self), dtype=np.bool_)
        for piece, bears in self._bearers(ref):
            truth |= relation(piece) if bears is None else bears & relation(piece)
        return truth

    def holds(self, statement: Statement) -> Bools:
        """Returns for each world whether `statement` is true in it, bool [N]."""
        rooms = self.rooms
        match statement:
            case At(ref, room, time):
                return self._some(ref, lambda p: rooms[:, p, time] == room)
            case SameRoom(first, second, time):
                return self._pairs(first, second, lambda a, b: rooms[:, a, time] == rooms[:, b, time])
            case Beside(first, direction, second, time):
                target = [self.shape.beside(room, direction) for room in range(self.shape.rooms)]
                table = np.array([-1 if room is None else room for room in target], dtype=np.int8)
                return self._pairs(first, second, lambda a, b: rooms[:, a, time] == table[rooms[:, b, time]])
            case Together(first, second, room):
                return self._pairs(
                    first, second, lambda a, b: ((rooms[:, a] == room) & (rooms[:, b] == room)).any(axis=1)
                )
            case Moved(ref, origin, target, time):
                return self._some(ref, lambda p: self._move(p, origin, target, time))
            case Carried(ref, weapon, origin, target, time):
                return self._pairs(
                    ref, weapon, lambda a, b: self._move(a, origin, target, time) & self._move(b, origin, target, time)
                )
            case HasMotive(suspect, motive):
                return self.motives[:, suspect] == motive
            case MurderedBy(ref):
                return self._some(ref, lambda p: self.murderer == p)
            case KilledWith(weapon):
                return self.weapon == weapon
            case MurderedIn(room):
                return rooms[:, self.shape.boddy, -1] == room
            case MurderedAt(time):
                return self.time == time
            case Not(inner):
                return ~self.holds(inner)
            case Either(first, second):
                return self.holds(first) != self.holds(second)
            case Iff(first, second):
                return self.holds(first) == self.holds(second)

    def _move(self, piece: int, origin: int, target: int, time: int) -> Bools:
        return (self.rooms[:, piece, time - 1] == origin) & (self.rooms[:, piece, time] == target)

    def _pairs(self, first: Ref, second: Ref, relation: Callable[[int, int], Bools]) -> Bools:
        truth = np.zeros(len(self), dtype=np.bool_)
        for a, a_bears in self._bearers(first):
            for b, b_bears in self._bearers(second):
                pair = relation(a, b)
                if a_bears is not None:
                    pair = pair & a_bears
                if b_bears is not None:
                    pair = pair & b_bears
                truth |= pair
        return truth


@lru_cache(maxsize=256)
def reach_table(shape: Shape) -> Bools:
    """Returns whether a person in the first room can be in the second room at the next time, bool [R,R]."""
    table = np.eye(shape.rooms, dtype=np.bool_)
    for room in range(shape.rooms):
        table[room, list(shape.neighbours(room))] = True
    return table


def bearer(shape: Shape, world: World, ref: Ref) -> int:
    """Returns the index of the piece that `ref` refers to in `world`; of several suspects with a motive, the first."""
    match ref.kind:
        case "suspect":
            return ref.index
        case "weapon":
            return shape.suspects + ref.index
        case "boddy":
            return shape.boddy
        case "murderer":
            return world.murderer
        case "murder_weapon":
            return shape.suspects + world.weapon
        case "motive":
            return world.motives.index(ref.index)


def answer(shape: Shape, world: World, question: Question) -> int:
    """Returns the index of a question's answer in `world`, in the scenario's list for the answer's type."""
    ref = question.ref or Ref("boddy")
    match question.kind:
        case "murderer":
            return world.murderer
        case "weapon":
            return world.weapon
        case "room":
            return world.room
        case "time":
            return world.time
        case "motive":
            return world.motives[world.murderer]
        case "motive_of":
            return world.motives[ref.index]
        case "suspect_of":
            return world.motives.index(ref.index)
        case "where":
            return world.rooms[bearer(shape, world, ref)][question.time]


def enumerable(shape: Shape, limit: int) -> bool:
    """Returns whether `shape` has one time and, by an upper bound, at most `limit` worlds."""
    motives = math.factorial(shape.suspects) if shape.motive_counts else 1
    bound = shape.rooms ** (shape.suspects + shape.weapons) * shape.suspects * motives
    return shape.times == 1 and bound <= limit


@lru_cache(maxsize=64)
def enumerate_worlds(shape: Shape) -> Worlds:
    """Returns all worlds of a shape without a time dimension, in a fixed order.

    Raises:
        ValueError: The shape has several times; such shapes are left to CP-SAT.
    """
    if shape.times != 1:
        raise ValueError("only shapes with one time are enumerated")
    kinds = [motive for motive, count in enumerate(shape.motive_counts) for _ in range(count)]
    motives = sorted(set(itertools.permutations(kinds)))
    worlds: list[World] = []
    for suspects in itertools.product(range(shape.rooms), repeat=shape.suspects):
        for murderer, room in enumerate(suspects):
            if suspects.count(room) != 1:
                continue
            for weapons in itertools.product(range(shape.rooms), repeat=shape.weapons):
                rooms = tuple((r,) for r in (*suspects, *weapons, room))
                worlds.extend(
                    World(rooms, assigned, murderer, weapon, 0)
                    for weapon, place in enumerate(weapons)
                    if place == room
                    for assigned in motives
                )
    return Worlds.of(shape, worlds)


@lru_cache(maxsize=20_000)
def worlds_where(shape: Shape, statement: Statement) -> int:
    """Returns the worlds of `enumerate_worlds` in which a statement is true, as bits: bit i stands for world i."""
    return as_bits(enumerate_worlds(shape).holds(statement))
