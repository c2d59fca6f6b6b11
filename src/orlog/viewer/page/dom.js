// Elements, numbers as text, and colors. Texts of datasets become text nodes, never HTML.

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawing(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((one) => one != null && one !== false));
  return made;
}

export function table(headings, rows, { numbers = [], label, stacked = false } = {}) {
  const kind = (value, index) => {
    const text = value.textContent ?? value;
    if (value.firstElementChild || value.tagName === "CODE") return text.length > 24 && value.tagName !== "CODE" ? "long" : null;
    return numbers.includes(index) ? "number" : /\S{25}/.test(text) ? "breaks" : text.length > 24 ? "long" : "short";
  };
  // A stacked table is a list of its rows on a phone, each value below its heading, and is told as a table still.
  const role = (name) => (stacked ? name : null);
  const cell = (tag) => (value, index) => element(tag, { class: kind(value, index), scope: tag === "th" ? "col" : null,
    role: role(tag === "th" ? "columnheader" : "cell"), "data-heading": stacked && tag === "td" ? headings[index] : null }, value);
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label || headings.join(", ") },
    element("table", { class: stacked ? "stacked" : null, role: role("table") },
      element("thead", { role: role("rowgroup") }, element("tr", { role: role("row") }, headings.map(cell("th")))),
      element("tbody", { role: role("rowgroup") }, rows.map((row) => element("tr", { role: role("row") }, row.map(cell("td")))))));
}

export function problem(error) {
  return element("p", { class: "error", role: "alert" }, error.message || String(error));
}

export function choice(label, options, chosen, changed) {
  const select = element("select", { "aria-label": label, change: () => changed(select.value) },
    options.map(([value, text]) => element("option", { value, selected: String(value) === String(chosen) }, text)));
  return select;
}

// Names in choices are short: what stands in front of most of them is left out.
export const named = (names) => names.map((name) => [name, name.replace(/^observations\//, "")]);

export function say(text) {
  document.getElementById("said").textContent = text;
}

const grouped = new Intl.NumberFormat("en-US");

export function number(value) {
  if (value == null) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return Math.abs(value) < 1e15 ? grouped.format(value + 0) : String(value); // -0 is no number for people
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

// A score, as the command line shows it: what rounds to zero has no sign.
export const tenths = (value) => value.toFixed(1).replace(/^-0\.0$/, "0.0");

export function bytes(count) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const power = count < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3));
  return `${power ? (count / 1000 ** power).toPrecision(3) : count} ${units[power]}`;
}

// Lines that people with color blindness can tell apart, on white and on black.
const LIGHT = { ink: "#3d4650", grid: "#e3e7eb", mark: "#b3261e", fill: "#1f6fb4", wall: "#9aa5b1",
  lines: ["#0072b2", "#c84e00", "#00805d", "#a8438a", "#7d6100", "#2a8fc0", "#444b54", "#8c564b"] };
const DARK = { ink: "#b9c4cf", grid: "#2a323b", mark: "#ff8a80", fill: "#56b4e9", wall: "#4b5663",
  lines: ["#56b4e9", "#ff9e4a", "#2ed3a2", "#e79ac8", "#f0d24a", "#9cc9ff", "#c9d1d9", "#d8a08f"] };
const system = matchMedia("(prefers-color-scheme: dark)");
const repaint = new Set();

export const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
export const colors = () => (isDark() ? DARK : LIGHT);

// What is drawn on a canvas is drawn again when the theme changes; a function that returns false is dropped.
export function onTheme(draw) {
  repaint.add(draw);
}

export function showTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = isDark() ? "Light" : "Dark";
  for (const draw of repaint) if (draw() === false) repaint.delete(draw);
}
system.addEventListener("change", () => showTheme());

export function pixels(canvas, width, height) {
  // Returns a context in CSS pixels, sharp on any screen.
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}
