"""Tokenizers of the `tokenizers` library: read from a file or trained on texts, and told apart by their digest.

A tokenizer used here has two tokens of its own, which no text contains:

    [action]    an observation ends, and what the agent says begins
    [end]       what the agent says ends

The digest is the SHA-256 of the JSON that `Tokenizer.to_str()` gives or that the file has. One that this process has read
or trained is found again by its digest, as runs name it.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orlog.errors import ManifestError, NotFoundError, SchemaError, clause, needing, wrong_type

ACTION, END = "[action]", "[end]"
MARKS = (ACTION, END)
_SENTENCE = r"[^\n.!?]*[\n.!?]*"
_known: dict[str, Vocabulary] = {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Vocabulary:
    """A tokenizer and its digest.

    Attributes:
        text: Its JSON.
        digest: `sha256:` and the digest of the JSON.
        size: Number of tokens.
        action: The token that begins what the agent says.
        end: The token that ends it.
    """

    text: str
    digest: str
    size: int
    action: int
    end: int
    _tokenizer: Any

    def __repr__(self) -> str:
        """Return its size and digest."""
        return f"Vocabulary of {self.size} tokens, {self.digest[:19]}"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts.

        Raises OutsideVocabularyError for the first text of which something is no token, or a mark.
        """
        texts = list(texts)
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        refused = {self.action, self.end} | {self._tokenizer.token_to_id(unknown or "")}
        try:
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception:  # the library raises plain ones, some models where they lack a token for what is unknown
            for place, text in enumerate(texts):
                try:
                    self._tokenizer.encode(text, add_special_tokens=False)
                except Exception as error:
                    raise OutsideVocabularyError(place, text, 0, len(text)) from error
            raise
        for place, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            for token, span in zip(encoding.ids, encoding.offsets, strict=True):
                if token in refused:
                    raise OutsideVocabularyError(place, text, *span)
            left = _left_out(text, encoding.offsets)
            if left is not None:
                raise OutsideVocabularyError(place, text, left, left + 1)
        return [encoding.ids for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; marks are left out."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class OutsideVocabularyError(ValueError):
    """A text has something that is no token.

    Attributes:
        place: Which of the texts.
        what: What of it.
    """

    def __init__(self, place: int, text: str, first: int, last: int) -> None:
        self.place, self.what = place, text[first:last]
        super().__init__(f"{self.what!r:.80} in {text!r:.80}")


def _left_out(text: str, offsets: Sequence[tuple[int, int]]) -> int | None:
    """Return the first character that is in no token and no space: tokenizers leave out what they do not know."""
    if sum(last - first for first, last in offsets) >= len(text):
        return None
    inside = {place for first, last in offsets for place in range(first, last)}
    places = (n for n, letter in enumerate(text) if n not in inside and not letter.isspace())
    return next(places, None)


def read_vocabulary(tokenizer: Any) -> Vocabulary:
    """Return a tokenizer: the path of its JSON file, a `tokenizers.Tokenizer`, a `Vocabulary`, or a digest.

    A digest finds one that this process has read before.

    Raises NotFoundError if there is no such file or digest; ManifestError if the file is no tokenizer; SchemaError
    if it lacks one of the marks; MissingExtraError where the library is not installed.
    """
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    if isinstance(tokenizer, str) and tokenizer.startswith("sha256:"):
        if tokenizer not in _known:
            raise NotFoundError(
                f"no tokenizer {tokenizer[:19]}.. was read before; name its file, such as the tokenizer.json in "
                "the folder of a run."
            )
        return _known[tokenizer]
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer).expanduser()
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise NotFoundError(
                f"{path}: no tokenizer there ({error.strerror}); give the path of a tokenizer.json of the "
                "tokenizers library."
            ) from error
        except UnicodeDecodeError as error:
            raise ManifestError(f"{path}: it is no text, so no tokenizer.", file=str(path)) from error
        return _vocabulary(text, str(path))
    if not hasattr(tokenizer, "to_str"):
        expected = "the path of a tokenizer.json or a tokenizers.Tokenizer"
        raise wrong_type("tokenizer", expected, tokenizer)
    return _vocabulary(tokenizer.to_str(), "this tokenizer")


def _vocabulary(text: str, where: str) -> Vocabulary:
    """Return the tokenizer of a JSON text, and keep it under its digest."""
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    if digest in _known:
        return _known[digest]
    library = _library()
    try:
        made = library.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain ones
        raise ManifestError(
            f"{where}: it is no tokenizer that the tokenizers library reads: {clause(error)!s:.200}.", file=where
        ) from error
    made.no_padding()
    made.no_truncation()
    marks = [made.token_to_id(mark) for mark in MARKS]
    if None in marks:
        raise SchemaError(
            f"{where}: it has no token {MARKS[marks.index(None)]}, which tells what the agent says from what it is "
            f"told; add both: tokenizer.add_special_tokens({list(MARKS)}), and save it."
        )
    action, end = marks
    size = made.get_vocab_size(with_added_tokens=True)
    _known[digest] = Vocabulary(text=text, digest=digest, size=size, action=action, end=end, _tokenizer=made)
    return _known[digest]


def train_vocabulary(texts: Mapping[str, int] | Iterable[str], size: int) -> Vocabulary:
    """Return a tokenizer trained on texts, the same one for equal texts in any order.

    It joins pairs of bytes, across words but not across sentences and lines: what is often said becomes one token, which
    makes sequences short. All 256 bytes are tokens, so that no text is outside of it.

    Args:
        texts: How often each text occurs; or texts, each of which counts as often as it is there.
        size: Tokens at most, 258 or more.

    Raises ValueError if size is below 258; MissingExtraError where the library is not installed.
    """
    library = _library()
    from tokenizers import decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    least = len(alphabet) + len(MARKS)
    if size < least:
        raise ValueError(f"a vocabulary needs {least} tokens or more, found {size}.")
    made = library.Tokenizer(models.BPE())
    by_sentence = pre_tokenizers.Split(library.Regex(_SENTENCE), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([by_sentence, to_bytes])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(MARKS), initial_alphabet=sorted(alphabet), show_progress=False
    )
    counts = collections.Counter(texts)
    ordered = (text for text in sorted(counts) for _ in range(counts[text]))
    made.train_from_iterator(ordered, trainer)
    return _vocabulary(made.to_str(), "the trained tokenizer")


def _library() -> Any:
    with needing("texts need the package tokenizers", "orlog[words]"):
        import tokenizers
    return tokenizers
