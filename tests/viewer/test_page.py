"""The page in a real browser: clicks, keys, filters, frames, errors in their place, and texts that are HTML."""

import http.server
import re
import shutil
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import orlog
from orlog.viewer import server
from tests.datasets.store.test_videos import in_sequence, write
from tests.pendulum import pendulum
from tests.viewer.conftest import LONGEST_S
from tests.viewer.made import SCRIPT, write_numbers, write_robot

pytestmark = pytest.mark.slow


def first_cells(page):
    """Return what the first column of the rows in sight says."""
    return [text.replace(",", "") for text in page.locator(".layer .row span:first-child").all_inner_texts()]


def wait_for(page, script):
    # By asking again: the page's policy lets no text become a script, not even the browser's driver's.
    limit = time.monotonic() + LONGEST_S
    while not page.evaluate(script):
        assert time.monotonic() < limit, script
        page.wait_for_timeout(25)


def title_is(page, episode):
    wait_for(page, f"document.querySelector('.episode h2')?.textContent === 'Episode {episode}'")


def test_a_list_of_many_episodes_is_scrolled_sorted_and_filtered(serve, browse):
    write_numbers(episodes=5000, steps=2)
    page = browse(serve("lab/numbers-v1").address)
    title_is(page, 0)
    assert page.locator(".layer .row").count() < 60
    page.locator(".list").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    wait_for(page, "[...document.querySelectorAll('.layer .row span')].some(one => one.textContent === '4,999')")
    page.click(".head >> text=returns")
    page.locator(".list").evaluate("box => { box.scrollTop = 0; }")
    wait_for(page, "document.querySelector('.layer .row span')?.textContent === '4,999'")
    assert first_cells(page)[:3] == ["4999", "4998", "4997"]
    assert page.locator("[aria-sort=descending]").inner_text().startswith("returns")
    page.fill("[aria-label='Filter episodes']", "returns < 3")
    page.keyboard.press("Enter")
    wait_for(page, "document.querySelectorAll('.layer .row').length === 3")
    assert page.locator(".episodes .muted").inner_text() == "3 of 5,000 episodes"
    page.fill("[aria-label='Filter episodes']", "returnz < 3")
    page.keyboard.press("Enter")
    error = page.locator(".episodes [role=alert]")
    error.wait_for()
    assert "no column episodes/returnz" in error.inner_text()


def test_a_filter_is_saved_as_a_view(serve, browse, tmp_path):
    ds = write_numbers()
    page = browse(serve("lab/numbers-v1").address)
    assert page.locator("text=Save as view").is_disabled()
    page.fill("[aria-label='Filter episodes']", "returns >= 290")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=10 of 300 episodes")
    title_is(page, 290)  # the first one that meets it
    page.click("text=Save as view")
    page.fill("[aria-label='Name of the view']", "best")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=orlog open best.json")
    view = orlog.load_dataset(tmp_path / "started" / "best.json")
    assert view.digest == ds.filter_episodes("returns >= 290").digest
    page.click("text=Save as view")
    page.fill("[aria-label='Name of the view']", "best")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=choose another name")


def test_keys_go_through_episodes_and_steps(serve, browse):
    write_robot(episodes=3, steps=1000)  # long enough to be stopped before its end, however late
    page = browse(serve("lab/robot-v1").address)
    title_is(page, 0)
    page.keyboard.press("j")
    title_is(page, 1)
    page.keyboard.press("ArrowDown")
    title_is(page, 2)
    page.keyboard.press("k")
    title_is(page, 1)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_selector("text=step 11 of 1,001")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("text=step 10 of 1,001")
    page.keyboard.press("Space")
    wait_for(page, "parseInt(document.querySelector('.now')?.textContent.slice(5)) > 13")
    page.keyboard.press("Space")
    assert page.locator(".player button").inner_text() == "Play"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("j?")  # what is typed is no command
    assert page.locator("dialog").is_hidden()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    was = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != was


def test_keys_label_episodes_and_the_layer_holds_what_the_page_showed(serve, browse):
    write_robot(episodes=3, steps=40)
    page = browse(serve("lab/robot-v1", label="lab/labels-v1", tags=["two_hands", "slips"]).address)
    title_is(page, 0)
    page.wait_for_selector("text=not labelled")
    page.keyboard.press("s")
    page.wait_for_selector("text=by ann")
    page.keyboard.press("1")
    page.wait_for_selector("text=labels since the last save: 2")
    page.keyboard.press("j")
    title_is(page, 1)
    page.keyboard.press("f")
    page.wait_for_selector("text=episodes labelled: 2")
    page.keyboard.press("[")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("]")
    page.keyboard.press("2")
    page.wait_for_selector("text=slips at steps 0 to 3")
    page.keyboard.press("u")
    page.wait_for_selector("text=labels since the last save: 3")
    page.keyboard.press("w")
    page.wait_for_selector("text=Saved as lab/labels-v1@1.0.0")
    layer = orlog.load_dataset("lab/labels-v1")
    stated = orlog.load_dataset("lab/robot-v1").column("episodes/success").tolist()
    assert layer.column("episodes/success").tolist() == [True, False, stated[2]]
    assert layer.column("episodes/two_hands").tolist() == [True, False, False]
    assert "infos/slips" not in layer.columns


def test_frames_follow_the_step_to_the_exact_pixel(serve, browse):
    ds = write_robot()
    page = browse(f"{serve('lab/robot-v1').address}#/0/episodes/3?step=17")
    page.locator(".frame").first.locator("canvas[data-step='17']").wait_for()
    pixel = page.locator(".frame canvas").first.evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(36, 10, 1, 1).data]"
    )
    assert pixel[:3] == ds[3].observations["camera"][17, 10, 36].tolist()
    page.locator("[aria-label=Step]").fill("30")
    page.wait_for_selector("canvas[data-step='30']")
    assert "step 30: pick up the cube" in page.locator(".texts").inner_text()
    assert page.locator(".charts figure").count() == 4


def test_a_range_of_a_plot_is_shown_in_all_of_them(serve, browse):
    write_numbers(episodes=1, steps=9000)
    page = browse(serve("lab/numbers-v1").address)
    page.wait_for_selector("text=smallest and largest of each 5 steps")
    box = page.locator(".charts .u-over").first.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 30, steps=4)
    page.mouse.up()
    wait_for(page, "!document.querySelector('.charts').textContent.includes('smallest and largest')")
    page.locator(".charts .u-over").nth(1).dblclick()
    page.wait_for_selector("text=smallest and largest of each 5 steps")


def test_names_and_texts_that_are_scripts_do_not_run(serve, browse, tmp_path):
    write_robot(episodes=2, text=SCRIPT, description=SCRIPT, behavior_policy=SCRIPT, license=SCRIPT)
    view = tmp_path / "<img src=x onerror=document.title='run'>.json"
    orlog.load_dataset("lab/robot-v1").filter_episodes(f"task == {SCRIPT!r}").save(view)
    served = serve("lab/robot-v1", view)
    asked = []
    page = browse(served.address)
    page.on("request", lambda request: asked.append(request.url))
    for place in ("#/0/episodes/1", "#/0/dataset", "#/1/dataset", "#/compare", "#/differences"):
        page.goto(served.page + place)
        page.reload()
        page.wait_for_load_state("networkidle")
        assert "run" not in page.title().replace("<img src=x onerror=document.title='run'>", "")
        assert page.locator("img").count() == 0
        assert page.locator("script:not([src])").count() == 0
    assert page.locator("script").count() == 3
    assert all(re.match(rf"(blob:)?{re.escape(served.page)}", url) for url in asked)


def test_damage_and_deletion_are_said_in_their_place(serve, browse):
    ds = write_robot()
    for column in ("rewards", "observations/camera"):
        for shard in (ds.folder / column).glob("c.*"):
            data = bytearray(shard.read_bytes())
            data[2] ^= 0xFF
            shard.write_bytes(data)
    page = browse(serve("lab/robot-v1").address)
    title_is(page, 0)
    page.wait_for_selector(".frame [role=alert]")
    errors = page.locator(".episode [role=alert]").all_inner_texts()
    assert any("rewards" in text and "orlog verify" in text for text in errors)
    assert page.locator(".charts .uplot").count() == 2  # actions and position
    shutil.rmtree(ds.folder)
    page.keyboard.press("j")
    title_is(page, 1)
    page.wait_for_selector("text=deleted")


def test_two_episodes_stand_side_by_side_at_the_same_step(serve, browse):
    write_robot()
    write_numbers(episodes=3, steps=60)
    page = browse(f"{serve('lab/robot-v1', 'lab/numbers-v1').address}#/compare?a=0:1&b=1:2")
    wait_for(page, "document.querySelectorAll('.now').length === 2")
    page.wait_for_selector("text=step 0 of 60")
    page.wait_for_selector("text=step 0 of 41")
    page.locator("[aria-label=Step]").nth(1).fill("7")
    page.wait_for_selector("text=step 7 of 41")
    page.wait_for_selector("text=step 7 of 60")
    page.goto(page.url.split("#")[0] + "#/compare")  # of two datasets, the same number
    wait_for(page, f"{TITLES} === 'Episode 0,Episode 0'")
    page.goto(page.url.split("#")[0] + "#/compare?a=0:1&b=1:2")
    page.wait_for_selector("text=step 0 of 60")
    page.locator("[aria-label='Episode on side 1']").fill("2")
    page.keyboard.press("Tab")
    page.wait_for_selector("text=/step \\d of 42/")


TITLES = "[...document.querySelectorAll('.episode h2')].map((one) => one.textContent).join()"


# Cells of the list that are only partly in sight and not blank.


def test_videos_of_a_run_play_beside_episodes_of_the_data(serve, browse, tmp_path):
    pytest.importorskip("av")
    pytest.importorskip("pygame")
    pendulum(episodes=3)
    run = orlog.train("bc", "lab/pendulum-v1", settings={"hidden": [8]}, steps=3, evaluations=0, out=tmp_path / "run")
    result = orlog.evaluate(run, episodes=4, video=True)
    page = browse(f"{serve('lab/pendulum-v1', run.folder).address}#/runs/0")
    wait_for(page, "document.querySelectorAll('.film video').length === 3")
    captions = page.locator(".film:has(video) figcaption").all_inner_texts()
    assert [text.split()[0] for text in captions] == ["worst", "median", "best"]
    assert f"{result.returns.max():.1f}" in captions[2]
    wait_for(page, "[...document.querySelectorAll('video')].every((one) => one.readyState >= 2)")
    page.locator("video").first.evaluate("(one) => one.play()")
    wait_for(page, "document.querySelector('video').currentTime > 0.1")
    wait_for(page, "document.querySelectorAll('.film svg').length === 3")
    page.locator(".film button").last.click()
    wait_for(page, "Number([...document.querySelectorAll('.film input')].at(-1).value) > 3")


@pytest.mark.parametrize("kind", ["av1", "h264"])
def test_a_stored_video_plays_and_the_step_and_plots_follow_it(serve, browse, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(server, "LARGEST_PIECE", 4096)  # so that it comes in several
    expected = keep_videos(tmp_path, kind)
    page = browse(f"{serve('lab/pick-v1').address}#/0/episodes/1")
    if kind == "h264" and not page.evaluate(f"document.createElement('video').canPlayType('{H264}')"):
        pytest.skip("this browser plays no H.264")
    wait_for(page, "document.querySelector('.frame video')?.readyState >= 2")
    video, slider = page.locator(".frame video"), page.locator("[aria-label=Step]")
    assert video.evaluate("(one) => one.currentTime") == pytest.approx(0.75)  # within its first frame
    assert page.locator(".frame canvas").is_hidden()
    assert "as recorded, 10 steps a second" in page.locator("[aria-label=Speed]").inner_text()
    for step in (0, 17, 4, 29):
        slider.fill(str(step))
        wait_for(
            page, f"Math.abs({TIME} - {0.75 + step / 10}) < 0.01 && !document.querySelector('.frame video').seeking"
        )
        for _ in range(200):  # the frame is painted a little after it was sought
            shown = np.array(video.evaluate(PIXELS)).reshape(48, 64, 4)[..., :3]
            off = [np.abs(shown - frame.astype(float)).mean() for frame in expected]
            if np.argmin(off) == 7 + step:
                break
            page.wait_for_timeout(50)
        assert np.argmin(off) == 7 + step
    slider.fill("30")  # of which there is no frame
    page.locator(".frame canvas[data-step='30']").wait_for()
    assert video.is_hidden()
    slider.fill("0")
    page.locator(".player button").click()
    seen = []
    for _ in range(40):
        seen.append(page.evaluate(f"[{TIME}, {STEP}, {MARKER}]"))
        page.wait_for_timeout(40)
    wait_for(page, f"{STEP} === 30 && document.querySelector('.player button').textContent === 'Play'")
    assert video.evaluate("(one) => one.paused")  # the next episode is in the same file
    times, steps, markers = np.array(seen).T
    assert len(set(steps)) > 5
    assert (np.diff(steps) >= 0).all()
    assert np.abs((times - 0.7) * 10 - steps)[steps < 30].max() < 1.5
    assert ((np.diff(markers) > 0) == (np.diff(steps) > 0)).all()


def test_a_video_that_the_browser_does_not_play_is_shown_as_decoded_frames(serve, browse, tmp_path):
    expected = keep_videos(tmp_path, "mpeg4")
    page = browse(f"{serve('lab/pick-v1').address}#/0/episodes/1?step=3")
    canvas = page.locator(".frame canvas[data-step='3']")
    canvas.wait_for()
    assert page.locator("video").count() == 0
    assert "mpeg4, does not play in this browser" in page.locator(".frame figcaption").inner_text()
    assert_array_equal(np.array(canvas.evaluate(PIXELS)).reshape(48, 64, 4)[..., :3], expected[10])
    page.locator(".player button").click()
    wait_for(page, "Number(document.querySelector('.frame canvas').dataset.step) > 8")


def keep_videos(tmp_path, kind):
    """Import a LeRobotDataset with its videos as `lab/pick-v1`; return all frames as PyAV decodes them."""
    pytest.importorskip("av")
    root = write(tmp_path / "arm", kind)
    orlog.import_dataset(root, "lab/pick-v1", ends="terminated")  # without final observations
    return in_sequence(root)


H264 = 'video/mp4; codecs="avc1.42E01E"'
TIME = "document.querySelector('.frame video').currentTime"
STEP = "Number(document.querySelector('.player input').value)"
MARKER = "new DOMMatrix(getComputedStyle(document.querySelector('.marker')).transform).m41"
PIXELS = """(one) => {
  const canvas = new OffscreenCanvas(64, 48).getContext('2d');
  canvas.drawImage(one, 0, 0);
  return [...canvas.getImageData(0, 0, 64, 48).data];
}"""


def test_another_page_of_this_machine_gets_nothing(serve, browse, tmp_path):
    write_numbers(episodes=2)
    served = serve("lab/numbers-v1")
    script = f"""<script type="module">
        const send = {{ credentials: "include" }};
        const read = (address) => fetch(address, send).then((one) => one.text()).catch(() => "refused");
        const load = (address) => import(address).then(() => "loaded", () => "refused");
        const of = "{served.page}";
        await fetch(of + "api/data/0/view", {{ ...send, method: "POST", mode: "no-cors", body: '{{}}' }}).catch(() => null);
        document.title = [await read(of), await read(of + "api/opened"), await load(of + "page/dom.js")].join(" ");
        </script>"""
    cookies = []

    class Foreign(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            cookies.append(self.headers["Cookie"])
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(script.encode())

        def log_message(self, *_):
            pass

    page = browse(served.address)  # which now has the cookie
    title_is(page, 0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        wait_for(page, "document.title !== ''")
        assert page.title() == "refused refused refused"
        assert set(cookies) == {None}
        other.shutdown()
    assert not list((tmp_path / "started").iterdir())


def test_who_entered_may_load_again_and_open_more_tabs(serve, browse, tmp_path):
    write_numbers(episodes=2)
    served = serve("lab/numbers-v1")
    leads = tmp_path / "leads.html"  # as the command gives a browser
    leads.write_text(f'<meta http-equiv="refresh" content="0; url={served.address}#/0/episodes/1">')
    page = browse(leads.as_uri())
    page.wait_for_url(f"{served.page}#/0/episodes/1")
    title_is(page, 1)
    page.reload()
    title_is(page, 1)
    for address in (page.url, served.address):
        tab = page.context.new_page()
        tab.goto(address)
        title_is(tab, 1 if address == page.url else 0)
    assert not page.evaluate("document.cookie")
    other = browse(served.address)
    assert "lets nobody in" in other.locator("body").inner_text()
    assert other.locator("nav").count() == 0


def test_texts_can_be_read_in_both_themes_and_on_a_phone(serve, browse, tmp_path):
    write_robot()
    ds = write_numbers(episodes=20)
    orlog.train("bc", ds, steps=2, evaluations=0, out=tmp_path / "runs" / "seed-0")
    (tmp_path / "report.html").write_text("<p>scores</p>")
    served = serve("lab/robot-v1", "lab/numbers-v1", tmp_path / "runs", tmp_path / "report.html")
    size = {"width": 400, "height": 800}
    page = browse(served.address, viewport=size)
    views = ("0/episodes/1", "0/dataset", "compare", "runs/0", "differences", "report/0", "nowhere", "?")
    for place in views:
        page.goto(f"{served.page}#/{place}")
        page.reload()
        page.wait_for_load_state("networkidle")
        if place == "?":
            page.keyboard.press("?")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, place
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(CONTRASTS) == [], (place, scheme)
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, input, select, canvas, svg[role=img], a')]"
            ".filter(one => !(one.textContent.trim() || one.ariaLabel || one.ariaHidden)).length"
        )
        assert unnamed == 0, place


CONTRASTS = """() => {
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const canvas = document.createElement('canvas').getContext('2d');
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  const back = (one) => {
    for (; one; one = one.parentElement) {
      const color = rgba(getComputedStyle(one).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const wrong = [];
  for (const one of document.querySelectorAll('body *:not(svg *):not(script)')) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || one.disabled || !one.checkVisibility()) continue;
    const [a, b] = [light(rgba(getComputedStyle(one).color)), light(back(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push(`${one.tagName} ${one.className} ${one.textContent.slice(0, 30)}`);
  }
  return wrong;
}"""
