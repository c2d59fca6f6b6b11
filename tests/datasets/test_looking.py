"""What people see of data: lines of characters, figures, and a dataset in a notebook."""

from html.parser import HTMLParser

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import orlog
from orlog.datasets.looking.leaves import as_picture, dimensions_of, is_frame
from orlog.datasets.looking.sparklines import LEVELS, MISSING, counts_between, course, histogram
from tests.command_line import orlog as run_orlog
from tests.episodes import whole_episode

NUMBERS = arrays.arrays(np.float64, st.integers(1, 200), elements=st.floats(allow_nan=True, allow_infinity=True))


@given(NUMBERS, st.integers(1, 90))
def test_any_numbers_become_one_line(values, width):
    drawn = course(values, width)
    assert len(drawn) == min(width, len(values))
    assert {*drawn} <= {*LEVELS, MISSING}
    if len(values) <= width:
        assert [one == MISSING for one in drawn] == (~np.isfinite(values)).tolist()


def test_a_course_rises_and_falls_as_its_numbers_do():
    assert course(np.arange(8.0), 8) == LEVELS
    assert course(np.repeat(np.arange(8.0), 5), 8) == LEVELS
    assert course(np.array([2.0, np.nan, 2.0]), 9) == f"{LEVELS[0]}{MISSING}{LEVELS[0]}"


@given(
    st.sampled_from([1.0, 0.3, 1e17, 1e300, 5e-324, np.finfo(np.float64).max]),
    st.lists(st.integers(-3, 0), min_size=1, max_size=9),
    st.integers(1, 90),
)
def test_numbers_that_differ_in_the_last_digit_are_all_counted(largest, below, bins):
    values = np.array([largest + one * np.spacing(np.nextafter(largest, 0)) for one in below])
    low, high = float(values.min()), float(values.max())
    assert counts_between(values, low, high, bins).sum() == len(values)


@given(
    st.lists(st.integers(-(2**51), 2**51) | st.integers(-60, 60), min_size=1, max_size=40),
    st.integers(1, 60),
    st.sampled_from([1.0, 0.5]),
)
def test_bins_of_whole_numbers_hold_equally_many_of_them(numbers, most, unit):
    values = np.array(numbers) * unit
    drawn = histogram(values, most)
    assert drawn.counts.sum() == len(values)
    assert len(drawn.counts) <= most
    assert drawn.low <= values.min() <= values.max() <= drawn.high
    is_whole = all(float(one).is_integer() and abs(one) < 2**51 for one in values.tolist())
    assert bool(drawn.whole) == is_whole
    if is_whole:
        assert drawn.high - drawn.low == drawn.whole * len(drawn.counts)
        places = ((values - drawn.low) // drawn.whole).astype(int).tolist()
        assert [places.count(place) for place in range(len(drawn.counts))] == drawn.counts.tolist()


def test_means_of_the_largest_numbers_are_drawn():
    most = np.finfo(np.float64).max
    assert course(np.repeat([-most, most], 3), 2) == f"{LEVELS[0]}{LEVELS[-1]}"
    assert course(np.array([0.0, 0.0, np.inf, -np.inf, 1.0, 1.0]), 3) == (f"{LEVELS[0]}{MISSING}{LEVELS[-1]}")


@pytest.mark.parametrize(
    ("shape", "dtype", "shown"),
    [
        ((24, 32, 3), np.uint8, (24, 32, 3)),
        ((3, 24, 32), np.uint8, (24, 32, 3)),
        ((24, 32), np.uint8, (24, 32, 1)),
        ((24, 32, 1), np.uint8, (24, 32, 1)),
        ((4, 24, 32, 3), np.uint8, (24, 32, 3)),
        ((24, 32), np.float32, (24, 32, 1)),
        ((9,), np.uint8, None),
        ((6, 7), np.float32, None),
        ((64, 64, 64), np.uint8, None),
    ],
)
def test_frames_are_told_from_numbers(shape, dtype, shown):
    assert is_frame(np.dtype(dtype), shape) == (shown is not None)
    if shown is not None:
        picture = as_picture(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
        assert picture.shape == shown
        assert picture.dtype == np.uint8


class Checked(HTMLParser):
    """Counts tags that are open, and keeps all names of tags and values of attributes."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.tags = set()
        self.values = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.values += " ".join(f"{name}={value}" for name, value in attrs if name != "xmlns")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_notebook_shows_totals_and_pictures_and_runs_nothing():
    writer = orlog.DatasetWriter(
        "lab/seen-v1",
        observation_space=gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8),
        action_space=gymnasium.spaces.Box(-1, 1, (1,), np.float32),
        behavior_policy="<script>alert(1)</script>",
    )
    with writer:
        episode = whole_episode(np.zeros((4, 16, 16, 3), np.uint8), np.zeros((3, 1), np.float32), np.ones(3))
        writer.add_episode(episode)
    text = orlog.load_dataset("lab/seen-v1")._repr_html_()
    checked = Checked(text)
    assert checked.open == []
    assert {"table", "svg"} <= checked.tags
    assert "script" not in checked.tags
    assert "http" not in checked.values.replace("data:image/png;base64", "")
    assert "1 episode" in text or "episodes" in text


def test_figures_show_every_dimension_of_an_episode(mini):
    pytest.importorskip("matplotlib")
    episode = mini[0]
    figure = episode.plot()
    names = [name for name, _ in dimensions_of(episode)]
    drawn = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata()) > 2]
    assert len(drawn) == len(names)
    assert np.array_equal(drawn[0].get_ydata(), episode.rewards)
    assert {axes.get_title() for axes in figure.axes} == {name.partition("[")[0] for name in names}
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"
    assert len(mini.plot().axes) >= 3


def test_an_episode_is_shown_in_the_terminal(mini):
    name = mini.name
    shown = run_orlog("show", name, "--episode", "0")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert any(line.split() == ["return", f"{mini[0].rewards.sum():,.6g}"] for line in lines)
    for column, values in dimensions_of(mini[0]):
        (line,) = [one for one in lines if one.startswith(f"{column} ")]
        assert line.endswith(course(values, 60))
    refused = run_orlog("show", name, "--episode", "999")
    assert refused.returncode == 1
    assert "numbered from 0" in refused.stderr
    assert '"return"' in run_orlog("show", name, "--episode", "-1", "--json").stdout


def test_a_notebook_shows_a_dataset_in_elements_that_are_closed(mini):
    checked = Checked(mini._repr_html_())
    assert checked.open == []
    assert "svg" in checked.tags
