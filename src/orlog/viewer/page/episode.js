// One episode: facts, frames, map, plots and texts, which all show the same step.

import { Charts } from "./charts.js";
import { choice, element, number, problem, say } from "./dom.js";
import { Frames } from "./frames.js";
import { PathMap } from "./map.js";
import { getEpisode } from "./net.js";
import { Player } from "./player.js";

const [SPEEDS, SPEED] = [[1, 2, 5, 10, 20, 30, 60, 120], 20]; // steps a second

const LONG = 120; // characters of a fact; longer ones are folded
const folded = (text) => (text.length <= LONG ? text : element("details", {}, element("summary", {}, `${text.slice(0, 60)}…`), text));

export class EpisodeView {
  constructor(index, episode, { stepped } = {}) {
    Object.assign(this, { index, episode, stepped, numbers: null });
    this.title = element("h2", {});
    this.facts = element("dl", { class: "facts" });
    this.player = new Player("Step", () => this.mark(), () => this.frames.led());
    this.player.speed = SPEED;
    this.now = element("output", { class: "now" });
    this.frames = new Frames(this.path);
    this.map = new PathMap();
    this.charts = new Charts((step, chosen) => (chosen || !this.player.playing) && this.go(step), (first, last) => this.zoom(first, last));
    this.texts = element("section", { class: "texts", "aria-label": "Texts" });
    this.notes = element("div", {});
    this.outside = element("p", { class: "note", role: "status", hidden: true }, "This episode does not meet the filter; it is shown until another one is chosen.");
    this.speed = choice("Speed", SPEEDS.map((one) => [one, `${one} steps a second`]), SPEED, (value) => {
      this.player.speed = Number(value);
    });
    const bar = element("div", { class: "bar player" }, this.player.button, this.player.slider, this.now, this.speed);
    this.pictures = element("div", { class: "pictures" }, this.frames.root, this.map.root);
    const over = element("div", {}, this.texts, this.charts.root);
    this.body = element("div", {}, bar, element("div", { class: "shown" }, this.pictures, over));
    this.root = element("article", { class: "episode", "aria-label": "Episode" }, this.title, this.outside, this.facts, this.notes, this.body);
    this.body.hidden = true;
  }

  left(is) {
    this.outside.hidden = !is;
  }

  get step() {
    return this.player.step;
  }

  get path() {
    return `data/${this.index}/episode/${this.episode}`;
  }

  async load(episode, stepThen = () => 0) {
    this.player.play(false);
    this.episode = episode;
    this.frames.path = this.path;
    this.range = [0, null];
    if (await this.fetch()) {
      this.head = this.loaded;
      this.showFacts();
      this.player.slider.max = this.head.length;
      this.frames.show(this.head);
      const rate = this.frames.leader?.film.rate;
      if (rate && this.speed.length === SPEEDS.length) {
        this.speed.prepend(element("option", { value: rate }, `as recorded, ${number(rate)} steps a second`));
        this.speed.value = this.player.speed = rate;
      }
      this.pictures.hidden = this.frames.root.hidden && this.map.root.hidden;
      this.go(Math.min(stepThen(), this.head.length));
    }
  }

  async fetch() {
    this.request?.abort();
    this.request = new AbortController();
    const [first, last] = this.range;
    try {
      this.loaded = await getEpisode(this.path, { first: first || "", last, numbers: this.numbers }, { signal: this.request.signal });
    } catch (error) {
      if (error.name === "AbortError") return false;
      this.title.textContent = `Episode ${number(this.episode)}`;
      this.notes.replaceChildren(problem(error));
      this.body.hidden = true;
      return false;
    }
    this.notes.replaceChildren();
    this.body.hidden = false;
    if (this.loaded.renders && !this.frames.isRendering) {
      const button = element("button", { type: "button", click: () => {
        button.remove();
        this.frames.addRendered(this.head);
        this.pictures.hidden = false;
        this.frames.mark(this.step, 0);
      } }, this.loaded.renders === "states" ? "Render from recorded states" : "Render by replaying the actions");
      this.notes.append(button, " ");
    }
    const least = this.loaded.series.filter((one) => one.shown < one.width);
    if (least.length)
      this.notes.append(element("button", { type: "button", click: () => this.showAll() }, "Draw all numbers of each row"));
    this.charts.show(this.loaded);
    this.map.show(this.loaded);
    return true;
  }

  showAll() {
    this.numbers = 4096;
    this.fetch().then(() => this.go(this.step));
  }

  async zoom(first, last) {
    this.range = [first, last];
    if (await this.fetch()) this.go(this.step);
  }

  showFacts() {
    const { head } = this;
    this.title.textContent = `Episode ${number(this.episode)}`;
    const { episode: _, returns, lengths, end, final_observation_missing: isMissing, ...own } = head.facts;
    const ended = { terminated: "the task itself ended", truncated: "it was cut off; values go on",
      "no flag": "the recording stopped without a flag" }[end] || "";
    const facts = [
      ["return", number(returns)], ["steps", number(lengths)],
      ["end", element("span", { class: `end ${String(end).replaceAll(" ", "-")}`, title: ended }, String(end), ended && element("small", {}, ended))],
      ...Object.entries(own).filter(([, value]) => value !== "").map(([name, value]) => [name, name === "seeds" ? (value === -1 ? "unknown" : String(value)) : typeof value === "string" ? folded(value) : number(value)]),
      ["behavior policy", folded(head.policy || "unknown")],
      ["stored as", `episode ${number(head.stored_as)} of ${head.version}`],
      ...Object.entries(head.errors).map(([name, text]) => [name, element("span", { class: "error" }, text)]),
    ];
    if (isMissing) facts.push(["final observation", "was never recorded; what is drawn there is zeros"]);
    say(`Episode ${this.episode}: ${number(lengths)} steps, return ${number(returns)}, ${end}.`);
    this.facts.replaceChildren(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  }

  go(step) {
    this.player.go(step);
  }

  mark() {
    const { step, playing } = this.player;
    this.now.textContent = `step ${number(step)} of ${number(this.head.length)}`;
    this.charts.mark(step);
    this.map.mark(step);
    this.frames.mark(step, playing && this.player.speed);
    this.showTexts();
    this.stepped?.(step);
  }

  showTexts() {
    const shown = this.head.texts.map((text) => {
      const value = text.error ? problem(new Error(text.error))
        : element("pre", {}, text.values[Math.min(this.step, text.values.length - 1)] ?? "");
      return element("div", {}, element("b", {}, text.name), value);
    });
    this.texts.replaceChildren(...shown);
  }
}
