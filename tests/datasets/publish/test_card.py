"""Dataset cards: what they say, texts that try to be markup, and cards that people wrote."""

import xml.etree.ElementTree as ET

import numpy as np
import yaml
from gymnasium import spaces
from markdown_it import MarkdownIt

from orlog import audit
from orlog.datasets.publish.card import dataset_card, is_own_card
from tests.command_line import orlog as run
from tests.episodes import record_episodes, whole_episode

HOSTILE = """# Title
<script>alert(1)</script> <img src=x onerror=alert(1)> [a](javascript:alert(1)) ![i](http://evil/x.png)
| a | b |
---
license: mit
--> `code` **bold** &lt;b&gt; https://evil.example www.evil.example \u202e ]( $x$"""


def recorded(name="lab/arm-v1", **texts):
    """Return a small dataset: two episodes, of which one is cut."""
    rng = np.random.default_rng(0)
    return record_episodes(
        name,
        (
            whole_episode(
                rng.uniform(-1, 1, (steps + 1, 2)).astype(np.float32), np.arange(steps) % 3, np.ones(steps), end=end
            )
            for steps, end in ((3, "termination"), (5, ""))
        ),
        spaces.Box(-1, 1, (2,)),
        spaces.Discrete(4),
        **texts,
    )


def card_of(dataset):
    return dataset_card(dataset, audit(dataset), "lab/arm-v1@1.0.0")


def header_of(card):
    document = card.header.removeprefix("---\n").removesuffix("---\n")
    return dict(yaml.safe_load(document))


def test_a_card_says_what_the_data_are():
    dataset = recorded(description="Reaches.", license="CC-BY-4.0", behavior_policy="a script")
    card = card_of(dataset)
    assert header_of(card) == {
        "license": "cc-by-4.0",
        "pretty_name": "lab/arm-v1",
        "task_categories": ["reinforcement-learning"],
        "size_categories": ["n<1K"],
        "tags": ["offline-reinforcement-learning", "trajectories", "orlog"],
        "viewer": False,
    }
    text = card.text("card.svg")
    for line in (
        "| episodes | 2 |",
        "| steps | 8 |",
        "3 to 5; mean 4, median 4, standard deviation 1 |",
        "| ends of episodes | 1 by termination, 0 by truncation, 1 without a flag |",
        dataset.digest,
        "| behavior policy | a script |",
        'dataset = orlog.load_dataset("lab/arm-v1@1.0.0")',
        "](card.svg)",
    ):
        assert line in text
    low = dataset.column("observations").min(axis=0)
    assert f"| observations[0] | {low[0]:.4g} |" in text
    assert len(ET.fromstring(card.picture)) > 3
    assert card_of(dataset) == card


def test_texts_of_the_manifest_are_shown_and_do_nothing():
    card = card_of(recorded(description=HOSTILE, license=HOSTILE, behavior_policy=HOSTILE))
    header = header_of(card)
    assert (header["license"], header["pretty_name"]) == ("other", "lab/arm-v1")
    renderer = MarkdownIt("commonmark", {"html": True}).enable("table")
    rendered = renderer.render(card.body)
    for markup in ("<script", "<img src=x", "<a ", "<strong", "<h1>Title", 'http://evil/x.png"'):
        assert markup not in rendered
    assert rendered.count("<img") == 1  # the card's own picture
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in rendered
    assert rendered.count("<h1>") == 1
    plain = card_of(recorded("lab/plain-v1"))
    tables = renderer.render(plain.body).count("<td>")
    assert rendered.count("<td>") in range(tables, tables + 1)


def test_show_writes_a_card_and_replaces_only_its_own(tmp_path):
    recorded()
    path = tmp_path / "card.md"
    for _ in range(2):
        assert run("show", "lab/arm-v1", "--card", str(path)).returncode == 0
    assert is_own_card(path.read_text("utf-8"))
    assert path.with_suffix(".svg").read_text("utf-8").startswith("<svg")
    path.write_text("# My own words\n", "utf-8")
    ended = run("show", "lab/arm-v1", "--card", str(path))
    assert (ended.returncode, "did not write this file" in ended.stderr) == (1, True)
    assert path.read_text("utf-8") == "# My own words\n"
