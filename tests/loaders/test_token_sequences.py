"""Token sequences, against a slow loop over the texts of episodes."""

import dataclasses
import json
import string

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.columns.vocabulary import read_vocabulary, train_vocabulary
from orlog.errors import ManifestError, NotFoundError, SchemaError
from orlog.loaders.arrays import Arrays, Leaf, read_arrays
from orlog.loaders.best_episodes import best_token_sequences
from orlog.loaders.token_sequences import TokenSampler, spoken_tokens, text_counts, train_tokenizer
from tests.batches import columns
from tests.levels import scaled

tokenizers = pytest.importorskip("tokenizers")

WORDS = st.sampled_from(["go", "go east", "", "a room.\nA door!", "you won?", "ä"])
STEPS = st.lists(st.tuples(WORDS, WORDS, st.integers(-2, 2)), min_size=1, max_size=6)
EPISODES = st.lists(st.tuples(STEPS, WORDS, st.booleans()), min_size=1, max_size=5)
VOCABULARY = train_vocabulary(["go east", "go east", "a room.\nA door!", "go"] * 3, 270)


def arrays_of(episodes):
    """Return arrays of observations and actions that are texts."""
    told = {}
    said = {}
    rows, observed, acted = [], [], []
    for steps, last, ends in episodes:
        for number, (observation, action, reward) in enumerate(steps):
            is_last = number == len(steps) - 1
            rows.append([reward, is_last and ends, is_last and not ends])
            observed.append(told.setdefault(observation, len(told)))
            acted.append(said.setdefault(action, len(said)))
        rows.append([0, 0, 0])
        observed.append(told.setdefault(last, len(told)))
        acted.append(0)
    return Arrays(
        rows=torch.tensor(rows, dtype=torch.float32),
        lengths=np.array([len(steps) for steps, _, _ in episodes]),
        obs_dim=0,
        action_dim=0,
        others={"observations": torch.tensor(observed), "actions": torch.tensor(acted)},
        texts={"observations": tuple(told), "actions": tuple(said)},
        observation_leaves={"": Leaf(column="observations")},
        name="lab/told-v1",
        digest="sha256:0",
    )


def slow_tokens(episode, words, own=None):
    """Return what each token of an episode is, a step after the other; `own` says which steps are the agent's."""
    steps, last, ends = episode
    own = [True] * len(steps) if own is None else own
    found = []

    def add(tokens, step, to_go, **more):
        nothing = {"is_action": False, "decides": False, "rewards": 0.0, "terminations": 0.0}
        common = {**nothing, "timesteps": step, "returns_to_go": to_go, **more}
        found.extend({**common, "tokens": token} for token in tokens)

    for number, (observation, action, _) in enumerate(steps):
        to_go = float(sum(one[2] for one in steps[number:]))
        told, said = words.encode([observation, action])
        add(told, number, to_go)
        if not own[number]:
            add([*said, words.end], number, to_go)
            continue
        add([words.action], number, to_go, decides=True)
        add(said, number, to_go, is_action=True, decides=True)
        until = next((n for n in range(number + 1, len(steps)) if own[n]), len(steps))
        of_agent = float(sum(one[2] for one in steps[number:until]))
        ended = float(ends and until == len(steps))
        add([words.end], number, to_go, is_action=True, rewards=of_agent, terminations=ended)
    add(words.encode([last])[0], len(steps), 0.0)
    add([words.action], len(steps), 0.0, decides=True)
    return found


@settings(max_examples=scaled(120), deadline=None)
@given(EPISODES, st.integers(2, 40), st.integers(0, 99))
def test_every_item_is_what_a_slow_loop_finds(episodes, length, seed):
    sampler = TokenSampler(arrays_of(episodes), length, VOCABULARY)
    uniform = np.random.default_rng(seed).random((9, 1))
    chosen = sampler.choose(uniform)
    batch = sampler.gather(chosen)
    counts = [len(steps) for steps, _, _ in episodes]
    for item, drawn in enumerate(uniform[:, 0].tolist()):
        step = int(drawn * sum(counts))
        episode = next(n for n in range(len(counts)) if step < sum(counts[: n + 1]))
        step -= sum(counts[:episode])
        tokens = slow_tokens(episodes[episode], VOCABULARY)
        starts = [next(n for n, one in enumerate(tokens) if one["timesteps"] == t) for t in range(counts[episode])]
        # The drawn step, or the first one from which the rest fits, if that is earlier.
        fitting = [one for one in starts if len(tokens) - one <= length]
        start = min([starts[step], *fitting])
        expected = tokens[start : start + length]
        assert int(batch.valid[item].sum()) == len(expected)
        assert bool(batch.valid[item, : len(expected)].all())
        for name in columns(batch):
            if name == "valid":
                continue
            values = getattr(batch, name)[item].tolist()
            assert values == [*(one[name] for one in expected), *[0] * (length - len(expected))], name


@settings(max_examples=scaled(80), deadline=None)
@given(EPISODES, st.lists(st.booleans(), min_size=30, max_size=30))
def test_what_other_speakers_say_is_told_and_what_comes_of_it_is_the_agents(episodes, of_agent):
    arrays = arrays_of(episodes)
    said_by = torch.zeros(len(arrays.rows), dtype=torch.int64)
    rows = arrays.step_rows()
    own = [*of_agent[: len(rows) - 1], True]
    said_by[torch.from_numpy(rows)] = torch.tensor(own).long()
    arrays = spoken_by(arrays, said_by, ("user", "assistant"))
    sampler = TokenSampler(arrays, 400, VOCABULARY, speaker="assistant")
    for number, episode in enumerate(episodes):
        first = int(arrays.lengths[:number].sum())
        middle = (first + 0.5) / len(rows)
        batch = sampler.gather(sampler.choose(np.array([[middle]])))
        expected = slow_tokens(episode, VOCABULARY, own[first : first + len(episode[0])])
        for name in columns(batch):
            if name != "valid":
                values = getattr(batch, name)[0, : len(expected)].tolist()
                assert values == [one[name] for one in expected], name
        assert int(batch.valid.sum()) == len(expected)
    tokens = {
        one["tokens"]
        for number, episode in enumerate(episodes)
        for one in slow_tokens(episode, VOCABULARY, own[int(arrays.lengths[:number].sum()) :][: len(episode[0])])
        if one["is_action"]
    }
    assert spoken_tokens(arrays, VOCABULARY, "assistant") == tuple(sorted(tokens))


def spoken_by(arrays, said_by, speakers):
    """Return arrays with the speaker of each row."""
    infos = dataclasses.replace(
        arrays,
        others={"infos/by": said_by},
        texts={"infos/by": speakers},
        observation_leaves={"speaker": Leaf(column="infos/by")},
    )
    return dataclasses.replace(arrays, infos=infos)


def test_only_steps_of_the_speaker_are_drawn_and_one_that_is_not_there_is_named(tmp_path):
    text = spaces.Text(80, min_length=0, charset=string.printable)
    roles = {"infos/by": "speaker"}
    with orlog.DatasetWriter("lab/talk-v1", observation_space=text, action_space=text, roles=roles) as writer:
        writer.add_steps(
            observations=[""] * 5,
            actions=["Hello.", "How are you?", "Well.", "Bye."],
            rewards=np.array([0.0, 0.0, 1.0, 2.0]),
            terminations=np.array([False] * 3 + [True]),
            truncations=np.zeros(4, bool),
            infos={"by": ["user", "assistant", "user", "user"]},
        )
        writer.end_episode()
    options = {"seed": 0, "tokenizer": VOCABULARY, "length": 16}
    batch = orlog.token_sequences("lab/talk-v1", 64, speaker="assistant", **options).batch(0)
    assert batch.is_action.any(1).all()  # so each begins with the assistant's step or before
    assert set(batch.timesteps[batch.is_action].tolist()) == {1}
    last = batch.is_action & ~batch.decides
    whole = orlog.token_sequences("lab/talk-v1", 8, speaker="assistant", **{**options, "length": 99})
    (rewards,) = set(whole.batch(0).rewards.sum(1).tolist())
    assert rewards == 3.0
    assert set(whole.batch(0).terminations.sum(1).tolist()) == {1.0}
    assert not batch.rewards[~last].any()
    with pytest.raises(
        ValueError, match=r"lab/talk-v1: no step is of the speaker 'agent'; speakers are 'user', 'assistant'"
    ):
        orlog.token_sequences("lab/talk-v1", 4, speaker="agent", **options)
    record("lab/told-v1")
    with pytest.raises(NotFoundError, match="no column with the role speaker"):
        orlog.token_sequences("lab/told-v1", 4, speaker="assistant", **options)
    with pytest.raises(ValueError, match=r"have no speakers; give the dataset, or read them with infos="):
        TokenSampler(read_arrays(orlog.load_dataset("lab/told-v1")), 16, VOCABULARY, speaker="a")
    run = orlog.train(
        "percent_bc",
        "lab/talk-v1",
        steps=2,
        evaluations=0,
        out=tmp_path / "run",
        settings={"speaker": "assistant", "width": 8, "layers": 1, "heads": 2, "vocabulary": 270},
    )
    vocabulary = read_vocabulary(run.record.config["tokenizer"])
    said = {*vocabulary.encode(["How are you?"])[0], vocabulary.end}
    assert {*run.record.config["spoken"]} == said


def record(name, said=("go 0", "go 1", "go 2")):
    """Record an episode of three steps for each text, which the agent says in all of them."""
    text = spaces.Text(80, min_length=0, charset=string.printable)
    with orlog.DatasetWriter(name, observation_space=text, action_space=text) as writer:
        for episode, one in enumerate(said):
            writer.add_steps(
                observations=[f"You are in room {room}." for room in range(4)],
                actions=[one] * 3,
                rewards=np.full(3, float(episode)),
                terminations=np.array([False, False, True]),
                truncations=np.zeros(3, bool),
                infos={"cost": np.arange(3.0)},
            )
            writer.end_episode()
    return orlog.load_dataset(name)


def test_a_dataset_trains_its_tokenizer_and_is_sampled_with_it(tmp_path):
    games = record("lab/told-v1")
    path = train_tokenizer(games, tmp_path / "tokenizer.json", size=300)
    again = train_tokenizer(games, tmp_path / "again.json", size=300)
    assert path.read_bytes() == again.read_bytes()
    one, other = (
        orlog.token_sequences(games, 4, seed=0, tokenizer=given, length=64, infos=("cost",))
        for given in (str(path), tokenizers.Tokenizer.from_file(str(path)))
    )
    batch = one.batch(3)
    assert torch.equal(batch.tokens, other.batch(3).tokens)
    assert batch.tokens.shape == batch.infos["cost"].shape == (4, 64)
    said = batch.is_action
    assert torch.equal(batch.infos["cost"][said], batch.timesteps[said].float())
    assert not batch.infos["cost"][~batch.valid].any()
    words = read_vocabulary(path)
    assert words.decode(batch.tokens[0][said[0]].tolist())[:3] == "go "
    again_at = orlog.token_sequences(games, 4, seed=0, tokenizer=path, length=64, start=3)
    assert torch.equal(next(iter(again_at)).tokens, batch.tokens)


def test_only_the_best_episodes_are_drawn_and_only_what_is_said_is_spoken():
    arrays = read_arrays(record("lab/told-v1"))
    words = train_vocabulary(text_counts(arrays), 300)
    best = best_token_sequences(arrays, 64, seed=0, percent=30, tokenizer=words, length=64)
    (expected,) = words.encode(["go 2"])
    batch = best.batch(0)
    assert {tuple(row[is_on].tolist()) for row, is_on in zip(batch.tokens, batch.is_action, strict=True)} == {
        (*expected, words.end) * 3
    }
    said = {token for one in words.encode(["go 0", "go 1", "go 2"]) for token in one}
    assert spoken_tokens(arrays, words) == tuple(sorted({*said, words.end}))


def test_a_tokenizer_is_the_same_for_equal_texts_in_any_order_and_knows_all_bytes():
    one = train_vocabulary(["go east", "look", "go east"], 262)
    assert one is train_vocabulary({"look": 1, "go east": 2}, 262) is read_vocabulary(one.digest)
    texts = ["Größe 你好\n\t!", ""]
    assert [one.decode(tokens) for tokens in one.encode(texts)] == texts
    with pytest.raises(ValueError, match="a vocabulary needs 258 tokens or more, found 257"):
        train_vocabulary(["a"], 257)


def of_words(*known, unknown):
    """Return a tokenizer that knows some words."""
    names = ["[action]", "[end]", *known, *(["[unk]"] if unknown else [])]
    model = tokenizers.models.WordLevel(
        {name: number for number, name in enumerate(names)}, unk_token="[unk]" if unknown else None
    )
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(names[:2])
    return made


@pytest.mark.parametrize("unknown", [True, False])
def test_a_text_outside_the_vocabulary_names_dataset_episode_and_step(unknown):
    games = record("lab/told-v1", said=("go", "go", "jump"))
    known = ["go", "You", "are", "in", "room", ".", "0", "1", "2", "3"]
    words = of_words(*known, unknown=unknown)
    with pytest.raises(SchemaError, match=r"^lab/told-v1: actions, episode 2, step 0: 'jump' in 'jump'"):
        orlog.token_sequences(games, 4, seed=0, tokenizer=words)
    lacking = of_words(*known[:-1], unknown=unknown)
    with pytest.raises(SchemaError, match=r"^lab/told-v1: observations, episode 0, step 3: '.*3.*' in "):
        orlog.token_sequences(games, 4, seed=0, tokenizer=lacking)
    good = orlog.token_sequences(games[:2], 4, seed=0, tokenizer=words, length=64).batch(0)
    assert int(good.is_action.sum()) == 4 * 6


def test_a_text_that_has_a_mark_is_refused():
    games = record("lab/told-v1", said=("go [end]",))
    words = train_vocabulary(["go"], 260)
    with pytest.raises(SchemaError, match=r"episode 0, step 0: '\[end\]' in 'go \[end\]' is outside"):
        orlog.token_sequences(games, 4, seed=0, tokenizer=words)


def test_what_is_no_tokenizer_is_refused(tmp_path):
    games = record("lab/told-v1")

    def sample(tokenizer, **more):
        orlog.token_sequences(games, 4, seed=0, tokenizer=tokenizer, **more)

    with pytest.raises(NotFoundError, match=r"none\.json: no tokenizer there"):
        sample(tmp_path / "none.json")
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(ManifestError, match=r"other\.json: it is no tokenizer"):
        sample(tmp_path / "other.json")
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"go": 0}))
    with pytest.raises(SchemaError, match=r"no token \[action\].*add_special_tokens"):
        sample(plain)
    with pytest.raises(NotFoundError, match="no tokenizer sha256:12"):
        sample("sha256:12")
    with pytest.raises(TypeError, match="found int"):
        sample(3)
    with pytest.raises(ValueError, match="length must be >= 2"):
        sample(VOCABULARY, length=1)
    box = spaces.Box(-1, 1, (2,), np.float32)
    with orlog.DatasetWriter("lab/box-v1", observation_space=box, action_space=box) as writer:
        writer.add_steps(
            observations=np.zeros((2, 2), np.float32),
            actions=np.zeros((1, 2), np.float32),
            rewards=np.zeros(1),
            terminations=np.ones(1, bool),
            truncations=np.zeros(1, bool),
        )
        writer.end_episode()
    with pytest.raises(SchemaError, match="its observations are no texts"):
        orlog.token_sequences("lab/box-v1", 4, seed=0, tokenizer=VOCABULARY)
