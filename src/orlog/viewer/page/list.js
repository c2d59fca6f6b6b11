// The list of episodes: only the rows in sight exist, and pages of them are asked for as they come into sight.

import { element, number, problem, say } from "./dom.js";
import { get, post } from "./net.js";

const ROW = 28; // pixels, as in style.css
const PAGE = 200;
const TALLEST = 12_000_000; // pixels that browsers can scroll; a longer list is scrolled in larger steps
const KEPT = 30; // pages
const [WIDEST, PADDING, MARK] = [320, 17, 17]; // pixels of a column, beside its text, and of a mark or an arrow
const [PLAIN, STRONG] = ["14px system-ui, sans-serif", "600 14px system-ui, sans-serif"];

// How wide words are in a font.
const ruler = document.createElement("canvas").getContext("2d");
const widthOf = (words, font) => {
  ruler.font = font;
  return Math.ceil(ruler.measureText(words).width);
};

// Seeds are names, not amounts.
const shown = (name, value) => (value == null ? "–" : typeof value === "number" && name !== "seeds" ? number(value) : String(value));

export class EpisodeList {
  constructor(dataset, index, opened) {
    Object.assign(this, { dataset, index, opened, where: "", by: "episode", descending: false });
    Object.assign(this, { pages: new Map(), matching: dataset.episodes, chosen: null, row: 0, order: 0 });
    this.filter = element("input", {
      type: "search", "aria-label": "Filter episodes", placeholder: "filter: returns > 100 and lengths >= 50",
      autocomplete: "off", spellcheck: "false", maxlength: 10000,
      input: () => this.filterSoon(), search: () => this.apply(),
      keydown: (event) => event.key === "Enter" && this.apply(),
    });
    this.count = element("span", { class: "muted" });
    this.save = element("button", { type: "button", disabled: true, click: () => this.askName() }, "Save as view");
    this.more = element("button", { type: "button", class: "more", hidden: true, click: () => this.box.scrollBy({ left: this.box.clientWidth * 0.8 }) });
    this.note = element("div", {});
    this.widths = new Map();
    this.head = element("div", { class: "row head", role: "row" });
    this.layer = element("div", { class: "layer", role: "rowgroup" });
    this.space = element("div", { class: "space", role: "presentation" }, this.layer);
    this.box = element("div", {
      class: "list", role: "grid", tabindex: 0, "aria-label": "Episodes", "aria-rowcount": dataset.episodes + 1,
      scroll: () => this.fit(),
    }, this.head, this.space);
    this.root = element("section", { class: "episodes", "aria-label": "List of episodes" },
      element("div", { class: "bar" }, this.filter),
      element("div", { class: "bar" }, this.count, this.more, this.save), this.note, this.box);
    this.measure({ columns: {} });
    new ResizeObserver(() => this.fit()).observe(this.box);
    this.show();
  }

  get query() {
    return { where: this.where, by: this.by, descending: this.descending };
  }

  get path() {
    return `data/${this.index}`;
  }

  template() {
    return this.dataset.columns.map((name) => `${this.widths.get(name) + PADDING}px`).join(" ");
  }

  // Columns are as wide as what they hold, and grow when a page with wider values comes.
  measure(page) {
    for (const name of this.dataset.columns) {
      const least = this.widths.get(name) ?? widthOf(name, STRONG) + (this.dataset.sortable.includes(name) ? MARK : 0);
      const texts = new Set((page.columns[name] || []).map((value) => shown(name, value)));
      const longest = [...texts].sort((a, b) => b.length - a.length).slice(0, 8); // the widest is among the longest
      this.widths.set(name, Math.max(least, Math.min(WIDEST, Math.max(0, ...longest.map((text) => widthOf(text, PLAIN))) + (name === "end" ? MARK : 0))));
    }
    this.drawHead();
  }

  hint() {
    // Columns that are only partly in sight are left blank, since a part of a number is another number.
    const [left, wide, edge] = [this.box.scrollLeft, this.box.clientWidth, PADDING / 2];
    const isRight = (one) => one.offsetLeft + one.offsetWidth > left + wide + edge;
    this.cut = [...this.head.children].map((one) => (isRight(one) || one.offsetLeft < left - edge) && one.offsetWidth <= wide);
    [...this.head.children].forEach((one, at) => one.classList.toggle("cut", this.cut[at]));
    const hidden = [...this.head.children].filter(isRight).length;
    this.more.hidden = !hidden;
    this.more.textContent = `${hidden} more column${hidden > 1 ? "s" : ""} →`;
  }

  fit() {
    this.hint();
    this.draw();
  }

  isText(name) {
    return this.dataset.texts.includes(name);
  }

  drawHead() {
    const cells = this.dataset.columns.map((name) => {
      const sorted = this.by === name ? (this.descending ? "descending" : "ascending") : "none";
      const arrow = { ascending: " ▲", descending: " ▼", none: "" }[sorted];
      const inner = this.dataset.sortable.includes(name)
        ? element("button", { type: "button", click: () => this.sort(name), title: `Sort by ${name}` }, name + arrow)
        : name;
      const kind = this.isText(name) || name === "end" ? null : "number";
      return element("span", { role: "columnheader", "aria-sort": sorted, class: kind }, inner);
    });
    this.head.style.gridTemplateColumns = this.template();
    this.head.replaceChildren(...cells);
    this.hint();
  }

  sort(name) {
    this.descending = this.by === name ? !this.descending : name !== "episode";
    this.by = name;
    this.drawHead();
    this.show();
  }

  filterSoon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.apply(), 500);
  }

  apply() {
    clearTimeout(this.waiting);
    const where = this.filter.value.trim();
    if (where === this.where) return;
    this.where = where;
    this.show(true);
  }

  // Returns a page of the list, or why there is none; of another order than is shown by now, null.
  async fetch(index) {
    const order = this.order;
    const page = await get(`${this.path}/episodes`, { ...this.query, first: index * PAGE, count: PAGE })
      .catch((error) => ({ error: error.message, matching: 0, columns: { episode: [] }, errors: {} }));
    if (order !== this.order) return null;
    this.pages.set(index, page);
    this.measure(page);
    if (page.error) this.note.replaceChildren(problem(new Error(page.error)));
    return page;
  }

  async show(isFiltered = false) {
    // Pages of another order are not this one's, whenever they come.
    const order = ++this.order;
    this.pages.clear();
    this.note.replaceChildren();
    const first = await this.fetch(0);
    if (!first) return;
    this.matching = first.matching;
    this.save.disabled = !this.where || !first.matching;
    const all = `${number(this.dataset.episodes)} episodes`;
    this.count.textContent = first.error ? "no list" : this.where ? `${number(first.matching)} of ${all}` : all;
    if (!first.error) say(this.count.textContent);
    for (const [name, text] of Object.entries(first.errors)) this.note.append(problem(new Error(`${name}: ${text}`)));
    this.space.style.height = `${this.height}px`;
    this.box.setAttribute("aria-rowcount", this.matching + 1);
    this.box.scrollTop = 0;
    if (this.chosen != null && !(await this.reveal(this.chosen, false)) && isFiltered && this.matching) this.chosen = null;
    if (order !== this.order) return;
    this.draw();
    this.shown?.();
  }

  get height() {
    return Math.min(TALLEST, this.matching * ROW);
  }

  get visible() {
    return Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
  }

  get first() {
    const last = Math.max(0, this.matching - this.visible);
    const scrolled = this.height - this.visible * ROW;
    if (scrolled <= 0) return 0;
    return this.height < TALLEST ? Math.min(last, Math.floor(this.box.scrollTop / ROW))
      : Math.min(last, Math.round((this.box.scrollTop / scrolled) * last));
  }

  draw() {
    const first = this.first;
    const last = Math.min(this.matching, first + this.visible + 3);
    const top = this.height < TALLEST ? first * ROW : this.box.scrollTop;
    this.layer.style.transform = `translateY(${top}px)`;
    const rows = [];
    for (let row = first; row < last; row += 1) rows.push(this.drawRow(row));
    this.layer.replaceChildren(...rows);
  }

  drawRow(row) {
    const page = this.page(Math.floor(row / PAGE));
    const at = row % PAGE;
    const episode = page?.columns.episode[at];
    const cells = this.dataset.columns.map((name, column) => {
      const values = page?.columns[name];
      const value = page?.error || page?.errors?.[name] ? "error" : values ? values[at] : "…";
      const text = shown(name, value);
      const kind = name === "end" ? ` end ${text.replaceAll(" ", "-")}` : typeof value === "number" ? " number" : "";
      return element("span", { role: "gridcell", class: `cell${kind}${this.cut[column] ? " cut" : ""}`, title: text.length > 30 ? text : null }, text);
    });
    const is = episode != null && episode === this.chosen;
    const made = element("div", {
      class: is ? "row chosen" : "row", role: "row", "aria-rowindex": row + 2, "aria-selected": String(is),
      click: () => episode != null && this.choose(episode, row),
    }, cells);
    made.style.gridTemplateColumns = this.template();
    return made;
  }

  page(index) {
    const found = this.pages.get(index) || { waiting: true };
    const isNew = !this.pages.delete(index);
    this.pages.set(index, found); // the newest is last
    if (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
    if (isNew) this.fetch(index).then((page) => page && this.draw());
    return found.waiting ? null : found;
  }

  choose(episode, row) {
    this.chosen = episode;
    this.row = row;
    this.left?.(false);
    this.bringIntoSight(row);
    this.draw();
    this.picked?.(episode);
  }

  bringIntoSight(row) {
    const first = this.first;
    if (row >= first && row < first + this.visible) return;
    const to = Math.max(0, row < first ? row : row - this.visible + 1);
    const last = Math.max(1, this.matching - this.visible);
    this.box.scrollTop = this.height < TALLEST ? to * ROW : (to / last) * (this.height - this.visible * ROW);
  }

  async reveal(episode, scrolls = true) {
    this.chosen = episode;
    const found = await get(`${this.path}/row`, { ...this.query, episode }).catch(() => ({ row: null }));
    if (this.chosen !== episode) return true;
    this.left?.(found.row == null && Boolean(this.where));
    if (found.row == null) return false;
    this.row = found.row;
    if (scrolls) this.bringIntoSight(found.row);
    this.draw();
    return true;
  }

  async move(by) {
    if (!this.matching) return;
    const row = this.chosen == null ? 0 : Math.min(this.matching - 1, Math.max(0, this.row + by));
    const known = this.pages.get(Math.floor(row / PAGE));
    let episode = known?.columns?.episode[row % PAGE];
    if (episode == null) {
      const page = await get(`${this.path}/episodes`, { ...this.query, first: row, count: 1 });
      episode = page.columns.episode[0];
    }
    if (episode != null && episode !== this.chosen) this.choose(episode, row);
  }

  askName() {
    const name = element("input", { "aria-label": "Name of the view", required: true, maxlength: 80, value: "view" });
    const form = element("form", {
      class: "bar",
      submit: async (event) => {
        event.preventDefault();
        try {
          const saved = await post(`${this.path}/view`, { name: name.value, where: this.where });
          this.note.replaceChildren(element("p", { class: "good", role: "status" },
            `Saved as ${saved.file} in ${this.opened.folder}. Open it with: ${saved.command}`));
        } catch (error) {
          form.nextSibling?.remove();
          form.after(problem(error));
        }
      },
    }, name, ".json", element("button", {}, "Save"));
    this.note.replaceChildren(form);
    name.select();
  }
}
