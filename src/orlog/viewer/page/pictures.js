// Small pictures that are not plots over time: bars, dots with intervals, cells, and boxes with arrows.

import { colors, drawing, element, number, onTheme, pixels, tenths } from "./dom.js";

const [WIDTH, HEIGHT] = [340, 120];

function picture(width, height, label, ...children) {
  return drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, class: "picture" }, children);
}

const text = (x, y, words, more = {}) => drawing("text", { x, y, ...more }, words);

// Words that fit into a width, measured in the font that pictures have.
const ruler = document.createElement("canvas").getContext("2d");
export function fitted(words, width, font = "11px system-ui, sans-serif") {
  ruler.font = font;
  let shown = String(words);
  while (shown.length > 1 && ruler.measureText(shown === String(words) ? shown : `${shown}…`).width > width) shown = shown.slice(0, -1);
  return shown === String(words) ? shown : `${shown}…`;
}
export const widthOf = (words, font = "11px system-ui, sans-serif") => {
  ruler.font = font;
  return Math.ceil(ruler.measureText(words).width);
};

export function ticks(low, high, most) {
  // Round numbers between two ends, with the same distance, as many as may be.
  const size = 10 ** Math.floor(Math.log10((high - low) / most || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((one) => (high - low) / one <= most) || size * 10;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

export function bars(counts, [low, high], label, { whole = 0, ends = [low, high] } = {}) {
  // `whole` is how many whole numbers each bar stands for, 0 where they are not whole.
  const most = Math.max(1, ...counts);
  const step = WIDTH / counts.length;
  const each = counts.map((count, index) => {
    const tall = (count / most) * (HEIGHT - 34);
    const from = low + ((high - low) * index) / counts.length;
    const to = from + (high - low) / counts.length;
    const range = whole === 1 ? number(from + 0.5) : whole ? `${number(from + 0.5)} to ${number(to - 0.5)}` : `${number(from)} to ${number(to)}`;
    return drawing("rect", { class: "bar-fill", x: index * step, y: HEIGHT - 18 - tall, width: Math.max(1, step - 1), height: tall },
      drawing("title", {}, `${number(count)}: ${range}`));
  });
  const [first, last] = ends.map(number);
  return picture(WIDTH, HEIGHT, label, text(0, 11, `tallest: ${number(most)}`, { class: "faint" }), each,
    drawing("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 18, y2: HEIGHT - 18 }),
    counts.length === 1 ? text(WIDTH / 2, HEIGHT - 4, first, { "text-anchor": "middle" })
      : [text(0, HEIGHT - 4, first), text(WIDTH, HEIGHT - 4, last, { "text-anchor": "end" })]);
}

export const numbersOf = (rows) => rows.flatMap((row) => [row.score, ...(row.interval || []), ...(row.each || [])]);

// Both ends of a scale of scores: 0 is always on it, and 100 where scores are normalized.
export const scoreScale = (scores, isNormalized) => {
  const finite = scores.filter(Number.isFinite);
  return [Math.min(0, ...finite), Math.max(isNormalized ? 100 : 0, ...finite)];
};

export function dots(rows, label, isNormalized, [low, high], all = rows) {
  // Each row has a score, an interval or none, and the single scores that it is the mean of. `all` are the rows of all pictures
  // below each other, which have one scale.
  const [width, line] = [Math.max(300, Math.min(520, innerWidth - 40)), 22];
  const left = Math.min(width / 3, Math.max(...all.map((row) => widthOf(row.algorithm))) + 6);
  const at = (value) => left + 8 + ((value - low) / (high - low || 1)) * (width - left - 62);
  const bottom = rows.length * line + 6;
  const drawn = rows.map((row, index) => {
    const y = 14 + index * line;
    return drawing("g", { class: row.color }, drawing("title", {}, `${row.algorithm}: ${number(row.score)}${row.interval ? `, ${number(row.interval[0])} to ${number(row.interval[1])} (${row.kind})` : ""}${row.seeds ? `, ${row.seeds} seeds` : ""}${row.protocol ? `\n${row.protocol}` : ""}`),
      text(left, y + 4, fitted(row.algorithm, left), { "text-anchor": "end" }),
      row.interval && drawing("line", { class: "interval", x1: at(row.interval[0]), x2: at(row.interval[1]), y1: y, y2: y }),
      (row.each || []).map((one) => drawing("circle", { class: "seed", cx: at(one), cy: y, r: 2 })),
      drawing("circle", { class: "dot", cx: at(row.score), cy: y, r: 4.5 }),
      text(width, y + 4, tenths(row.score), { "text-anchor": "end" }));
  });
  const marks = ticks(low, high, 6).map((value) => [drawing("line", { class: value === 0 || (isNormalized && value === 100) ? "axis strong" : "axis", x1: at(value), x2: at(value), y1: 2, y2: bottom }),
    text(at(value), bottom + 12, number(value), { "text-anchor": "middle", class: "faint" })]);
  return picture(width, bottom + 16, label, marks, drawn);
}

export function cells(values, label, told, { side = 288, shade, x, y }) {
  // `values[column][row]`, the first row at the bottom; `shade(value)` is from -1 to 1, or null for nothing. `x` and `y` have a
  // title or none, and marks: [place from 0 to 1, text]; those of x stand upright where there is no room. Arrow keys and the pointer choose a cell,
  // and `told(column, row, value)` says what it holds.
  const upright = x.marks.some(([, words]) => widthOf(words) > side / x.marks.length);
  const left = Math.max(...y.marks.map(([, words]) => widthOf(words)), 0) + 8 + (y.title ? 16 : 0);
  const under = (upright ? Math.max(...x.marks.map(([, words]) => widthOf(words))) + 8 : 18) + (x.title ? 16 : 0);
  const size = side / values.length;
  const last = values.length - 1;
  let chosen = null;
  const draw = () => {
    const context = pixels(canvas, left + side + 6, side + under);
    const { ink, lines } = colors();
    values.forEach((column, at) => column.forEach((value, row) => {
      const share = shade(value);
      if (share == null) return;
      context.globalAlpha = Math.min(1, Math.abs(share));
      context.fillStyle = lines[share < 0 ? 1 : 0];
      context.fillRect(left + at * size, side - (row + 1) * size, size + 0.3, size + 0.3);
    }));
    context.globalAlpha = 1;
    context.strokeStyle = context.fillStyle = ink;
    context.font = "11px system-ui, sans-serif";
    context.lineWidth = 0.5;
    context.strokeRect(left, 0.5, side, side - 1);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [place, words] of y.marks) context.fillText(words, left - 5, Math.min(side - 6, Math.max(6, side * (1 - place))));
    for (const [place, words] of x.marks) {
      context.save();
      context.translate(left + side * place, side + (upright ? 5 : 11));
      context.textAlign = upright ? "right" : place < 0.1 ? "left" : place > 0.9 ? "right" : "center";
      if (upright) context.rotate(-Math.PI / 2);
      context.fillText(words, 0, 0);
      context.restore();
    }
    context.textAlign = "center";
    if (x.title) context.fillText(fitted(x.title, side), left + side / 2, side + under - 7);
    if (y.title) {
      context.translate(7, side / 2);
      context.rotate(-Math.PI / 2);
      context.fillText(fitted(y.title, side), 0, 0);
      context.setTransform(devicePixelRatio || 1, 0, 0, devicePixelRatio || 1, 0, 0);
    }
    if (!chosen) return;
    context.lineWidth = 2;
    context.strokeRect(left + chosen[0] * size, side - (chosen[1] + 1) * size, size, size);
  };
  const choose = (column, row) => {
    if (values[column]?.[row] === undefined) return;
    chosen = [column, row];
    draw();
    told(column, row, values[column][row]);
  };
  const point = (event) => choose(Math.floor((event.offsetX - left) / size), last - Math.floor(event.offsetY / size));
  const canvas = element("canvas", {
    role: "img", tabindex: 0, "aria-label": `${label}; arrow keys go through its cells`, class: "cells", pointermove: point, pointerdown: point,
    keydown: (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      const [column, row] = chosen || [0, last + 1];
      choose(Math.min(last, Math.max(0, column + by[0])), Math.min(last, Math.max(0, row + by[1])));
    },
  });
  draw();
  onTheme(() => (canvas.isConnected ? draw() : false));
  return element("div", { class: "wide" }, canvas);
}

export function graph(nodes) {
  // Boxes in columns by level, the dataset on the right, each joined to what it was made from.
  const [wide, tall, gap] = [190, 52, 108];
  const levels = [...new Set(nodes.map((node) => node.level))].sort((a, b) => b - a);
  const rows = levels.map((level) => nodes.filter((node) => node.level === level));
  const height = Math.max(...rows.map((row) => row.length)) * (tall + 14) + 8;
  const place = new Map();
  rows.forEach((row, column) => row.forEach((node, index) => place.set(node, [column * (wide + gap), 4 + index * (tall + 14)])));
  const lines = nodes.flatMap((node) => node.parents.map(([parent, how]) => {
    const [[x, y], [toX, toY]] = [place.get(nodes[parent]), place.get(node)];
    const middle = (x + wide + toX) / 2;
    return drawing("g", {}, drawing("title", {}, how),
      drawing("path", { class: "arrow", d: `M${x + wide},${y + tall / 2} C${middle},${y + tall / 2} ${middle},${toY + tall / 2} ${toX - 2},${toY + tall / 2}` }),
      text(middle, (y + toY + tall) / 2 - 5, fitted(how, gap - 12), { "text-anchor": "middle", class: "faint" }));
  }));
  const boxes = nodes.map((node) => {
    const [x, y] = place.get(node);
    return drawing("g", {}, drawing("title", {}, `${node.title}\n${node.text}`),
      drawing("rect", { class: "box", x, y, width: wide, height: tall, rx: 6 }),
      text(x + 9, y + 21, fitted(node.title, wide - 18, "600 11px system-ui, sans-serif"), { class: "strong" }), text(x + 9, y + 39, fitted(node.text, wide - 18), { class: "faint" }));
  });
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Where the data come from" },
    picture(rows.length * (wide + gap) - gap + 4, height, nodes.map((node) => node.title).join(", from "), lines, boxes));
}
