"""Random stretches of episodes as token sequences: what the agent is told and what it says, in turn.

    tokens     o o o o  [action]  a a  [end]  o o o  [action]  a  [end]  o o  [action]  (padding)
    is_action  . . . .      .     x x    x    . . .      .     x    x    . .      .
    decides    . . . .      x     x x    .    . . .      x     x    .    . .      x
    rewards    . . . .      .     . .    r    . . .      .     .    r    . .      .

Actions that are numbers of choices (a Discrete space) are said as numbers: `2`. Texts are tokenized once, each distinct one alone, so a token never spans what is told and what is said. A batch is then
a gather. An episode ends with its final observation and the mark after it, where the value of a state that was cut off
can be read.

Where steps are those of several speakers, as the role `speaker` of a column says, those of one of them are the agent's. What the others
say is told: it has no mark before it, and `is_action` and `decides` are false. What comes of the others' steps, rewards and the end of the
episode, is of the agent's step before them, and only the agent's steps are drawn.

    steps      user: o  a a  [end]   assistant: o  [action]  a a  [end]   user: o  a  [end]
    is_action        .  . .    .                .     .      x x    x           .  .    .

An item is drawn by a step: all are equally likely, or as weights say. If the tokens of its episode fit into `length`, it
is the whole episode; else it begins with that step, or with the first one from which the rest of the episode fits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from orlog.base.files import replace_file
from orlog.datasets.columns.vocabulary import OutsideVocabularyError, Vocabulary, read_vocabulary, train_vocabulary
from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError, StorageError
from orlog.loaders.arrays import Arrays, as_arrays, refuse_missing_finals
from orlog.loaders.batch import TokenBatch
from orlog.loaders.gathering import gather_rows
from orlog.loaders.statistics import returns_to_go
from orlog.loaders.streams import Batches, Sampler, StreamOptions, as_integer, takes_stream_options
from orlog.loaders.tensors import Tensor, torch
from orlog.loaders.weights import weighted

SPEAKER = "speaker"
"""The role of the column that says who acts in a step."""


class TokenSampler(Sampler):
    """Chooses stretches of episodes and gathers their tokens."""

    def __init__(
        self, arrays: Arrays, length: int, vocabulary: Vocabulary, *, discount: float = 1.0, speaker: str | None = None
    ) -> None:
        """Tokenize all texts, which takes 18 bytes a token afterwards."""
        super().__init__(arrays)
        self.length = length = as_integer("length", length, 2)
        if not 0 <= discount <= 1:
            raise ValueError(f"discount must lie in [0, 1], found {discount}.")
        self.kind = f"tokens 1 length={length} tokenizer={vocabulary.digest}"
        own = own_steps(arrays, speaker)
        if speaker is not None:
            self.kind += f" speaker={speaker}"
        self._returns = returns_to_go(arrays, discount)
        device = arrays.rows.device
        flat, first_tokens = _flat_tokens(arrays, vocabulary, own)
        self._ends = _ends_of(arrays, own)
        self._first_tokens = first_tokens  # of each row, and where all end
        padded = [np.concatenate([column, np.zeros(length, column.dtype)]) for column in flat]
        self._columns = [torch.from_numpy(column).to(device) for column in padded]
        self._first_rows = torch.from_numpy(arrays.first_rows).to(device)
        self._places = torch.arange(length, device=device)
        starts, ends = arrays.first_rows, first_tokens[arrays.final_rows + 1]
        # The last row of each episode where a stretch may begin.
        fits = np.searchsorted(first_tokens, ends - length)
        self._last_starts = np.clip(fits, starts, arrays.final_rows - 1)

    @functools.cached_property
    def _views(self) -> list[Tensor]:
        """Tokens, their rows, whether they are of actions, and whether the next one is for the agent to choose."""
        count = len(self._columns[0]) - self.length + 1
        return [column.as_strided((count, self.length), (1, 1)) for column in self._columns]

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items two"]:
        """Return for each item its first token and how many it has."""
        arrays = self.arrays
        steps = arrays.choose_steps(uniform)
        rows = arrays.step_table.take(steps)
        episodes = rows - steps
        rows = np.minimum(rows, np.take(self._last_starts, episodes))
        first = self._first_tokens[rows]
        count = self._first_tokens[arrays.final_rows[episodes] + 1] - first
        return torch.from_numpy(np.stack([first, np.minimum(count, self.length)]).T)

    def rows_of(self, chosen: Int64[Tensor, "items two"]) -> Int64[Tensor, "items length"]:
        """Return the row of the step of each token of some items."""
        first, count = chosen.unbind(1)
        rows = gather_rows(self._views[1], first)
        return rows.masked_fill_(self._places >= count[:, None], self.arrays.empty_row)

    def gather(self, chosen: Int64[Tensor, "items two"]) -> TokenBatch:
        """Return the tokens of some items."""
        first, count = chosen.unbind(1)
        tokens, rows, is_action, decides = (gather_rows(view, first) for view in self._views)
        valid = self._places < count[:, None]
        # Episodes follow one another, so the episode of its first token is that of an item.
        episodes = torch.searchsorted(self._first_rows, rows[:, 0].contiguous(), side="right") - 1
        is_action &= valid
        decides &= valid
        marks = is_action > decides  # the mark after what is said
        rewards, terminations = ends = torch.zeros((2, *rows.shape), dtype=self._ends.dtype, device=rows.device)
        ends[:, marks] = self._ends[rows[marks]].T
        return TokenBatch(
            tokens=tokens.long() * valid,
            valid=valid,
            is_action=is_action,
            decides=decides,
            rewards=rewards,
            returns_to_go=self._returns[rows].masked_fill_(~valid, 0),
            terminations=terminations,
            timesteps=(rows - self._first_rows[episodes][:, None]) * valid,
        )


def text_columns(arrays: Arrays) -> list[str]:
    """Return the columns of observations that are texts, in the order of their keys."""
    columns = [leaf.column for leaf in arrays.observation_leaves.values() if leaf.column in arrays.texts]
    actions = arrays.others.get("actions")
    if not columns or actions is None or actions.ndim > 1:
        what = "actions are neither texts nor numbers of choices" if columns else "observations are no texts"
        raise SchemaError(
            f"{arrays.name}: its {what}, so there are no token sequences; take transitions or "
            "sequences, which give numbers."
        )
    return columns


def parts_without_texts(arrays: Arrays) -> list[str]:
    """Return the keys of the parts of observations that token sequences leave out, since they are no texts."""
    leaves = arrays.observation_leaves.items()
    return [key for key, leaf in leaves if leaf.column not in arrays.texts]


def own_steps(arrays: Arrays, speaker: str | None) -> Bool[np.ndarray, " rows"]:
    """Return which rows are steps of a speaker; by default all steps."""
    own = np.ones(len(arrays.rows), np.bool_)
    if speaker is not None:
        leaf = None if arrays.infos is None else arrays.infos.observation_leaves.get(SPEAKER)
        if arrays.infos is None or leaf is None:
            raise ValueError(
                f"{arrays.name}: these arrays have no speakers; give the dataset, or read them with "
                f"infos=({SPEAKER!r},)."
            )
        speakers = arrays.infos.texts[leaf.column]
        is_said = arrays.infos.others[leaf.column].cpu().numpy()
        rows = arrays.step_rows()
        known = [speakers[place] for place in np.unique(is_said[rows]).tolist()]
        if speaker not in known:
            raise ValueError(
                f"{arrays.name}: no step is of the speaker {speaker!r}; speakers are {', '.join(map(repr, known))}."
            )
        own = is_said == speakers.index(speaker)
    own[arrays.final_rows] = False
    return own


def _ends_of(arrays: Arrays, own: Bool[np.ndarray, " rows"]) -> Float32[Tensor, "rows rewards_and_terminations"]:
    """Return reward and termination of each row: for a step of the agent also those of the others' after it."""
    ends = arrays.rows[:, -3:-1]
    steps, mine = arrays.step_rows(), np.flatnonzero(own)
    if len(mine) == len(steps):
        return ends
    before = np.searchsorted(mine, steps, "right") - 1
    starts = arrays.first_rows[np.searchsorted(arrays.first_rows, steps, "right") - 1]
    is_after = (before >= 0) & (mine[before] >= starts)
    sums = torch.zeros_like(ends)
    places = torch.from_numpy(mine[before[is_after]]).to(ends.device)
    sums.index_add_(0, places, ends[torch.from_numpy(steps[is_after]).to(ends.device)])
    return sums


def _flat_tokens(
    arrays: Arrays, vocabulary: Vocabulary, own: Bool[np.ndarray, " rows"]
) -> tuple[tuple[np.ndarray, ...], Int64[np.ndarray, " rows_and_one"]]:
    """Return the columns of all tokens, episode after episode, and the first token of each row."""
    is_step = np.ones(len(arrays.rows), np.bool_)
    is_step[arrays.final_rows] = False
    texts = [_encoded(arrays, vocabulary, column) for column in text_columns(arrays)]
    mark = _Pieces.of([[vocabulary.action]], np.zeros(len(is_step), np.int64))
    answers = _encoded(arrays, vocabulary, "actions", [vocabulary.end])
    pieces = [*texts, mark, answers]
    sizes = np.stack([piece.sizes for piece in pieces], 1)
    sizes[~is_step, -1] = 0
    sizes[is_step & ~own, -2] = 0
    ends = sizes.cumsum().reshape(sizes.shape)
    tokens = np.empty(int(ends[-1, -1]), np.int32)
    for number, piece in enumerate(pieces):
        count = sizes[:, number]
        places = _ranges(ends[:, number] - count, count)
        tokens[places] = piece.tokens[_ranges(piece.firsts, count)]
    is_action, decides = np.zeros((2, len(tokens)), np.bool_)
    decides[ends[own | ~is_step, -2] - 1] = True  # the mark
    said_at = _ranges(ends[own, -2], sizes[own, -1])  # after it, what is said
    is_action[said_at] = decides[said_at] = True
    decides[ends[own, -1] - 1] = False
    rows = np.repeat(np.arange(len(is_step)), sizes.sum(1))
    return (tokens, rows, is_action, decides), np.concatenate([[0], ends[:, -1]])


class _Pieces(NamedTuple):
    """One text of each row as tokens: in `tokens` from `firsts` on, `sizes` of them."""

    tokens: np.ndarray
    firsts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, codes: Sequence[Sequence[int]], places: np.ndarray) -> _Pieces:
        """Return them from the tokens of distinct texts and which of them each row has."""
        sizes = np.array([len(code) for code in codes])
        flat = np.fromiter(itertools.chain.from_iterable(codes), np.int32, int(sizes.sum()))
        return cls(flat, (sizes.cumsum() - sizes)[places], sizes[places])


def _ranges(firsts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return `first`, `first + 1`, .. of each range, one range after the other."""
    inside = np.arange(int(sizes.sum())) - np.repeat(sizes.cumsum() - sizes, sizes)
    ranges: np.ndarray = np.repeat(firsts, sizes) + inside
    return ranges


def _encoded(arrays: Arrays, vocabulary: Vocabulary, column: str, more: Sequence[int] = ()) -> _Pieces:
    """Return the tokens of the texts of a column, each followed by some more tokens."""
    texts, places = _texts(arrays, column)
    try:
        codes = vocabulary.encode(texts)
    except OutsideVocabularyError as error:
        row = int((places == error.place).argmax())
        episode = int(np.searchsorted(arrays.first_rows, row, "right")) - 1
        raise SchemaError(
            f"{arrays.name}: {column}, episode {episode}, step {row - int(arrays.first_rows[episode])}: "
            f"{error} is outside the vocabulary of the tokenizer, or one of its marks; train one on these texts "
            "(orlog.loaders.token_sequences.train_tokenizer), or leave the episode out (ds.filter_episodes)."
        ) from error
    return _Pieces.of([[*code, *more] for code in codes], places)


def _texts(arrays: Arrays, column: str) -> tuple[Sequence[str], Int64[np.ndarray, " rows"]]:
    """Return the distinct texts of a column, and the place of that of each row; numbers are texts of their digits."""
    values = arrays.others[column].cpu().numpy()
    if column in arrays.texts:
        return arrays.texts[column], values
    known, places = np.unique(values, return_inverse=True)
    return [str(number) for number in known.tolist()], places


def text_counts(arrays: Arrays) -> dict[str, int]:
    """Return how often each text of observations and actions occurs."""
    counts: dict[str, int] = {}
    for column in [*text_columns(arrays), "actions"]:
        texts, places = _texts(arrays, column)
        if column == "actions":  # rows of final observations have none
            places = places[arrays.step_rows()]
        for text, count in zip(texts, np.bincount(places, minlength=len(texts)).tolist(), strict=True):
            counts[text] = counts.get(text, 0) + count
    return counts


def spoken_tokens(arrays: Arrays, vocabulary: Vocabulary, speaker: str | None = None) -> tuple[int, ...]:
    """Return the tokens of the agent's actions, with the mark that ends them, in ascending order."""
    text_columns(arrays)
    answers = _encoded(arrays, vocabulary, "actions", [vocabulary.end])
    rows = np.flatnonzero(own_steps(arrays, speaker))
    tokens = answers.tokens[_ranges(answers.firsts[rows], answers.sizes[rows])]
    return tuple(np.unique(tokens).tolist())


def spoken_with(settings: Any, arrays: Arrays) -> tuple[int, ...]:
    """Return the tokens that the agent says, with the tokenizer and the speaker of settings."""
    return spoken_tokens(arrays, read_vocabulary(settings.tokenizer), settings.speaker)


@takes_stream_options
def token_sequences(
    data: Given | Arrays,
    batch_size: int = 32,
    *,
    seed: int,
    tokenizer: Any,
    length: int = 512,
    discount: float = 1.0,
    speaker: str | None = None,
    **stream: Unpack[StreamOptions],
) -> Batches[TokenBatch]:
    """Return an endless stream of random stretches of episodes as tokens, with replacement.

    Observations that are texts, and actions, are tokenized in turn as the module's docstring shows; actions may be
    numbers of choices (Discrete) too. If an observation has several texts, they follow one another in the order of their keys, and its other parts are left out. Infos are
    given at each token of their step.

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Stretches in a batch.
        tokenizer: The path of a `tokenizer.json`, or a `tokenizers.Tokenizer`, with the tokens `[action]` and
            `[end]`; `train_tokenizer` makes one of a dataset's own texts.
        length: Tokens of a stretch.
        discount: Discount of a step in `returns_to_go`.
        speaker: Whose actions are the agent's, as the column with the role `speaker` names them, such as "assistant"; by
            default all are.

    Raises:
        SchemaError: observations are no texts, or actions neither texts nor numbers of choices; a text is outside the vocabulary, with its episode and
            step; the tokenizer lacks a mark.
        NotFoundError: there is no such tokenizer; no column says who speaks, and a speaker is given.
        ValueError: no step is of the speaker.
        ManifestError: the file is no tokenizer.
        MissingExtraError: the library tokenizers is not installed.
    """
    vocabulary = read_vocabulary(tokenizer)
    infos = stream.get("infos", ())
    arrays = as_arrays(data, infos if speaker is None else tuple({*infos, SPEAKER}))
    refuse_missing_finals(arrays, "its text")
    if speaker is not None:
        own = own_steps(arrays, speaker)
        arrays = weighted(arrays, own[arrays.step_rows()].astype(np.float64))
    sampler = TokenSampler(arrays, length, vocabulary, discount=discount, speaker=speaker)
    return Batches(sampler, arrays.digest, batch_size=batch_size, seed=seed, **stream)


def train_tokenizer(data: Given | Arrays, path: str | Path, *, size: int = 1536) -> Path:
    """Train a tokenizer on the texts of a dataset, and write it as a `tokenizer.json`; equal data give an equal file.

    Args:
        data: Whose observations and actions.
        path: File to write.
        size: Tokens at most, 258 or more: all 256 bytes, the two marks, and phrases.

    Raises:
        SchemaError: observations or actions are no texts.
        StorageError: the file cannot be written.
        MissingExtraError: the library tokenizers is not installed.
        ValueError: the size is below 258.
    """
    vocabulary = train_vocabulary(text_counts(as_arrays(data)), size)
    path = Path(path).expanduser()
    try:
        replace_file(path, vocabulary.text.encode())
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write the tokenizer: {error.strerror or error}.", errno=error.errno
        ) from error
    return path
