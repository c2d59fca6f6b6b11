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

`orlog/GoTo-v0`: a room with a red ball, a green box and a blue key, and a mission in words to go to one of them.

    observation  `image`      the grid of 7 x 7 cells that lies in front: MiniGrid's numbers of object and color, [7, 7, 2] uint8
                 `direction`  where the agent faces: 0 east, 1 south, 2 west, 3 north
                 `mission`    "go to the red ball"
                 `seen`       the grid in words: "A red ball 2 ahead, 1 left. A wall 4 ahead.", the nearest first
    action       0 left, 1 right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done
    reward       1 - 0.9 t / 12 in step t if the agent then faces the object of the mission from the cell beside it, else 0
    episode      ends with that reward, or after 12 steps, when it is truncated
    info         `won`

Places and mission are drawn by the seed of the reset. The rules are those of the level GoToLocal of BabyAI (Chevalier-Boisvert
and others 2019, https://arxiv.org/abs/1810.08272) as MiniGrid has it, and `best_action` is that of its bot.

What differs from that level: the room has 5 x 5 cells and always the same three objects, instead of 6 x 6 and eight of 18 kinds,
so that a small network learns from few episodes what words mean; there are 12 steps instead of 64, in which random actions
would win half of the episodes; the third number of a cell is left out, which is the state of doors; and the grid is told in
words too, as in BabyAI-Text (Carta and others 2023, https://arxiv.org/abs/2302.02662), in words of this module.

Recipes of the `words/...` datasets: good and random actions in worlds that are told in words.

In each episode a share of the actions is drawn at random, and the others are those of a player that knows the whole
world. Shares take turns from episode to episode. Every step keeps the log-probability of its
action, and `CoinRecipe` also what may be done before it.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of actions; share number i % (number of shares)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import string
import warnings
from collections import deque
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import UInt8

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, Watching, play_episode

CHAIN = 4  # rooms from the first one to the one with the coin, both included
ROOMS = 8  # rooms of a house
PRICE = 0.02  # what a command costs
TEXTS = spaces.Text(1000, min_length=0, charset=string.printable)  # the space of observations
COMMANDS = spaces.Text(100, min_length=0, charset=string.printable)  # the space of actions
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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
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
        understood = ["inventory", "look", *(f"go {way}" for way in self.house.exits[self.room])]
        if self.room == self.house.coin:
            understood += ["examine coin", _TAKE]
        return sorted(understood)

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
        (self.coin,) = [room.id for room in rooms for item in room.content if item.type == "o"]
        self.exits = {room.id: {way: room.exits[way].id for way in sorted(room.exits)} for room in rooms}
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

    def join(room: Any, other: Any) -> None:
        free = [way for way, exit_ in sorted(room.exits.items()) if exit_.dest is None]
        way = free[int(drawn.integers(len(free)))]
        maker.connect(room.exits[way], other.exits[reverse_direction(way)])

    for number in range(1, ROOMS):
        before = rooms[number - 1]
        if number >= CHAIN:
            roomy = [room for room in rooms[:number] if any(_is_free(room))]
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


OBJECTS = (("red", "ball"), ("green", "box"), ("blue", "key"))  # what lies in the room
ROOM = 7  # cells on each side of the room, with its walls
STEPS = 12  # most steps of an episode
MOTIONS = 3  # the first actions: to turn left, to turn right, and to go forward
SIDE = 7  # cells on each side of the grid that is seen; the agent is in the middle of its last row
_WORDS: dict[str, Any] = {"min_length": 0, "charset": string.printable}
_THINGS = ("key", "ball", "box")


class GoTo(gymnasium.Env[dict[str, Any], Any]):
    """The environment.

    Attributes:
        level: MiniGrid's level, with the room.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self) -> None:
        self.level: Any = _room()(room_size=ROOM, max_steps=STEPS)
        self.action_space = spaces.Discrete(int(self.level.action_space.n))
        self.observation_space = spaces.Dict(
            direction=spaces.Discrete(4),
            image=spaces.Box(0, 255, (SIDE, SIDE, 2), np.uint8),
            mission=spaces.Text(100, **_WORDS),
            seen=spaces.Text(1000, **_WORDS),
        )
        self._bot: Any = None
        self._taken: int | None = None
        self._best: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode in another room."""
        super().reset(seed=seed, options=options)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints of places that it draws again
            observation, _ = self.level.reset(seed=int(self.np_random.integers(2**31)))
        self._bot = self._taken = self._best = None
        return _told(observation), {"won": False}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Act."""
        observation, reward, terminated, truncated, _ = self.level.step(action)
        if self._best is None:  # the bot did not see what came before, so it begins anew
            self._bot = None
        self._taken, self._best = int(action), 0 if terminated else None
        return _told(observation), float(reward), terminated, truncated, {"won": reward > 0}

    @property
    def best_action(self) -> int:
        """What BabyAI's bot does next; it knows the whole room."""
        if self._best is None:
            if self._bot is None:
                from minigrid.utils.baby_ai_bot import BabyAIBot

                bot: Any = BabyAIBot
                self._bot, self._taken = bot(self.level), None
            self._best = int(self._bot.replan(self._taken))
        return self._best


@functools.cache
def _room() -> Any:
    from minigrid.envs.babyai.core import verifier
    from minigrid.envs.babyai.goto import GoToLocal

    instructions: Any = verifier  # the package has types for a part of what it does

    class Room(GoToLocal):
        def gen_mission(self: Any) -> None:
            self.place_agent()
            things = [self.add_object(0, 0, kind, color)[0] for color, kind in OBJECTS]
            self.check_objs_reachable()
            wanted = self._rand_elem(things)
            self.instrs = instructions.GoToInstr(instructions.ObjDesc(wanted.type, wanted.color))

    return Room


def _told(observation: dict[str, Any]) -> dict[str, Any]:
    image = observation["image"][..., :2]
    return {
        "direction": np.int64(observation["direction"]),
        "image": image,
        "mission": observation["mission"],
        "seen": in_words(image),
    }


def in_words(image: UInt8[np.ndarray, "7 7 more"]) -> str:
    """Return what a grid of MiniGrid shows: objects, the nearest first, and the wall straight ahead."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    sights: list[tuple[int, int, str]] = []
    for column, row in np.argwhere(image[..., 0] > 1).tolist():
        thing = IDX_TO_OBJECT[int(image[column, row, 0])]
        ahead, right = SIDE - 1 - row, column - SIDE // 2
        if thing in _THINGS:
            what = f"{IDX_TO_COLOR[int(image[column, row, 1])]} {thing}"
            sights.append((ahead + abs(right), right, f"A {what} {_place(ahead, right)}."))
        elif thing == "wall" and right == 0:
            sights.append((ahead, SIDE, f"A wall {ahead} ahead."))
    walls = [sight for sight in sights if sight[1] == SIDE]
    for farther in sorted(walls)[1:]:
        sights.remove(farther)
    return " ".join(text for _, _, text in sorted(sights)) or "Nothing."


def _place(ahead: int, right: int) -> str:
    side = f"{abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    forward = f"{ahead} ahead" if ahead else ""
    return ", ".join(direction for direction in (forward, side) if direction) or "in hand"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MixedRecipe(PlayedRecipe):
    """Everything that decides the bytes of a dataset, and its episodes.

    Attributes:
        random_shares: Share of random actions in the episodes, which take turns.
    """

    random_shares: tuple[float, ...]
    count: int
    steps: int
    seed: int = 0

    NO_BYTES = frozenset({"steps"})
    environment_id: ClassVar[str]
    choices: ClassVar[str]  # what a random player chooses from, in words

    @property
    def shares(self) -> str:
        return ", ".join(f"{share:g}" for share in self.random_shares)

    def _draw(self, rng: np.random.Generator, world: Any, share: float) -> tuple[Any, dict[str, Any]]:
        raise NotImplementedError

    def _any_action(self, rng: np.random.Generator, world: Any) -> Any:
        raise NotImplementedError

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, index: int) -> Episode:
        share = self.random_shares[index % len(self.random_shares)]

        def choose(_observation: Any) -> tuple[Any, dict[str, Any]]:
            return self._draw(rng, env.unwrapped, share)

        metadata = {"random_share": share}
        return play_episode(env, reset_seed, choose, metadata, infos=("won",))

    def random_policy(self) -> Expert:
        rng = np.random.Generator(np.random.PCG64(0))
        return Expert(
            name=f"uniform over {self.choices}, drawn by PCG64 with seed 0",
            policy=Watching(lambda env: self._any_action(rng, env.unwrapped)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoinRecipe(_MixedRecipe):
    """Everything that decides the bytes of a dataset of `orlog/Coin-v0`."""

    name = "coin"
    environment_id = "orlog/Coin-v0"
    choices = "the commands that are understood"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            "the first command of the shortest way to the coin, and a random one of those that are "
            f"understood in a share of the steps; shares of {self.shares} take turns from episode to "
            "episode; action_log_probs are exact for the policy of the episode"
        )

    def expert(self) -> Expert:
        """Return the player that knows the whole house."""
        return Expert(name="the shortest way to the coin", policy=Watching(lambda env: env.unwrapped.best_command))

    def _any_action(self, rng: np.random.Generator, world: Any) -> str:
        commands: list[str] = world.commands
        return commands[int(rng.integers(len(commands)))]

    def _draw(self, rng: np.random.Generator, world: Any, share: float) -> tuple[str, dict[str, Any]]:
        commands, best = world.commands, world.best_command
        chance, uniform = rng.random(2).tolist()
        command: str = commands[int(len(commands) * uniform)] if chance < share else best
        probability = share / len(commands) + (1 - share) * (command == best)
        return command, {"action_log_probs": math.log(probability), "admissible_commands": "\n".join(commands)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoToRecipe(_MixedRecipe):
    """Everything that decides the bytes of a dataset of `orlog/GoTo-v0`."""

    name = "goto"
    environment_id = "orlog/GoTo-v0"
    choices = "all seven actions"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            "BabyAI's bot, and in a share of the steps a random turn or step ahead instead; in episodes "
            f"with a share of 1 a random one of all seven actions; shares of {self.shares} take turns from "
            "episode to episode; action_log_probs are exact for the policy of the episode"
        )

    def expert(self) -> Expert:
        """Return BabyAI's bot."""
        return Expert(name="BabyAI's bot", policy=Watching(lambda env: env.unwrapped.best_action))

    def _any_action(self, rng: np.random.Generator, world: Any) -> int:
        return int(rng.integers(world.action_space.n))

    def _draw(self, rng: np.random.Generator, world: Any, share: float) -> tuple[int, dict[str, Any]]:
        chance, uniform = rng.random(2).tolist()
        if share == 1:  # what the bot wants is not asked, since it may have become impossible
            count = int(world.action_space.n)
            return int(count * uniform), {"action_log_probs": -math.log(count)}
        best = world.best_action
        action = int(MOTIONS * uniform) if chance < share else best
        by_chance = share / MOTIONS * (action < MOTIONS)
        probability = by_chance + (1 - share) * (action == best)
        return action, {"action_log_probs": math.log(probability)}


DATASETS = {
    "words/coin-mixed-v1": CatalogueEntry(
        description=(
            "TextWorld's coin collector in words, a new house in each episode: commands of a player "
            "that knows the way and random ones, mixed, with the commands that are understood."
        ),
        recipe=CoinRecipe(random_shares=(0.2, 1.0, 1.0, 1.0), count=3000, steps=36587, seed=50),
    ),
    "words/goto-mixed-v1": CatalogueEntry(
        description=(
            "BabyAI in a room with three objects, with places and a mission in words anew in each episode: "
            "grids, the same in words, and actions of BabyAI's bot and random ones, mixed."
        ),
        recipe=GoToRecipe(random_shares=(0.1, 0.5, 1.0), count=6000, steps=49414, seed=60),
    ),
}
