"""`orlog/Coin-v0`: a coin lies in a house of rooms, which are described in words; commands are words too.

    observation  what a command is answered with, as in "-= Study =- You arrive in a study. There is
                 an exit to the east. .. There is a coin on the floor."
    action       any text; `go north`, `look`, `inventory`, `examine coin` and `take coin` are understood
    reward       1 for taking the coin, which ends the episode; each command costs 0.02
    episode      15 commands, then it is truncated
    info         `won`, and `admissible_commands`, those that are understood now, one in each line

Each episode has a house of its own, which the seed of its reset decides: a chain of four rooms with the coin in
the last one, and four more rooms that are joined to any of the others, so that a wrong way may go on for a while.
That is TextWorld's coin collector (Côté and others 2018, https://arxiv.org/abs/1806.11532; Yuan and others 2018,
https://arxiv.org/abs/1806.11525) with distractors at random. Rooms, their names and descriptions, and what may be
done are TextWorld's own.

What differs from TextWorld's challenge: games are not compiled for an interpreter, which takes 1.7 s each and
writes files, so what is no description (the answer to `inventory`, say) is in words of this module; rewards have a
price for each command; and rooms are joined by draws of this module.
"""

from __future__ import annotations

import contextlib
import functools
import io
import string
import warnings
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CHAIN = 4
"""Rooms from the first one to the one with the coin, both included."""

ROOMS = 8
"""Rooms of a house."""

PRICE = 0.02
"""What a command costs."""

TEXTS = spaces.Text(1000, min_length=0, charset=string.printable)
"""The space of observations."""

COMMANDS = spaces.Text(100, min_length=0, charset=string.printable)
"""The space of actions."""

_TAKE = "take coin"
_ANSWERS = {
    "inventory": "You carry nothing.",
    "examine coin": "The coin is small and shines.",
    _TAKE: "You take the coin. You have won!",
}
_NOT_UNDERSTOOD = "That is not understood."


class Coin(gymnasium.Env[str, str]):
    """The environment.

    Attributes:
        house: What TextWorld made of the seed: rooms, exits, texts.
        room: Id of the room where the player is.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self) -> None:
        self.observation_space = TEXTS
        self.action_space = COMMANDS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode in another house."""
        super().reset(seed=seed, options=options)
        self.house = make_house(int(self.np_random.integers(2**31)))
        self.room, self.has_coin = self.house.start, False
        return self.house.describe(self.room), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do what a command says."""
        command = action.strip()
        answer = f"{_NOT_UNDERSTOOD}\n{self.house.describe(self.room)}"
        if command in self.commands:
            self.room = self.house.exits[self.room].get(command.removeprefix("go "), self.room)
            self.has_coin = command == _TAKE
            answer = _ANSWERS.get(command) or self.house.describe(self.room)
        return answer, self.has_coin - PRICE, self.has_coin, False, self._info()

    @property
    def commands(self) -> list[str]:
        """The commands that are understood now, in the order of the alphabet."""
        found = ["inventory", "look", *(f"go {one}" for one in self.house.exits[self.room])]
        if self.room == self.house.coin:
            found += ["examine coin", _TAKE]
        return sorted(found)

    @property
    def best_command(self) -> str:
        """The first command of the shortest way to the coin."""
        return self.house.ways[self.room]

    def _info(self) -> dict[str, Any]:
        return {"won": self.has_coin, "admissible_commands": "\n".join(self.commands)}


class House:
    """A house that TextWorld made.

    Attributes:
        start: Id of the room where the player begins.
        coin: Id of the room where the coin is.
        exits: For each room the room that each exit leads to, by its direction.
        ways: For each room the first command of the shortest way to the coin.
    """

    def __init__(self, game: Any) -> None:
        rooms = list(game.world.rooms)
        self.start = game.world.player_room.id
        (self.coin,) = [room.id for room in rooms for one in room.content if one.type == "o"]
        self.exits = {
            room.id: {way: room.exits[way].id for way in sorted(room.exits)} for room in rooms
        }
        self.ways = {self.coin: _TAKE}
        waiting = deque([self.coin])
        while waiting:
            reached = waiting.popleft()
            for room, exits in self.exits.items():
                for way, leads_to in exits.items():
                    if leads_to == reached and room not in self.ways:
                        self.ways[room] = f"go {way}"
                        waiting.append(room)
        self._texts = {room.id: game.infos[room.id] for room in rooms}

    def describe(self, room: str) -> str:
        """Return what is seen in a room."""
        infos = self._texts[room]
        coin = " There is a coin on the floor." if room == self.coin else ""
        return f"-= {infos.name.title()} =-\n{' '.join(infos.desc.split())}{coin}"


def make_house(seed: int) -> House:
    """Return the house of a seed."""
    textworld = _textworld()
    from textworld.generator.game import GameOptions
    from textworld.generator.graph_networks import reverse_direction

    drawn = np.random.Generator(np.random.PCG64(seed))
    options = GameOptions()
    options.seeds, options.kb = seed, _knowledge()
    options.grammar.allowed_variables_numbering = True
    maker = textworld.GameMaker(options)
    rooms = [maker.new_room() for _ in range(ROOMS)]

    def join(one: Any, other: Any) -> None:
        free = [way for way, exit_ in sorted(one.exits.items()) if exit_.dest is None]
        way = free[int(drawn.integers(len(free)))]
        maker.connect(one.exits[way], other.exits[reverse_direction(way)])

    for number in range(1, ROOMS):
        before = rooms[number - 1]
        if number >= CHAIN:
            roomy = [one for one in rooms[:number] if any(_is_free(one))]
            before = roomy[int(drawn.integers(len(roomy)))]
        join(before, rooms[number])
    maker.set_player(rooms[0])
    rooms[CHAIN - 1].add(maker.new(type="o", name="coin"))
    with warnings.catch_warnings():
        # Where names are used up, rooms are called "serious study" and such.
        warnings.filterwarnings("ignore", "Not enough variation")
        return House(maker.build())


def _is_free(room: Any) -> list[bool]:
    return [exit_.dest is None for exit_ in room.exits.values()]


@functools.cache
def _textworld() -> Any:
    """Import TextWorld without showing what it prints about a package that it does not need here."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        import textworld
        import textworld.generator
    return textworld


@functools.cache
def _knowledge() -> Any:
    """Return what TextWorld's coin collector knows of its world; reading it takes longer than a house."""
    from textworld.challenges.tw_coin_collector.coin_collector import KB_PATH
    from textworld.generator.data import KnowledgeBase

    return KnowledgeBase.load(KB_PATH)
