// Pictures that follow the pointer or fit their texts: cells of two numbers. The server draws the others.

import { drawing, element } from "./dom.js";

const PLAIN = "11px system-ui, sans-serif";
const picture = (width, height, attributes, ...children) =>
  drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "picture", ...attributes }, children);
const text = (x, y, words, more = {}) => drawing("text", { x, y, ...more }, words);

// Words that fit into a width, measured in the font that pictures have.
const ruler = document.createElement("canvas").getContext("2d");
export const widthOf = (words, font = PLAIN) => {
  ruler.font = font;
  return Math.ceil(ruler.measureText(words).width);
};
function fitted(words, width, font = PLAIN) {
  let shown = String(words);
  while (shown.length > 1 && widthOf(shown === String(words) ? shown : `${shown}…`, font) > width) shown = shown.slice(0, -1);
  return shown === String(words) ? shown : `${shown}…`;
}

export function ticks(low, high, most) {
  // Round numbers between two ends, with the same distance, as many as may be.
  const size = 10 ** Math.floor(Math.log10((high - low) / most || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((one) => (high - low) / one <= most) || size * 10;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

export function cells(values, label, told, { side = 288, shade, x, y }) {
  // `values[column][row]`, the first row at the bottom; `shade(value)` is from -1 to 1, or null for nothing. `x` and `y` have a
  // title or none, and marks: [place from 0 to 1, text]; those of x stand upright where there is no room. Arrow keys and the pointer choose a cell,
  // and `told(column, row, value)` says what it holds.
  const upright = x.marks.some(([, words]) => widthOf(words) > side / x.marks.length);
  const left = Math.max(...y.marks.map(([, words]) => widthOf(words)), 0) + 8 + (y.title ? 16 : 0);
  const under = (upright ? Math.max(...x.marks.map(([, words]) => widthOf(words))) + 8 : 18) + (x.title ? 16 : 0);
  const [size, last] = [side / values.length, values.length - 1];
  const shades = values.flatMap((column, at) => column.map((value, row) => {
    const share = shade(value);
    return share != null && drawing("rect", { class: `bar-fill c${share < 0 ? 1 : 0}`, "fill-opacity": Math.min(1, Math.abs(share)),
      x: left + at * size, y: side - (row + 1) * size, width: size + 0.3, height: size + 0.3 });
  }));
  const marks = [
    ...y.marks.map(([place, words]) => text(left - 5, Math.min(side - 2, Math.max(10, side * (1 - place) + 4)), words, { "text-anchor": "end" })),
    ...x.marks.map(([place, words]) => (upright
      ? text(0, 0, words, { "text-anchor": "end", transform: `translate(${left + side * place + 4} ${side + 5}) rotate(-90)` })
      : text(left + side * place, side + 14, words, { "text-anchor": place < 0.1 ? "start" : place > 0.9 ? "end" : "middle" }))),
    x.title && text(left + side / 2, side + under - 4, fitted(x.title, side), { "text-anchor": "middle" }),
    y.title && text(0, 0, fitted(y.title, side), { "text-anchor": "middle", transform: `translate(11 ${side / 2}) rotate(-90)` }),
  ];
  let chosen = [0, last + 1];
  const frame = drawing("rect", { class: "recorded", width: size, height: size, visibility: "hidden" });
  const choose = (column, row) => {
    if (values[column]?.[row] === undefined) return;
    chosen = [column, row];
    for (const [key, value] of Object.entries({ x: left + column * size, y: side - (row + 1) * size, visibility: "visible" })) frame.setAttribute(key, value);
    told(column, row, values[column][row]);
  };
  const point = (event) => {
    const from = root.getBoundingClientRect();
    choose(Math.floor((event.clientX - from.left - left) / size), last - Math.floor((event.clientY - from.top) / size));
  };
  const root = picture(left + side + 6, side + under, {
    tabindex: 0, "aria-label": `${label}; arrow keys go through its cells`, class: "picture cells", pointermove: point, pointerdown: point,
    keydown: (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      choose(...chosen.map((place, axis) => Math.min(last, Math.max(0, place + by[axis]))));
    },
  }, shades, drawing("rect", { class: "axis outline", x: left, y: 0.5, width: side, height: side - 1 }), marks, frame);
  return element("div", { class: "wide" }, root);
}
