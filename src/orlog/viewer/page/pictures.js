// Small pictures that are not plots over time: bars, dots with intervals, cells, and boxes with arrows.

import { colors, drawing, element, number, onTheme, pixels } from "./dom.js";

const [WIDTH, HEIGHT] = [340, 120];

function picture(width, height, label, ...children) {
  return drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, class: "picture" }, children);
}

const text = (x, y, words, more = {}) => drawing("text", { x, y, ...more }, words);

export function bars(counts, [low, high], label) {
  const most = Math.max(1, ...counts);
  const step = WIDTH / counts.length;
  const each = counts.map((count, index) => {
    const tall = (count / most) * (HEIGHT - 34);
    const from = low + ((high - low) * index) / counts.length;
    return drawing("rect", { class: "bar-fill", x: index * step, y: HEIGHT - 18 - tall, width: Math.max(1, step - 1), height: tall },
      drawing("title", {}, `${number(count)} from ${number(from)} to ${number(from + (high - low) / counts.length)}`));
  });
  return picture(WIDTH, HEIGHT, label, text(0, 11, `tallest: ${number(most)}`, { class: "faint" }), each,
    drawing("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 18, y2: HEIGHT - 18 }),
    text(0, HEIGHT - 4, number(low)), text(WIDTH, HEIGHT - 4, number(high), { "text-anchor": "end" }));
}

export function dots(rows, label) {
  // Each row has a score, an interval or none, and the single scores that it is the mean of.
  const ends = rows.flatMap((row) => [row.score, ...(row.interval || []), ...(row.each || [])]).filter(Number.isFinite);
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const [left, width, line] = [130, Math.max(300, Math.min(460, innerWidth - 40)), 22];
  const at = (value) => left + 8 + ((value - low) / (high - low || 1)) * (width - left - 70);
  const height = rows.length * line + 24;
  const drawn = rows.map((row, index) => {
    const y = 14 + index * line;
    return drawing("g", {}, drawing("title", {}, `${row.algorithm}: ${number(row.score)}${row.interval ? `, ${number(row.interval[0])} to ${number(row.interval[1])} (${row.kind})` : ""}${row.seeds ? `, ${row.seeds} seeds` : ""}${row.protocol ? `\n${row.protocol}` : ""}`),
      text(left - 4, y + 4, short(row.algorithm, 20), { "text-anchor": "end" }),
      row.interval && drawing("line", { class: "interval", x1: at(row.interval[0]), x2: at(row.interval[1]), y1: y, y2: y }),
      (row.each || []).map((one) => drawing("circle", { class: "seed", cx: at(one), cy: y, r: 2 })),
      drawing("circle", { class: "dot", cx: at(row.score), cy: y, r: 4.5 }),
      text(width, y + 4, row.score.toFixed(1), { "text-anchor": "end" }));
  });
  const bottom = height - 12;
  return picture(width, height, label, drawing("line", { class: "axis", x1: at(0), x2: at(0), y1: 2, y2: bottom - 6 }), drawn,
    text(at(low), bottom + 10, number(low)), text(at(high), bottom + 10, number(high), { "text-anchor": "end" }));
}

const short = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);

export function cells(values, side, shade, label, hovered) {
  // `values[column][row]`, the first row at the bottom; `shade(value)` is from -1 to 1, or null for nothing.
  const canvas = element("canvas", { role: "img", "aria-label": label, class: "cells" });
  const draw = () => {
    const context = pixels(canvas, side, side);
    const size = side / values.length;
    values.forEach((column, x) => column.forEach((value, y) => {
      const share = shade(value);
      if (share == null) return;
      context.globalAlpha = Math.min(1, Math.abs(share));
      context.fillStyle = colors().lines[share < 0 ? 1 : 0];
      context.fillRect(x * size, side - (y + 1) * size, size + 0.3, size + 0.3);
    }));
  };
  draw();
  onTheme(() => (canvas.isConnected ? draw() : false));
  canvas.addEventListener("pointermove", (event) => {
    const size = canvas.clientWidth / values.length;
    const [x, y] = [Math.floor(event.offsetX / size), values.length - 1 - Math.floor(event.offsetY / size)];
    if (values[x]?.[y] !== undefined) hovered(x, y, values[x][y]);
  });
  return canvas;
}

export function graph(nodes) {
  // Boxes in columns by level, the dataset on the right, each joined to what it was made from.
  const [wide, tall, gap] = [190, 52, 70];
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
      text(middle, (y + toY + tall) / 2 - 5, short(how, 12), { "text-anchor": "middle", class: "faint" }));
  }));
  const boxes = nodes.map((node) => {
    const [x, y] = place.get(node);
    return drawing("g", {}, drawing("title", {}, `${node.title}\n${node.text}`),
      drawing("rect", { class: "box", x, y, width: wide, height: tall, rx: 6 }),
      text(x + 9, y + 21, short(node.title, 27), { class: "strong" }), text(x + 9, y + 39, short(node.text, 26), { class: "faint" }));
  });
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Where the data come from" },
    picture(rows.length * (wide + gap) - gap + 4, height, nodes.map((node) => node.title).join(", from "), lines, boxes));
}
