// Frames of an episode by index: the one of the step is drawn, the next ones are fetched before they are due.

import { element, problem } from "./dom.js";
import { ask } from "./net.js";

const AHEAD = 12;
const KEPT_BYTES = 6e7; // of decoded images of a column
const SMALLEST = 224; // pixels of the screen; smaller images are enlarged by a whole number

export class Frames {
  constructor(path) {
    Object.assign(this, { path, all: [], root: element("div", { class: "frames" }) });
  }

  show(head) {
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
    const root = element("figure", { class: frames.source ? "frame rendered" : "frame" }, canvas, message,
      element("figcaption", {}, element("b", {}, frames.name), ` ${[text, frames.note].filter(Boolean).join("; ")}`));
    const kept = Math.max(2 * AHEAD, Math.floor(KEPT_BYTES / (4 * (frames.width || 480) * (frames.height || 480))));
    return { ...frames, root, canvas, message, kept, images: new Map(), wanted: -1 };
  }

  mark(step, isPlaying) {
    for (const one of this.all) {
      one.wanted = Math.min(step, one.count - 1);
      this.fetch(one, one.wanted).then((image) => this.draw(one, image));
      const ahead = isPlaying ? AHEAD : 1;
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
