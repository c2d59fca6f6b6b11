"""`orlog/GoTo-v0`: a room with a red ball, a green box and a blue key, and a mission in words to go to one of them.

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
"""

from __future__ import annotations

import contextlib
import functools
import io
import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import UInt8

OBJECTS = (("red", "ball"), ("green", "box"), ("blue", "key"))
"""What lies in the room."""

ROOM = 7
"""Cells on each side of the room, with its walls."""

STEPS = 12
"""Most steps of an episode."""

MOTIONS = 3
"""The first actions: to turn left, to turn right, and to go forward."""

SIDE = 7
"""Cells on each side of the grid that is seen; the agent is in the middle of its last row."""

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
    """Return the class of the level; it imports MiniGrid."""
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

    found: list[tuple[int, int, str]] = []
    for column, row in np.argwhere(image[..., 0] > 1).tolist():
        thing = IDX_TO_OBJECT[int(image[column, row, 0])]
        ahead, right = SIDE - 1 - row, column - SIDE // 2
        if thing in _THINGS:
            what = f"{IDX_TO_COLOR[int(image[column, row, 1])]} {thing}"
            found.append((ahead + abs(right), right, f"A {what} {_place(ahead, right)}."))
        elif thing == "wall" and right == 0:
            found.append((ahead, SIDE, f"A wall {ahead} ahead."))
    walls = [one for one in found if one[1] == SIDE]
    for farther in sorted(walls)[1:]:
        found.remove(farther)
    return " ".join(text for _, _, text in sorted(found)) or "Nothing."


def _place(ahead: int, right: int) -> str:
    """Return where something is, seen from the agent."""
    side = f"{abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    forward = f"{ahead} ahead" if ahead else ""
    return ", ".join(one for one in (forward, side) if one) or "in hand"
