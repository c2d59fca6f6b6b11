// Two numbers of each step as a place: a path through a maze, or any two numbers of a row.

import { choice, drawing, element, named } from "./dom.js";

const SIDE = 224;
const EDGE = 14;
const PLACES = ["observations/achieved_goal", "observations/position", "observations/xy", "observations", "observations/observation"];

export class PathMap {
  constructor() {
    this.picture = drawing("svg", { class: "picture", width: SIDE, height: SIDE, role: "img", "aria-label": "Path of the episode" });
    this.now = drawing("circle", { class: "end", r: 5 });
    this.choices = element("div", { class: "bar" });
    this.root = element("figure", { class: "map" }, this.picture,
      element("figcaption", {}, "Path: ○ start, ", element("span", { class: "mark" }, "●"), " this step, ■ terminated, □ truncated", this.choices));
  }

  show(head) {
    this.head = head;
    this.lines = new Map();
    for (const series of head.series)
      for (let index = 0; !series.error && index < series.shown; index += 1)
        this.lines.set(series.width === 1 ? series.name : `${series.name}[${index}]`, { series, values: series.lines[index] });
    const names = [...this.lines.keys()];
    const root = PLACES.find((name) => names.includes(`${name}[1]`)) || names.find((name) => /^observations.*\[1\]$/.test(name))?.slice(0, -3);
    this.root.hidden = !root;
    if (!root) return;
    if (!names.includes(this.x)) this.x = `${root}[0]`;
    if (!names.includes(this.y)) this.y = `${root}[1]`;
    const select = (axis) => element("label", {}, `${axis} `, choice(`Dimension on the ${axis} axis`, named(names), this[axis], (name) => {
      this[axis] = name;
      this.draw();
    }));
    this.choices.replaceChildren(select("x"), select("y"));
    this.draw();
  }

  draw() {
    const [{ values: x, series }, { values: y }] = [this.lines.get(this.x), this.lines.get(this.y)];
    const { maze, facts, length } = this.head;
    const inMaze = maze && this.x.includes("achieved_goal[0]") && this.y.includes("achieved_goal[1]");
    const [left, right] = inMaze ? [-maze[0].length / 2, maze[0].length / 2] : ends(x);
    const [bottom, top] = inMaze ? [-maze.length / 2, maze.length / 2] : ends(y);
    const scale = (SIDE - 2 * EDGE) / Math.max(right - left, top - bottom);
    this.series = series;
    const at = (a, b) => [SIDE / 2 + (a - (left + right) / 2) * scale, SIDE / 2 - (b - (bottom + top) / 2) * scale];
    this.points = Array.from(x, (value, index) => (Number.isFinite(value) && Number.isFinite(y[index]) ? at(value, y[index]) : null));
    const known = this.points.filter(Boolean);
    const cells = inMaze ? maze.flatMap((row, down) => row.map((cell, across) => {
      const [a, b] = at(left + across, top - down);
      return (cell === 1 || cell === "g") && drawing("rect", { class: cell === 1 ? "wall" : "goal", x: a, y: b, width: scale, height: scale });
    })) : [];
    const [first, last] = [known[0] || [0, 0], known.at(-1) || [0, 0]];
    const isWhole = series.first + x.length * Math.max(1, series.every / 2) >= length;
    const end = isWhole && facts.end && facts.end !== "no flag";
    this.picture.replaceChildren(...cells.filter(Boolean), drawing("path", { class: "curve c0", d: `M${known.join("L")}` }),
      drawing("circle", { class: "recorded", cx: first[0], cy: first[1], r: 4 }),
      end ? drawing("rect", { class: facts.end.startsWith("terminated") ? "end" : "recorded", x: last[0] - 4, y: last[1] - 4, width: 8, height: 8 }) : "", this.now);
    this.mark(this.step || 0);
  }

  mark(step) {
    this.step = step;
    if (this.root.hidden || !this.points) return;
    const { first, every } = this.series;
    const at = Math.floor((step - first) / every) * (every === 1 ? 1 : 2);
    const place = at >= 0 && this.points[Math.min(at, this.points.length - 1)];
    this.now.setAttribute("visibility", place ? "visible" : "hidden");
    if (!place) return;
    this.now.setAttribute("cx", place[0]);
    this.now.setAttribute("cy", place[1]);
  }
}

function ends(line) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of line) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return low > high ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high];
}
