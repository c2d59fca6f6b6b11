"""What `orlog open` takes on a large dataset, seen from the browser that shows it.

Four datasets: the one of `benchmarks.scale` (100 million steps in 200,125 episodes, 8.2 GB of files), one of a
million episodes, one whose episodes have 25 columns of 1,000 steps, and one with 20,000 frames of 64 x 64 x 3. A headless
Chromium opens each. A time begins with the key or the address that asks for something and ends when the
page has drawn it: two frames of the screen after its numbers are in. The server's memory is read from the
system in the end, after everything else was done. The file cache is as the steps before have left it.
What other processes use is measured for three seconds before, since the browser is one of them.

    pip install playwright && apt-get install chromium
    python -m benchmarks.open_viewer
    python -m benchmarks.open_viewer --steps 10000000 --scratch FOLDER

Rerun's viewer paints its whole page with WebGL, so that only screenshots tell a script what it shows, and where there
is no GPU that is done in software. `RERUN` says what they gave; its clicks could not be timed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale import NAME, write_child
from benchmarks.store import OtherCores, machine, report, scratch_folder

WIDE, CAMERA, MANY = "bench/wide-v0", "bench/camera-v0", "bench/many-v0"
MANY_EPISODES = 1_000_000
RERUN = (
    "Rerun 0.41's web viewer, the same browser painting in software, one episode of the frames: first picture 19, 19 and "
    "24 s after the address"
)
COLUMNS, LONG = 25, 1000
CAMERA_EPISODES, CAMERA_STEPS = 200, 100
REPEATS = 40
QUIET_SECONDS = 3

# In the page: presses a key or goes somewhere, and returns after how many ms `done` and two frames.
TIMED = """([action, done]) => new Promise((resolve) => {
  const begun = performance.now();
  const is = new Function('return ' + done);
  const look = () => is()
    ? requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - begun)))
    : setTimeout(look, 1);
  if (action.length === 1) dispatchEvent(new KeyboardEvent('keydown', { key: action, bubbles: true }));
  else if (action.startsWith('#')) location.hash = action;
  else if (action.startsWith('=')) {
    const slider = document.querySelector('[aria-label=Step]');
    slider.value = action.slice(1);
    slider.dispatchEvent(new Event('input'));
  } else if (action) document.querySelector('.list').scrollTop = Number(action.slice(1)) * document.querySelector('.list').scrollHeight;
  look();
})"""
SHOWN = "document.querySelector('.episode h2')?.textContent.replaceAll(',', '') === 'Episode {}'"
ROWS = "[...document.querySelectorAll('.layer .row span')].every((one) => one.textContent !== '…')"
FRAME = "document.querySelector('.frame canvas')?.dataset.step === '{}' && " + SHOWN


def main() -> None:
    """Write the datasets, look at them, and write the figures."""
    parser = argparse.ArgumentParser(description="Measure orlog's viewer in a browser.")
    parser.add_argument("--steps", type=int, default=100_000_000)
    parts = {"many": look_at_many, "wide": look_at_wide, "camera": look_at_camera}
    parser.add_argument("--only", choices=parts, action="append", help="without the large dataset")
    parser.add_argument("--scratch", type=Path, help="where the datasets are kept")
    options = parser.parse_args()
    with scratch_folder(options.scratch) as scratch:
        os.environ["ORLOG_HOME"] = str(scratch / "open-viewer")
        written = {} if options.only else write_child("zarr", str(options.steps))
        write_others()
        with OtherCores() as others:
            time.sleep(QUIET_SECONDS)
        with browser() as chromium:
            lines = []
            if written:
                size = f"{written['episodes']:,.0f} episodes, {written['bytes'] / 1e9:.2f} GB of files"
                lines = [f"{written['steps']:,.0f} steps, {size}"]
                lines += look_at_large(chromium, int(written["episodes"]))
            for name in options.only or parts:
                lines += parts[name](chromium)
            lines.append(RERUN)
    with report("open_viewer") as console:
        for line in lines:
            console.print(line, soft_wrap=True)
        console.print(machine([others.cores]), soft_wrap=True)


def write_others() -> None:
    """Write the dataset with many columns and the one with frames, unless they are there."""
    from gymnasium import spaces

    import orlog
    from orlog.datasets.home.folders import installed_names

    generator = np.random.default_rng(0)
    there = installed_names()
    ends = {"rewards": np.zeros(LONG), "truncations": np.arange(LONG) == LONG - 1}
    if WIDE not in there:
        names = [f"c{index:02}" for index in range(COLUMNS - 2)]  # beside rewards and returns to go
        box = spaces.Box(-np.inf, np.inf, (), np.float32)
        with orlog.DatasetWriter(
            WIDE, observation_space=spaces.Dict(dict.fromkeys(names, box)), action_space=spaces.Discrete(2)
        ) as writer:
            for _ in range(REPEATS + 2):
                drawn = generator.normal(size=(LONG + 1, len(names))).cumsum(0).astype(np.float32)
                writer.add_episode(
                    orlog.Episode(
                        observations={name: drawn[:, at] for at, name in enumerate(names)},
                        actions=np.zeros(LONG, np.int64),
                        terminations=np.zeros(LONG, bool),
                        **ends,
                    )
                )
    if MANY not in there:
        pair = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        with orlog.DatasetWriter(MANY, observation_space=pair, action_space=pair) as writer:
            for index in range(MANY_EPISODES):
                writer.add_episode(
                    orlog.Episode(
                        observations=np.zeros((2, 1), np.float32),
                        actions=np.zeros((1, 1), np.float32),
                        rewards=np.array([float(index)]),
                        terminations=np.ones(1, bool),
                        truncations=np.zeros(1, bool),
                    )
                )
    if CAMERA not in there:
        with orlog.DatasetWriter(
            CAMERA,
            observation_space=spaces.Box(0, 255, (64, 64, 3), np.uint8),
            action_space=spaces.Box(-1, 1, (2,), np.float32),
        ) as writer:
            for _ in range(CAMERA_EPISODES):
                scene = generator.integers(0, 256, (64, 64 + CAMERA_STEPS, 3), dtype=np.uint8)
                frames = np.stack([scene[:, at : at + 64] for at in range(CAMERA_STEPS + 1)])
                writer.add_episode(
                    orlog.Episode(
                        observations=frames,
                        actions=np.zeros((CAMERA_STEPS, 2), np.float32),
                        rewards=np.zeros(CAMERA_STEPS),
                        terminations=np.zeros(CAMERA_STEPS, bool),
                        truncations=np.arange(CAMERA_STEPS) == CAMERA_STEPS - 1,
                    )
                )


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Give a headless Chromium; it may make functions of texts, which the page's policy forbids it."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found.new_context(bypass_csp=True, viewport={"width": 1280, "height": 900})
        found.close()


@contextlib.contextmanager
def opened(name: str) -> Iterator[tuple[str, int, float]]:
    """Run `orlog open`; give its address, its process and how long it took to print the address."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "orlog.cli", "open", name, "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    yield address, server.pid, (time.perf_counter() - begun) * 1000
    server.terminate()
    server.wait()


def memory(process: int) -> str:
    """Return the resident memory of a process now and at most, in words."""
    lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if "kB" in line}
    return f"{sizes['VmRSS']:,.0f} MiB, at most {sizes['VmHWM']:,.0f} MiB"


def timed(page: Any, action: str, done: str) -> float:
    """Return how many ms an action takes until it is drawn."""
    return float(page.evaluate(TIMED, [action, done]))


def in_words(times: list[float]) -> str:
    """Return the median and the largest of some times."""
    return f"median {statistics.median(times):,.0f} ms, most {max(times):,.0f} ms of {len(times)}"


def fill(page: Any, text: str, expected: str) -> float:
    """Return how many ms it takes until a filter is applied, the list's rows among them."""
    page.fill("[aria-label='Filter episodes']", text)
    done = f"document.querySelector('.episodes .muted').textContent.includes('{expected}') && {ROWS}"
    begun = time.perf_counter()
    page.keyboard.press("Enter")
    timed(page, "", done)
    return (time.perf_counter() - begun) * 1000


def look_at_large(chromium: Any, episodes: int) -> Iterator[str]:
    """Yield figures of the large dataset."""
    generator = np.random.default_rng(4)
    with opened(NAME) as (address, process, start_ms):
        page = chromium.new_page()
        begun = time.perf_counter()
        page.goto(address)
        timed(page, "", SHOWN.format(0))
        first_ms = (time.perf_counter() - begun) * 1000
        yield f"start                       {start_ms:,.0f} ms until the address is printed"
        yield f"page, list, first episode   {first_ms:,.0f} ms, with the browser's own start of a page"
        near = [timed(page, "j", SHOWN.format(episode)) for episode in range(1, REPEATS + 1)]
        yield f"next episode                {in_words(near)}"
        places = generator.integers(0, episodes, REPEATS).tolist()
        far = [timed(page, f"#/0/episodes/{one}", SHOWN.format(one)) for one in places]
        yield f"first picture of an episode first {far[0]:,.0f} ms, {in_words(far[1:])}"
        yield from look_at_list(page, "returns > 0 and lengths >= 400")
        begun = time.perf_counter()
        page.goto(f"{address}#/0/dataset")
        page.wait_for_selector("text=Use of actions")
        yield f"figures of the dataset      {time.perf_counter() - begun:,.1f} s"
        yield f"memory of the server        {memory(process)}"
        page.close()


def look_at_list(page: Any, where: str) -> Iterator[str]:
    """Yield figures of the list of episodes."""
    shares = np.random.default_rng(4).random(REPEATS)
    yield f"scroll to any place         {in_words([timed(page, f'@{share}', ROWS) for share in shares])}"
    yield f"filter                      {fill(page, where, ' of '):,.0f} ms"
    page.evaluate("document.querySelector('.head span:nth-child(2) button').click()")
    yield f"sort by return              {timed(page, '', ROWS):,.0f} ms"


def look_at_many(chromium: Any) -> Iterator[str]:
    """Yield figures of the list of a million episodes."""
    with opened(MANY) as (address, process, _):
        page = chromium.new_page()
        begun = time.perf_counter()
        page.goto(address)
        timed(page, "", SHOWN.format(0))
        yield f"a million episodes: page    {(time.perf_counter() - begun) * 1000:,.0f} ms"
        yield from look_at_list(page, "returns > 500000")
        yield f"memory of the server        {memory(process)}"
        page.close()


def look_at_wide(chromium: Any) -> Iterator[str]:
    """Yield figures of the dataset with many columns."""
    with opened(WIDE) as (address, _, _):
        page = chromium.new_page()
        page.goto(address)
        timed(page, "", SHOWN.format(0))
        times = [timed(page, "j", SHOWN.format(episode)) for episode in range(1, REPEATS)]
        yield f"{COLUMNS} columns of {LONG:,} steps   {in_words(times)}"
        page.close()
        page = chromium.new_page()
        page.goto(f"{address}#/0/dataset")
        page.wait_for_selector("text=Audit the data")
        whole = timed(page, "#/0/episodes/3", SHOWN.format(3))
        yield f"the same, plots made anew   {whole:,.0f} ms"
        page.close()


def look_at_camera(chromium: Any) -> Iterator[str]:
    """Yield figures of the dataset with frames."""
    with opened(CAMERA) as (address, process, _):
        page = chromium.new_page()
        page.goto(address)
        timed(page, "", FRAME.format(0, 0))
        places = np.random.default_rng(5).permutation(CAMERA_EPISODES)[:REPEATS].tolist()
        times = [timed(page, f"#/0/episodes/{one}", FRAME.format(0, one)) for one in places if one]
        yield f"first frame of an episode   {in_words(times)}"
        name = "document.querySelector('.frame canvas').dataset.step === '{}'"
        moves = [timed(page, f"={step}", name.format(step)) for step in range(1, REPEATS)]
        yield f"next frame                  {in_words(moves)}"
        yield f"memory of the server        {memory(process)}"
        page.close()


if __name__ == "__main__":
    main()
