"""The look of pages without scripts: the viewer's colors, and pictures of any data."""

import dataclasses
import re

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.looking.sparklines import histogram
from orlog.runs.pictures import LARGEST, Dot, Line, bars, dots, figure, html_table, lines, page, path_map
from orlog.runs.results_page import episode_figure, write_audit_page
from tests.episodes import record_episodes
from tests.viewer.made import ARM_SPACE, robot_episode, write_robot
from tests.viewer.test_page import CONTRASTS

HOSTILE = '</text><script>"&'


def test_a_page_can_be_read_in_both_themes_and_on_a_phone(browse, tmp_path):
    path = tmp_path / "audit.html"
    dataset = write_robot()
    write_audit_page(orlog.audit("lab/robot-v1"), path, dataset)
    shown = browse("about:blank", viewport={"width": 400, "height": 800})
    asked = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(path.as_uri())
    shown.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400
    for scheme in ("dark", "light"):
        shown.emulate_media(color_scheme=scheme)
        assert shown.evaluate(CONTRASTS) == [], scheme
    assert asked == [path.as_uri()]


def test_names_are_texts_in_pages_and_pictures():
    row = Dot(name=HOSTILE, value=1.0, interval=(0.5, 2.0), series=0, recorded=(1.0, None))
    line = Line(xs=[0, 1], ys=[0, 1], series=0)
    drawn = [dots([row], HOSTILE), lines([line], HOSTILE, HOSTILE), bars(histogram(np.arange(3.0), 3), HOSTILE)]
    parts = [figure("".join(drawn), HOSTILE, {HOSTILE: 0}), html_table([HOSTILE], [[HOSTILE]])]
    assert "<script" not in page(HOSTILE, parts)
    assert "1.0 (recorded: 1.0)" in drawn[0]


@pytest.mark.parametrize(
    "values", [[np.nan], [1e308, -1e308], [np.inf, 3.0], [5e-324, 0.0], [1.0], [1e16, 1e16 + 2], [1e18]]
)
def test_any_numbers_can_be_drawn(values):
    line = Line(xs=[*range(len(values))], ys=values, series=0)
    finite = np.array([value for value in values if abs(value) < LARGEST])
    drawn = lines([line], "any", "steps", (0, 0))
    drawn += bars(histogram(finite, 30), "any") if len(finite) else ""
    assert not re.search(r"\b(nan|inf)\b", drawn)
    assert "<path" in path_map(np.array([values[-1:] * 2, [0, 0]]), "any", "truncated")


def test_an_episode_is_its_path_or_a_frame():
    drawn = episode_figure(write_robot())
    assert drawn.startswith('<figure class="frame"><svg')
    assert "which has the highest return: observations/position[0] across" in drawn
    space = spaces.Box(0, 255, (32, 48, 3), np.uint8)
    episode = robot_episode(0, 5)
    seen = dataclasses.replace(episode, observations=episode.observations["camera"])
    record_episodes("lab/eye-v1", [seen], space, ARM_SPACE)
    drawn = episode_figure(orlog.load_dataset("lab/eye-v1"))
    assert drawn.startswith('<figure class="frame"><img src="data:image/png;base64,')
    assert "the first frame of observations." in drawn
