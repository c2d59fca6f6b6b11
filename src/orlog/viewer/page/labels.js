// Labels of an episode, by keys or buttons. What the bar shows, the server has on its disk.

import { element, number, problem, say } from "./dom.js";
import { get, post } from "./net.js";

export class LabelBar {
  constructor({ name, tags }, view) {
    Object.assign(this, { name, tags, view, episode: null, span: [null, null] });
    this.buttons = element("div", { class: "bar labels", role: "group", "aria-label": `Labels, layer ${name}` });
    this.status = element("p", { class: "note", role: "status" });
    this.root = element("section", { "aria-label": "Labels" }, this.buttons, this.status);
  }

  actions() {
    if (this.episode == null) return {};
    const tags = this.tags.map((tag, index) => [String((index + 1) % 10), () => this.tag(tag)]);
    return {
      s: () => this.send({ kind: "success" }), f: () => this.send({ kind: "failure" }), u: () => this.send({ kind: "undo" }),
      "[": () => this.mark(0), "]": () => this.mark(1), w: () => this.send({ kind: "save" }), ...Object.fromEntries(tags),
    };
  }

  async show(episode) {
    this.span = [null, null];
    this.episode = episode;
    await this.answer(() => get(`labels/${episode}`));
  }

  mark(side) {
    this.span[side] = Math.min(this.view.step, this.view.head.length - 1);
    this.draw();
  }

  tag(tag) {
    const [first, last] = this.span;
    if (first == null && last == null) return this.send({ kind: "tag", tag });
    if (first == null || last == null || first > last)
      return this.status.replaceChildren(problem(new Error("A span begins with [ and ends with ], at a later step.")));
    this.span = [null, null];
    return this.send({ kind: "tag", tag, first, last });
  }

  send(label) {
    const asked = label.kind === "save" ? label : { ...label, episode: this.episode };
    return this.answer(() => post("label", asked));
  }

  // Answers come in order, so that the last one shown is the last one made.
  answer(ask) {
    this.last = (this.last || Promise.resolve()).then(ask).then((made) => this.take(made))
      .catch((error) => this.status.replaceChildren(problem(error)));
    return this.last;
  }

  take(made) {
    if ("saved" in made) {
      if (this.made) this.made.unsaved = 0;
      this.draw(made.saved ? `Saved as ${made.saved}.` : "There is nothing new to save.");
      return;
    }
    if (made.episode !== this.episode) {
      location.hash = `#/0/episodes/${made.episode}`; // an undo of another episode shows it
      return;
    }
    this.made = made;
    this.draw();
  }

  draw(words) {
    const { made, span } = this;
    if (!made) return;
    const button = (key, text, isOn, act) =>
      element("button", { type: "button", "aria-pressed": isOn == null ? null : String(isOn), click: act }, element("kbd", {}, key), ` ${text}`);
    const actions = this.actions();
    const step = (value) => (value == null ? "…" : number(value));
    this.buttons.replaceChildren(
      button("s", "success", made.success === true, actions.s), button("f", "failure", made.success === false, actions.f),
      ...this.tags.map((tag, index) => {
        const key = String((index + 1) % 10);
        return button(key, tag, made.tags.includes(tag), actions[key]);
      }),
      button("[ ]", `steps ${step(span[0])} to ${step(span[1])}`, null, () => this.mark(span[0] == null ? 0 : 1)),
      button("u", "undo", null, actions.u), button("w", "save the layer", null, actions.w));
    const spans = made.spans.map(([tag, first, last]) => `${tag} at steps ${number(first)} to ${number(last)}`);
    const who = made.by ? `by ${made.by}, ${made.at}` : "not labelled";
    const all = `episodes labelled: ${number(made.labelled)}, labels since the last save: ${number(made.unsaved)}`;
    const text = words || [...spans, who, all].join(" · ");
    this.status.replaceChildren(text);
    say(text);
  }
}
