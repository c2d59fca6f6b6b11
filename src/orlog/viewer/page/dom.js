// Elements, tables, and numbers as text. Texts of datasets become text nodes, never HTML.

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawing(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

// What the server drew, whose texts it has escaped; the page's policy lets no script of it run.
export const drawn = (text) => [...new DOMParser().parseFromString(text, "text/html").body.children];

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

const system = matchMedia("(prefers-color-scheme: dark)");
export const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";

export function showTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = isDark() ? "Light" : "Dark";
  dispatchEvent(new Event("theme")); // what is on a canvas is drawn again
}
system.addEventListener("change", () => showTheme());
