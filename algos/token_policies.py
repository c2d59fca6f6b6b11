"""What policies of words share: a transformer of tokens, and how it speaks.

    context   what was told and said in the last steps of the episode, as `orlog.token_sequences` has it: o o [action] a [end] ..
    answer    token after token from what `next_scores` of the algorithm gives, up to the mark [end]

Before the first token, steps are forgotten, the oldest first, until the context and the longest answer fit into
`length` tokens. Only tokens that the data's agents say are scored and said. They are drawn in proportion to exp(score
/ sampling_temperature), by a generator whose stream is always the same; at a temperature of 0 the best one is taken.
Where actions are numbers of choices (a Discrete space), only what may become the number of one is said.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from gymnasium.spaces import Discrete
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn
from torch.nn import functional

from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import parameters_of
from orlog.algos.settings import Count, Natural, NotNegative, Positive
from orlog.algos.transformer import CausalTransformer, make_linear, recency
from orlog.datasets.columns.vocabulary import OutsideVocabularyError, read_vocabulary
from orlog.errors import SchemaError
from orlog.loaders.batch import TokenBatch


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a transformer of tokens, and of how it speaks."""

    tokenizer: str | None = None
    """Path of a tokenizer.json; by default one that is trained on the texts of the dataset. Runs name its digest."""
    vocabulary: Count = 1536
    """Tokens at most of a tokenizer that is trained."""
    spoken: tuple[Natural, ...] | None = None
    """Tokens that may be said; by default those of the actions of the dataset."""
    speaker: str | None = None
    """Whose actions are the agent's, where a column has the role `speaker`; by default all are."""
    length: Count = 512
    """Tokens that it sees at once."""
    width: Count = 64
    """Width of the embedding; hidden layers are four times as wide."""
    layers: Count = 2
    """Layers of attention."""
    heads: Count = 4
    """Heads of attention, a divisor of `width`."""
    longest_answer: Count = 16
    """Tokens of an answer, at most."""
    sampling_temperature: NotNegative = 1.0
    """How much chance decides what is said; 0 for none."""
    learning_rate: Positive = 1e-4
    """Step size of AdamW."""
    weight_decay: NotNegative = 0.01
    """Weight decay of AdamW."""
    batch_size: Count = 64
    """Sequences in a batch."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, found {self.width} and {self.heads}.")
        if self.longest_answer > self.length - 2:
            raise ValueError(
                f"length must be 2 or more above longest_answer, found {self.length} and {self.longest_answer}."
            )


def token_sequences_of(config: TokenSettings) -> tuple[str, dict[str, Any]]:
    """Return the loader of batches of token sequences."""
    infos = {} if config.speaker is None else {"infos": ("speaker",), "speaker": config.speaker}
    arguments = {"batch_size": config.batch_size, "length": config.length, "tokenizer": config.tokenizer, **infos}
    return "orlog.loaders.token_sequences:token_sequences", arguments


def speak_at_once(self: Any, observations: Any) -> list[str] | Int64[Tensor, " batch"]:
    """Return what is said at the first steps of episodes."""
    texts = observations if isinstance(observations, list) else next(iter(observations.values()))
    answers: list[str] | Tensor = self.actor(len(texts)).act(observations)
    return answers


class TokenTransformer(nn.Module):
    """Tokens -> a vector for each, which depends on it and on those before, more on later ones (`recency`)."""

    def __init__(self, config: TokenSettings, tokens: int, *, generator: torch.Generator) -> None:
        super().__init__()
        device = generator.device
        embedded = torch.empty(tokens, config.width, device=device)
        self.tokens = nn.Parameter(embedded.normal_(0, 0.02, generator=generator))
        self.heads = config.heads
        self.layers = CausalTransformer(config.width, config.layers, config.heads, generator=generator)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> Float32[Tensor, "batch length width"]:
        """Return the vectors."""
        values = functional.embedding(tokens, self.tokens)
        bias = recency(self.heads, tokens.shape[1], tokens.device)
        vectors: Tensor = self.layers(values, bias=bias)
        return vectors


class LanguageModel(nn.Module):
    """A transformer of tokens with a last layer, which gives a score to each token that may be said next."""

    def __init__(self, config: TokenSettings, words: Words, *, generator: torch.Generator) -> None:
        super().__init__()
        self.body = TokenTransformer(config, words.vocabulary.size, generator=generator)
        self.head = make_linear(config.width, len(words.spoken), generator=generator)


class Words:
    """The tokens that may be said, as numbers from 0 on.

    Attributes:
        vocabulary: All tokens.
        spoken: Those that may be said, [spoken].
        places: For each token which of these it is, 0 for others, [tokens].
    """

    def __init__(self, config: TokenSettings, device: str) -> None:
        """Read the tokenizer that a configuration names.

        Raises ValueError if it names none: a run trains one where none is given.
        """
        if config.tokenizer is None or config.spoken is None:
            raise ValueError("tokenizer and spoken must be set where no data set them.")
        self.vocabulary = read_vocabulary(config.tokenizer)
        self.spoken = torch.tensor(config.spoken, dtype=torch.int64, device=device)
        self.places = torch.zeros(self.vocabulary.size, dtype=torch.int64, device=device)
        self.places[self.spoken] = torch.arange(len(self.spoken), device=device)


def cloning_loss(scores: Float[Tensor, "said tokens"], labels: Int64[Tensor, " said"]) -> Float[Tensor, ""]:
    """Return the mean negative log-likelihood of what was said, token by token."""
    return functional.cross_entropy(scores, labels)


def said_after(
    hidden: Float32[Tensor, "batch length width"], batch: TokenBatch, words: Words
) -> tuple[Float32[Tensor, "said width"], Int64[Tensor, " said"]]:
    """Return the vectors after which the agent's own tokens follow, and which of the spoken ones these are."""
    is_next = batch.is_action[:, 1:]
    return hidden[:, :-1][is_next], words.places[batch.tokens[:, 1:][is_next]]


def trimmed(batch: TokenBatch) -> TokenBatch:
    """Return a batch without the places at its end where no sequence has a token."""
    longest = int(batch.valid.sum(1).max())
    return batch.map(lambda tensor: tensor[:, :longest] if tensor.ndim > 1 else tensor)


def decayed(config: TokenSettings, *networks: nn.Module) -> torch.optim.AdamW:
    """Return AdamW for networks."""
    parameters = parameters_of(*networks)
    return torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay, fused=True)


class Speaking(Protocol):
    """An algorithm whose actions are texts."""

    config: Any
    scaling: Scaling
    words: Words

    def next_scores(
        self, tokens: Int64[Tensor, "batch length"], last: Int64[Tensor, " batch"]
    ) -> Float32[Tensor, "batch spoken"]:
        """Return the scores of what may be said after the place `last` of each sequence, as log-likelihoods are."""


class Speaker:
    """Speaks in several environments, each with the context of its own episode."""

    def __init__(self, algorithm: Speaking, environments: int) -> None:
        self.algorithm, self.config = algorithm, algorithm.config
        self.vocabulary = algorithm.words.vocabulary
        self.device = algorithm.scaling.obs_mean.device
        self.generator = make_generator(0, 2)  # always the same stream, on any device
        self.choices = _choices(algorithm)
        self.steps: list[list[list[int]]] = [[] for _ in range(environments)]
        self._encoded: dict[str, list[int]] = {}

    def begin(self, which: Bool[Tensor, " environments"]) -> None:
        """Forget the episodes of some environments."""
        for number in torch.nonzero(which).flatten().tolist():
            self.steps[number] = []

    @torch.no_grad()
    def act(self, observations: Any) -> list[str] | Int64[Tensor, " environments"]:
        """Return what to say in each environment; the numbers of choices where actions are such."""
        config, vocabulary = self.config, self.vocabulary
        for steps, observed in zip(self.steps, self._told(observations), strict=True):
            room = config.length - config.longest_answer
            steps.append([*observed[: room - 1], vocabulary.action])
            while sum(map(len, steps)) > room:
                del steps[0]
        contexts = [[token for step in steps for token in step] for steps in self.steps]
        codes: list[list[int]] = [[] for _ in contexts]
        speaking = [*range(len(contexts))]
        while speaking:
            may_follow = [self._may_follow(codes[row]) for row in speaking]
            tokens = self._next([contexts[row] + codes[row] for row in speaking], may_follow)
            for row, token in zip(speaking, tokens, strict=True):
                codes[row].append(token)
            speaking = [
                row for row in speaking if codes[row][-1] != vocabulary.end and len(codes[row]) < config.longest_answer
            ]
        for steps, words in zip(self.steps, codes, strict=True):
            steps[-1] += words
        if self.choices:
            return torch.tensor([self.choices[tuple(words)] for words in codes], device=self.device)
        space = self.algorithm.scaling.action_space
        return [_inside(space, vocabulary.decode(words)) for words in codes]

    def reward(self, rewards: Float32[Tensor, " batch"]) -> None:
        """Take note of nothing: what is said does not depend on rewards."""

    def _may_follow(self, answer: list[int]) -> list[int]:
        """Return the tokens that may follow in an answer, in any order and perhaps twice; none if all may."""
        begun = len(answer)
        return [choice[begun] for choice in self.choices if list(choice[:begun]) == answer]

    def _next(self, sequences: list[list[int]], may_follow: list[list[int]]) -> list[int]:
        """Return the token that comes after each sequence: one of those that may follow."""
        sizes = torch.tensor([len(sequence) for sequence in sequences])
        padded = torch.zeros(len(sequences), int(sizes.max()), dtype=torch.int64)
        for row, sequence in zip(padded, sequences, strict=True):
            row[: len(sequence)] = torch.tensor(sequence)
        padded, last = padded.to(self.device), (sizes - 1).to(self.device)
        scores = self.algorithm.next_scores(padded, last).cpu().double()
        for row, tokens in zip(scores, may_follow, strict=True):
            if tokens:
                others = torch.ones(len(row), dtype=torch.bool)
                others[self.algorithm.words.places.cpu()[tokens]] = False
                row[others] = -torch.inf
        if self.config.sampling_temperature:
            up_to = (scores / self.config.sampling_temperature).softmax(-1).cumsum(-1)
            drawn = torch.rand(len(scores), 1, generator=self.generator, dtype=torch.float64)
            best = torch.searchsorted(up_to, drawn * up_to[:, -1:]).flatten()
        else:
            best = scores.argmax(-1)
        chosen: list[int] = self.algorithm.words.spoken[best.to(self.device)].tolist()
        return chosen

    def _told(self, observations: Any) -> list[list[int]]:
        """Return the tokens of each observation: of its texts, in the order of their keys."""
        texts = (
            observations
            if isinstance(observations, list)
            else [value for value in observations.values() if isinstance(value, list)]
        )
        columns = [texts] if isinstance(observations, list) else texts
        new = [text for text in dict.fromkeys(np.ravel(columns).tolist()) if text not in self._encoded]
        try:
            self._encoded |= dict(zip(new, self.vocabulary.encode(new), strict=True))
        except OutsideVocabularyError as error:
            raise SchemaError(
                f"the environment says {error}, which is outside the vocabulary of the run's tokenizer, or one "
                "of its marks; train with a tokenizer that has all bytes, as the one that runs train."
            ) from error
        return [[token for text in of_one for token in self._encoded[text]] for of_one in zip(*columns, strict=True)]


def _choices(algorithm: Speaking) -> dict[tuple[int, ...], int]:
    """Return what is said for each choice of a Discrete space that the data's agents took; nothing for other spaces."""
    space, words = algorithm.scaling.action_space, algorithm.words
    if not isinstance(space, Discrete):
        return {}
    numbers = range(int(space.start), int(space.start + space.n))
    codes = words.vocabulary.encode([str(number) for number in numbers])
    answers = {(*tokens, words.vocabulary.end): number for number, tokens in zip(numbers, codes, strict=True)}
    spoken, longest = {*words.spoken.tolist()}, algorithm.config.longest_answer
    possible = {tokens: number for tokens, number in answers.items() if spoken.issuperset(tokens)}
    if any(len(tokens) > longest for tokens in possible):
        raise ValueError(
            f"longest_answer must be {max(map(len, possible))} or more, which some choices take; found {longest}."
        )
    return possible


def _inside(space: Any, text: str) -> str:
    """Return a text without characters that a space does not have, and no longer than it may be there."""
    known: str = "".join(character for character in text if character in space.character_set)
    return known[: space.max_length]


def of_last(
    values: Float32[Tensor, "batch length more"], last: Int64[Tensor, " batch"]
) -> Float32[Tensor, "batch more"]:
    """Return the vector at one place of each sequence."""
    return values[torch.arange(len(last), device=last.device), last]
