// Frames of an episode by index: the one of the step is drawn, the next ones are fetched before they are due. Of a stored video
// that the browser plays, the film itself is shown, and the first one leads the step while it plays.

import { element, problem } from "./dom.js";
import { ask } from "./net.js";

const AHEAD = 12;
const KEPT_BYTES = 6e7; // of decoded images of a column
const [SLOWEST, FASTEST] = [1 / 16, 16]; // that browsers play at, times as fast as recorded
const LATE = 3; // steps that a film may be from the one that leads
const SMALLEST = 224; // pixels of the screen; smaller images are enlarged by a whole number

export class Frames {
  constructor(path) {
    Object.assign(this, { path, all: [], root: element("div", { class: "frames" }) });
  }

  show(head) {
    for (const { video } of this.all) video?.removeAttribute("src"), video?.load(); // frees its decoder
    this.all = head.frames.map((frames) => this.make(frames));
    if (this.isRendering && head.renders) this.addRendered(head);
    this.root.replaceChildren(...this.all.map((one) => one.root));
    this.root.hidden = !this.all.length;
  }

  addRendered(head) {
    // The size is known when the first picture is there.
    const how = head.renders === "states" ? "from recorded states" : `by replaying the actions from seed ${head.facts.seeds}`;
    const note = `drawn now by the environment ${how}; it was not recorded`;
    const rendered = { name: "Rendered on this machine", source: "render", count: head.length + 1, width: 0, height: 0, note };
    this.isRendering = true;
    this.all.push(this.make(rendered));
    this.root.append(this.all.at(-1).root);
    this.root.hidden = false;
  }

  make(frames) {
    const canvas = element("canvas", { role: "img", "aria-label": frames.name });
    const times = Math.max(1, Math.floor(SMALLEST / Math.max(1, frames.width, frames.height)));
    canvas.width = frames.width;
    canvas.height = frames.height;
    canvas.style.width = frames.source ? "" : `${frames.width * times}px`;
    const message = element("div", {});
    const text = frames.source ? "" : `${frames.height} × ${frames.width}${times > 1 ? `, shown ${times} times as large` : ""}`;
    const { film } = frames;
    const video = film && element("video", { playsinline: true, preload: "metadata", "aria-label": frames.name,
      error: () => this.fall(one), loadedmetadata: () => video.videoWidth || this.fall(one) });
    const played = element("span", {}, film ? `; the stored video, ${film.codec}, as the browser plays it` : "");
    const root = element("figure", { class: frames.source ? "frame rendered" : "frame" }, video, canvas, message,
      element("figcaption", {}, element("b", {}, frames.name), ` ${[text, frames.note].filter(Boolean).join("; ")}`, played));
    if (film) {
      video.style.width = canvas.style.width;
      video.muted = true; // an attribute mutes only what the parser made
      video.src = `api/${this.path}/film?column=${encodeURIComponent(frames.name)}`;
    }
    const kept = Math.max(2 * AHEAD, Math.floor(KEPT_BYTES / (4 * (frames.width || 480) * (frames.height || 480))));
    const one = { ...frames, root, video, played, canvas, message, kept, images: new Map(), wanted: -1 };
    return one;
  }

  get leader() {
    return this.all.find((one) => one.video);
  }

  // The step that the first film shows; null where there is none.
  led() {
    return this.leader ? shownBy(this.leader) : null;
  }

  fall(one) {
    // The browser cannot play it, or the file is damaged, which its frames say.
    if (!one.video || !this.all.includes(one)) return;
    one.video.remove();
    one.video = null;
    one.played.textContent = `; the stored video, ${one.film.codec}, does not play in this browser: decoded frames`;
    if (one.wanted >= 0) this.mark(one.wanted, 0);
  }

  // Puts a film at the step, and lets it run if there is a speed; false where it has no frame of the step.
  follow(one, speed) {
    const { video, film, wanted } = one;
    const time = film.seconds[wanted];
    video.hidden = time == null;
    one.canvas.hidden = !video.hidden;
    if (video.hidden || !speed) video.pause();
    if (video.hidden) return false;
    one.message.replaceChildren();
    const middle = (time + (film.seconds[wanted + 1] ?? time + 1 / film.rate)) / 2;
    const isOff = speed ? Math.abs(shownBy(one) - wanted) > (one === this.leader ? 0 : LATE) : Math.abs(video.currentTime - middle) > 1e-3;
    if (isOff) video.currentTime = middle;
    if (!speed) return true;
    video.playbackRate = Math.min(FASTEST, Math.max(SLOWEST, speed / film.rate));
    if (video.paused) video.play().catch(() => null); // it was stopped before it began
    return true;
  }

  mark(step, speed) {
    for (const one of this.all) {
      one.wanted = Math.min(step, one.count - 1);
      if (one.video && this.follow(one, speed)) continue;
      this.fetch(one, one.wanted).then((image) => this.draw(one, image));
      const ahead = speed ? AHEAD : 1;
      for (let next = 1; next <= ahead && one.wanted + next < one.count; next += 1) this.fetch(one, one.wanted + next);
    }
  }

  fetch(one, step) {
    if (!one.images.has(step)) {
      // Whoever asks for one that is not there yet waits for the same request.
      const image = ask(`${this.path}/${one.source || "frame"}`, { column: one.name, step: String(step) })
        .then(async (response) => ({ step, differs: response.headers.get("x-differs"), equals: response.headers.get("x-equals"), bitmap: await createImageBitmap(await response.blob()) }))
        .catch((error) => ({ step, error }));
      one.images.set(step, image);
      if (one.images.size > one.kept) one.images.delete(one.images.keys().next().value);
    }
    return one.images.get(step);
  }

  draw(one, { step, bitmap, error, differs, equals }) {
    if (step !== one.wanted) return; // by now another step is shown
    one.canvas.hidden = Boolean(error);
    const wrong = differs == null ? error
      : new Error(`From step ${differs} on, the replay is not what was recorded: its observations differ.`);
    const right = equals == null ? null : element("p", { class: "good" }, `As recorded up to step ${equals}: observations agree to 0.0001.`);
    one.message.replaceChildren(...[wrong && problem(wrong), right].filter(Boolean));
    if (bitmap) {
      if (one.source) [one.canvas.width, one.canvas.height] = [bitmap.width, bitmap.height];
      one.canvas.getContext("2d").drawImage(bitmap, 0, 0);
      one.canvas.setAttribute("aria-label", `${one.name}, step ${step}`);
      one.canvas.dataset.step = step;
    }
  }
}

function shownBy({ film: { seconds, rate }, video, count }) {
  const last = seconds.length - 1;
  const isOver = video.ended || video.currentTime >= seconds[last] + 1 / rate;
  const step = isOver ? last + 1 : seconds.findLastIndex((time) => time <= video.currentTime + 1e-4);
  return Math.min(count - 1, Math.max(0, step));
}
