// Columns of numbers over time. All plots share one step, which a line marks, and one range of steps.

import { element, isDark, number } from "./dom.js";

// The colors of shared.css, on white and on black, which people with color blindness can tell apart.
const LIGHT = { ink: "#3d4650", grid: "#e3e7eb", mark: "#b3261e",
  lines: ["#0072b2", "#c84e00", "#00805d", "#a8438a", "#7d6100", "#2a8fc0", "#444b54", "#8c564b"] };
const DARK = { ink: "#b9c4cf", grid: "#2a323b", mark: "#ff8a80",
  lines: ["#56b4e9", "#ff9e4a", "#2ed3a2", "#e79ac8", "#f0d24a", "#9cc9ff", "#c9d1d9", "#d8a08f"] };
const colors = () => (isDark() ? DARK : LIGHT);
const HEIGHT = 120;
const LINES = 8; // of one plot
const FIRST = 6; // plots that are drawn before the browser has told which ones are in sight

export class Charts {
  // `moved(step)` is called when the pointer is over a step, `zoomed(first, last)` when a range is chosen.
  constructor(moved, zoomed) {
    Object.assign(this, { moved, zoomed, all: [], root: element("div", { class: "charts" }), step: 0 });
    this.signature = "";
    // Plots out of sight are drawn when they come near, so that hundreds of columns cost no more than ten.
    this.seen = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
      const one = this.all.find((other) => other.root === target);
      if (!one) return;
      one.inSight = isIntersecting;
      if (isIntersecting) this.draw(one);
    }), { rootMargin: "300px" });
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.root);
    addEventListener("theme", () => this.root.isConnected && this.all.forEach((one) => one.chart?.redraw(false)));
  }

  show(head) {
    this.head = head;
    const asked = head.window;
    this.range = [asked.first, Math.max(asked.first + 1, asked.last)];
    const drawn = head.series.flatMap((series) => plots(series));
    // The next episode of a dataset has the same plots, which then get new numbers only.
    const signature = JSON.stringify(drawn.map((one) => [one.title, one.names, Boolean(one.error)]));
    if (signature === this.signature) {
      drawn.forEach((plot, index) => this.fill(this.all[index], plot));
    } else {
      this.seen.disconnect();
      for (const one of this.all) one.chart?.destroy();
      this.signature = signature;
      this.all = drawn.map((plot, index) => this.make(plot, index < FIRST));
      this.root.replaceChildren(...this.all.map((one) => one.root));
      for (const one of this.all) this.seen.observe(one.root);
    }
    this.mark(this.step);
  }

  make(plot, inSight) {
    const values = plot.names.map(() => element("span", { class: "value" }));
    const toggles = plot.names.map((name, index) =>
      element("button", {
        type: "button", class: "line", "aria-pressed": "true", title: `Show or hide ${plot.title}${name && `[${name}]`}`,
        click: (event) => this.toggle(one, index, event.currentTarget),
      }, element("i", { class: `swatch c${index % LINES}` }), name ? element("span", {}, `${/^\d+$/.test(name) ? `[${name}]` : name} = `) : "", values[index]));
    const note = element("span", { class: "muted" });
    const place = element("div", { class: "plot" });
    const root = element("figure", { "aria-label": plot.title },
      element("figcaption", {}, element("b", {}, plot.title), " ", note, " ", toggles), place);
    const one = { root, place, note, values, inSight, marker: element("div", { class: "marker" }) };
    this.fill(one, plot);
    return one;
  }

  fill(one, plot) {
    one.plot = plot;
    if (plot.error) {
      one.chart?.destroy();
      one.chart = null;
      one.isStale = false;
      one.place.replaceChildren(element("p", { class: "error", role: "alert" }, plot.error));
      return;
    }
    one.note.textContent = plot.note;
    one.isStale = true;
    if (one.inSight) this.draw(one);
  }

  draw(one) {
    const { plot } = one;
    if (one.isStale && one.chart) one.chart.setData([plot.x, ...plot.lines]);
    else if (one.isStale) {
      one.place.replaceChildren();
      one.chart = new uPlot(this.options(one), [plot.x, ...plot.lines], one.place);
      one.chart.over.append(one.marker);
      one.chart.ctx.canvas.setAttribute("aria-hidden", "true"); // the values stand above it
      one.chart.over.addEventListener("pointermove", (event) => {
        if (event.buttons) return; // a range is being chosen
        const step = Math.round(one.chart.posToVal(event.offsetX, "x"));
        this.moved(Math.min(this.head.length, Math.max(0, step)), false);
      });
      one.chart.over.addEventListener("click", () => this.moved(this.step, true));
      one.chart.over.addEventListener("dblclick", () => this.zoomed(0, null));
    }
    one.isStale = false;
    this.markOne(one);
  }

  options(one) {
    const ink = () => colors().ink;
    const axis = { stroke: ink, grid: { stroke: () => colors().grid, width: 1 }, ticks: { show: false },
      font: "11px system-ui, sans-serif" };
    return {
      width: this.width, height: HEIGHT, legend: { show: false },
      cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, dist: 8 }, bind: { dblclick: () => null } },
      scales: { x: { time: false, range: () => this.range }, y: { range: (_, low, high) => padded(low, high) } },
      axes: [{ ...axis, size: 22, space: 60 }, { ...axis, size: 56, space: 26, values: (_, ticks) => ticks.map(number) }],
      series: [{}, ...one.plot.names.map((_, index) => ({
        stroke: () => colors().lines[index % LINES], width: 1.25, points: { show: one.plot.x.length < 2 },
        paths: one.plot.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined, pxAlign: 0,
      }))],
      hooks: {
        setSelect: [(chart) => chart.select.width > 8 && this.select(chart)],
        draw: [(chart) => this.drawEnd(chart)],
      },
    };
  }

  select(chart) {
    const first = Math.max(0, Math.floor(chart.posToVal(chart.select.left, "x")));
    const last = Math.ceil(chart.posToVal(chart.select.left + chart.select.width, "x"));
    chart.setSelect({ width: 0, height: 0 }, false);
    if (last > first) this.zoomed(first, Math.min(last, this.head.length) + 1);
  }

  drawEnd(chart) {
    // A line where the episode ended: whole for a termination, broken for a truncation.
    const end = this.head.facts.end;
    const { ctx, bbox } = chart;
    const x = chart.valToPos(this.head.length, "x", true);
    if (!end || end === "no flag" || x > bbox.left + bbox.width + 2) return;
    ctx.save();
    ctx.strokeStyle = colors().mark;
    ctx.lineWidth = 2;
    ctx.setLineDash(end.startsWith("terminated") ? [] : [5, 5]);
    ctx.beginPath();
    ctx.moveTo(x - 1, bbox.top);
    ctx.lineTo(x - 1, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  toggle(one, index, button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    one.chart?.setSeries(index + 1, { show: shown });
  }

  mark(step) {
    this.step = step;
    for (const one of this.all) if (one.inSight) this.markOne(one);
  }

  markOne(one) {
    if (!one.chart) return;
    const { x, lines } = one.plot;
    const left = one.chart.valToPos(this.step, "x");
    one.marker.style.transform = `translateX(${left}px)`;
    // Without asking for the size of an element, which would lay out the page for each plot.
    one.marker.hidden = left < 0 || left > one.chart.bbox.width / devicePixelRatio + 1;
    const at = place(one.plot, this.step);
    lines.forEach((line, index) => {
      one.values[index].textContent = at == null || x[at] == null ? "–" : number(line[at]);
    });
  }

  get width() {
    return Math.max(160, this.root.clientWidth || 600);
  }

  resize() {
    for (const one of this.all) if (one.chart && one.chart.width !== this.width) one.chart.setSize({ width: this.width, height: HEIGHT });
    this.mark(this.step);
  }
}

function steps(series) {
  // The step of each point; of a smallest and a largest value, the first and the middle of their steps.
  return Float64Array.from({ length: series.lines[0].length }, (_, index) => (series.every === 1
    ? series.first + index
    : series.first + Math.floor(index / 2) * series.every + (index % 2) * series.every * 0.5));
}

function plots(series) {
  if (series.error) return [{ title: series.name, names: [], lines: [], x: [], error: series.error }];
  const x = steps(series);
  const found = [];
  for (let from = 0; from < series.shown; from += LINES) {
    const lines = series.lines.slice(from, from + LINES);
    const one = series.width === 1;
    const range = series.width > LINES ? `[${from}…${from + lines.length - 1}]` : "";
    const notes = [from ? "" : `${series.dtype}${series.shape.length ? ` [${series.shape.join(", ")}]` : ""}`];
    if (!from && series.shown < series.width) notes.push(`the first ${series.shown} of ${number(series.width)} numbers`);
    if (series.every > 1) notes.push(`smallest and largest of each ${number(series.every)} steps; zoom in for every step`);
    if (!from && series.non_finite) notes.push(`${number(series.non_finite)} not finite`);
    found.push({
      title: series.name + range, names: lines.map((_, index) => series.dimensions?.[from + index] ?? (one ? "" : `${from + index}`)), x,
      lines: series.non_finite ? lines.map(finite) : lines, note: notes.filter(Boolean).join(" · "),
      stepped: /^(u?int|bool)/.test(series.dtype), every: series.every, first: series.first,
    });
  }
  return found;
}

// uPlot leaves a gap where there is null; it would draw nothing right with infinities.
const finite = (line) => Array.from(line, (value) => (Number.isFinite(value) ? value : null));

function place(plot, step) {
  if (!plot.x.length || step < plot.first) return null;
  const at = plot.every === 1 ? step - plot.first : Math.floor((step - plot.first) / plot.every) * 2;
  return at < plot.x.length ? at : null;
}

function padded(low, high) {
  if (low == null) return [0, 1];
  const more = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  return [low - more, high + more];
}
