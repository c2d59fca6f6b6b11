// Two numbers of each step as a place: a path through a maze, or any two numbers of a row.

import { choice, colors, element, named, onTheme, pixels } from "./dom.js";

const SIDE = 224;
const EDGE = 14;

export class PathMap {
  constructor() {
    this.canvas = element("canvas", { role: "img", "aria-label": "Path of the episode" });
    this.choices = element("div", { class: "bar" });
    this.root = element("figure", { class: "map" }, this.canvas,
      element("figcaption", {}, "Path: ○ start, ", element("span", { class: "mark" }, "●"), " this step, ■ terminated, □ truncated", this.choices));
    onTheme(() => (this.root.isConnected ? this.mark(this.step) : false));
  }

  show(head) {
    this.head = head;
    this.lines = new Map();
    for (const series of head.series)
      for (let index = 0; !series.error && index < series.shown; index += 1)
        this.lines.set(series.width === 1 ? series.name : `${series.name}[${index}]`, { series, index });
    const names = [...this.lines.keys()];
    const places = ["observations/achieved_goal", "observations/position", "observations/xy", "observations", "observations/observation"];
    const root = places.find((name) => names.includes(`${name}[1]`)) || names.find((name) => /^observations.*\[1\]$/.test(name))?.slice(0, -3);
    this.root.hidden = !root;
    if (!root) return;
    if (!names.includes(this.x)) this.x = `${root}[0]`;
    if (!names.includes(this.y)) this.y = `${root}[1]`;
    const options = named(names);
    const select = (axis) => choice(`Dimension on the ${axis} axis`, options, this[axis], (name) => {
      this[axis] = name;
      this.draw();
    });
    this.choices.replaceChildren(element("label", {}, "x ", select("x")), element("label", {}, "y ", select("y")));
    this.draw();
  }

  mark(step) {
    this.step = step;
    if (!this.root.hidden && this.head) this.draw();
  }

  values(name) {
    const { series, index } = this.lines.get(name);
    return { line: series.lines[index], series };
  }

  draw() {
    const [{ line: x, series }, { line: y }] = [this.values(this.x), this.values(this.y)];
    const context = pixels(this.canvas, SIDE, SIDE);
    const { maze } = this.head;
    const inMaze = maze && this.x.includes("achieved_goal[0]") && this.y.includes("achieved_goal[1]");
    const [left, right, bottom, top] = inMaze
      ? [-maze[0].length / 2, maze[0].length / 2, -maze.length / 2, maze.length / 2] : bounds(x, y);
    const scale = (SIDE - 2 * EDGE) / Math.max(right - left, top - bottom);
    const at = (a, b) => [SIDE / 2 + (a - (left + right) / 2) * scale, SIDE / 2 - (b - (bottom + top) / 2) * scale];
    if (inMaze) this.drawMaze(context, at, scale, left, top);
    const count = Math.min(x.length, y.length);
    context.strokeStyle = colors().fill;
    context.lineWidth = 1.4;
    context.beginPath();
    for (let index = 0; index < count; index += 1) {
      const [a, b] = at(x[index], y[index]);
      if (Number.isFinite(a) && Number.isFinite(b)) context.lineTo(a, b);
    }
    context.stroke();
    context.strokeStyle = context.fillStyle = colors().ink;
    circle(context, at(x[0], y[0]), 4, false);
    const [a, b] = at(x[count - 1], y[count - 1]);
    const end = this.head.facts.end || "";
    if (series.first + count * Math.max(1, series.every / 2) >= this.head.length && end !== "no flag")
      context[end.startsWith("terminated") ? "fillRect" : "strokeRect"](a - 4, b - 4, 8, 8);
    const now = Math.floor((this.step - series.first) / series.every) * (series.every === 1 ? 1 : 2);
    context.fillStyle = colors().mark;
    if (now >= 0) circle(context, at(x[Math.min(now, count - 1)], y[Math.min(now, count - 1)]), 5, true);
  }

  drawMaze(context, at, scale, left, top) {
    this.head.maze.forEach((cells, row) => cells.forEach((cell, column) => {
      const [x, y] = at(left + column, top - row);
      if (cell !== 1 && cell !== "g") return;
      context.globalAlpha = cell === 1 ? 1 : 0.4;
      context.fillStyle = cell === 1 ? colors().wall : colors().lines[2];
      context.fillRect(x, y, scale, scale);
      context.globalAlpha = 1;
    }));
  }
}

function circle(context, [x, y], radius, filled) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  if (filled) context.fill();
  else context.stroke();
}

function bounds(x, y) {
  const ends = (line) => {
    let [low, high] = [Infinity, -Infinity];
    for (const value of line) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    return low > high ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high];
  };
  return [...ends(x), ...ends(y)];
}
