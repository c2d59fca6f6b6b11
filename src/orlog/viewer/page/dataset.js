// What is known of a dataset, and figures of all its data, which are computed when this view is first opened.

import { choice, element, named, number, problem, say, table } from "./dom.js";
import { getWhenReady } from "./net.js";
import { bars, cells, dots, graph } from "./pictures.js";

const SIDE = 288;

export function datasetView(index, dataset) {
  const root = element("article", { class: "sheet" }, element("h2", {}, dataset.title));
  const part = (title, path, fill) => {
    const place = element("div", {});
    const wait = element("p", { class: "muted", role: "status" });
    root.append(...(title ? [element("h3", {}, title)] : []), wait, place);
    const from = performance.now();
    const progress = (done, total) => {
      if (performance.now() - from > 500) wait.textContent = `Reading the data${total ? `: ${number(done)} of ${number(total)}` : ""} …`;
      return root.isConnected;
    };
    return getWhenReady(path, {}, progress)
      .then((found) => found && fill(place, found)).catch((error) => place.replaceChildren(problem(error)))
      .finally(() => wait.remove());
  };
  part("", `data/${index}/about`, (place, found) => showAbout(place, found, index))
    .then(() => part("Figures of the data", `data/${index}/statistics`, (place, found) => showFigures(place, found, index)))
    .then(() => showAudit(root, index));
  return root;
}

function showAbout(place, about) {
  place.append(table(["", ""], about.facts.map(([name, text]) => [element("b", {}, name), text]), { label: "Facts" }));
  place.append(element("details", {}, element("summary", {}, `${about.columns.length} columns`),
    table(["column", "type", "row", "rows"], about.columns, { numbers: [3] })));
  place.append(element("h3", {}, "Where it comes from"),
    element("p", { class: "note" }, about.lineage.length > 1 ? "Back to recipes and files. Hover for digests and parameters." : "It was written here from scratch, or nothing is recorded of what it was made from."), graph(about.lineage));
  if (about.versions.length > 1)
    place.append(element("h3", {}, "Versions"), table(["version", "episodes", "steps", "here", "changes", "digest"],
      about.versions.map((one) => [one.version + (one.shown ? " (shown)" : ""), number(one.episodes), number(one.steps),
        one.here ? "yes" : "no", [one.changes, one.status].filter(Boolean).join("; "), element("code", {}, one.digest.slice(0, 19))]),
      { numbers: [1, 2] }),
      element("p", { class: "note" }, "To see what differs between two that are here: orlog open ",
        about.versions.filter((one) => one.here).slice(0, 2).map((one) => one.name).reverse().join(" ")));
  if (about.references.length)
    place.append(element("h3", {}, "Reference returns"), table(["score", "return", "policy", "source"], about.references, { numbers: [1] }));
  if (!about.scores.length) return;
  place.append(element("h3", {}, "Recorded and published scores"), element("p", { class: "note" },
    "Large dots are means, small ones single seeds, bars what is said below. Compare scores of one block only: others were measured in another way."));
  about.scores.forEach((section, at) => {
    const kinds = [...new Set(section.scores.map((row) => row.kind).filter(Boolean))];
    const caveats = [...new Set(section.scores.flatMap((row) => row.caveats))];
    place.append(element("details", { open: at < 2 }, element("summary", {}, section.title), dots(section.scores, section.title),
      element("p", { class: "note" }, [section.protocol, kinds.length && `bars: ${kinds.join("; ")}`, section.source, ...caveats].filter(Boolean).join(" · "))));
  });
}

function showFigures(place, found, index) {
  const histograms = found.histograms.map((one) => element("figure", {},
    element("figcaption", {}, element("b", {}, one.label), ` mean ${number(one.mean)}, median ${number(one.median)}, standard deviation ${number(one.deviation)}${one.non_finite ? `, ${number(one.non_finite)} not finite` : ""}`),
    one.counts.length ? bars(one.counts, one.edges, `Histogram of ${one.label}`) : one.text));
  const ends = Object.entries(found.ends).map(([word, count]) => `${number(count)} ${word}`).join(", ");
  place.append(element("div", { class: "pictures" }, histograms), element("p", {}, element("b", {}, "ends: "), ends));
  for (const [name, error] of Object.entries(found.errors)) place.append(problem(new Error(`${name}: ${error}`)));
  if (!found.names.length) return;
  const all = found.sampled_steps >= found.all_steps;
  place.append(element("p", { class: "note" }, all ? `Below: all ${number(found.all_steps)} steps.`
    : `Below: an even sample of ${number(found.sampled_steps)} of ${number(found.all_steps)} steps (${number(found.sampled_episodes)} whole episodes).`));
  const two = element("div", { class: "pictures" });
  place.append(two);
  showCoverage(two, found, index);
  showCorrelation(two, found);
  showActions(place, found);
  place.append(element("details", {}, element("summary", {}, `Ranges of ${found.names.length} numbers`),
    table(["number", "smallest", "mean", "standard deviation", "largest"],
      found.names.map((name, at) => [name, ...found.ranges[at].map(number)]), { numbers: [1, 2, 3, 4] })));
}

function showCoverage(place, found, index) {
  const names = found.names;
  const pair = ["observations/achieved_goal", "observations"].map((root) => names.filter((name) => name.startsWith(root)))
    .find((some) => some.length > 1) || names;
  if (names.length < 2) return;
  const chosen = { x: pair[0], y: pair[1] };
  const drawn = element("div", {});
  const said = element("figcaption", {});
  const draw = async () => {
    try {
      const map = await getWhenReady(`data/${index}/coverage`, chosen, () => place.isConnected);
      if (!map) return;
      const most = Math.log1p(Math.max(...map.counts.flat()));
      drawn.replaceChildren(cells(map.counts, SIDE, (count) => (count ? 0.15 + 0.85 * (Math.log1p(count) / most) : null),
        `Coverage of ${chosen.x} and ${chosen.y}`, (x, y, count) => {
          const at = (range, cell) => number(range[0] + ((range[1] - range[0]) * (cell + 0.5)) / map.counts.length);
          said.textContent = `${at(map.x, x)}, ${at(map.y, y)}: ${number(count)} steps`;
        }));
      said.textContent = `${(100 * map.visited).toFixed(0)} % of ${map.counts.length}² cells were visited; the stronger the color, the more often (logarithm).`;
    } catch (error) {
      drawn.replaceChildren(problem(error));
    }
  };
  const pick = (axis) => element("label", {}, `${axis} `, choice(`Coverage, ${axis}`, named(names), chosen[axis], (name) => {
    chosen[axis] = name;
    draw();
  }));
  place.append(element("figure", { class: "map" }, element("b", {}, "Coverage"), drawn, said, pick("x"), " ", pick("y")));
  draw();
}

function showCorrelation(place, found) {
  if (found.correlation.length < 2) return;
  const turned = found.correlation.map((row) => [...row].reverse()); // the first number is on top
  const said = element("figcaption", {}, "Blue: together, orange: opposite. Hover for names.");
  place.append(element("figure", { class: "map" }, element("b", {}, "Correlation of numbers"),
    cells(turned, SIDE, (value) => value, "Correlation of numbers", (x, y, value) => {
      const other = found.names[found.names.length - 1 - y];
      said.textContent = `${found.names[x]}, ${other}: ${value == null ? "one of them never changes" : value.toFixed(3)}`;
    }), said));
}

function showActions(place, found) {
  if (!found.actions.length) return;
  place.append(element("h3", {}, "Use of actions"));
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const figures = found.actions.map((one) => (one.taken
    ? element("figure", {}, element("figcaption", {}, element("b", {}, one.name), ` ${one.taken.filter(([, share]) => share).length} of ${number(one.of)} actions taken`),
      bars(one.taken.map(([, share]) => Math.round(share * found.sampled_steps)), [one.taken[0][0] - 0.5, one.taken.at(-1)[0] + 0.5], one.name))
    : element("figure", {}, element("figcaption", {}, element("b", {}, one.name),
      ` on a bound: ${percent(one.on_low)} at ${number(one.bounds[0])}, ${percent(one.on_high)} at ${number(one.bounds[1])}`),
    bars(one.counts, one.bounds, one.name))));
  place.append(element("div", { class: "pictures" }, figures));
}

function showAudit(root, index) {
  const place = element("div", {});
  const button = element("button", { type: "button", click: async () => {
    button.disabled = true;
    const from = performance.now();
    try {
      const audit = await getWhenReady(`data/${index}/audit`, {}, (done, total) => {
        place.textContent = `Reading every step: ${number(done)} of ${number(total)}${done ? `, about ${Math.ceil(((performance.now() - from) / 1000) * (total / done - 1))} s left` : ""}`;
        return root.isConnected;
      });
      if (audit) showFindings(place, audit, index);
    } catch (error) {
      place.replaceChildren(problem(error));
      button.disabled = false;
    }
  } }, "Audit the data");
  root.append(element("h3", {}, "Audit"), element("p", { class: "note" }, "Reads all data once and tells what is wrong with them, as orlog audit does."), button, place);
}

function showFindings(place, audit, index) {
  const rows = audit.findings.map((one) => {
    const at = one.episode == null ? "" : element("a", { href: `#/${index}/episodes/${one.episode}${one.step == null ? "" : `?step=${one.step}`}` },
      `episode ${number(one.episode)}${one.step == null ? "" : `, step ${number(one.step)}`}`);
    return [element("span", { class: one.severity === "error" ? "error" : null }, one.severity), one.check, one.column, one.text, at];
  });
  const left = Object.entries(audit.not_checked).map(([name, why]) => `${name}: ${why}`).join("; ");
  place.replaceChildren(
    rows.length ? table(["", "check", "column", "finding", "first at"], rows, { label: "Findings" }) : element("p", { class: "good" }, "Nothing was found."),
    element("p", { class: "note" }, `${audit.checks.length} checks ran.${left ? ` Not checked: ${left}` : ""}`));
  say(`The audit found ${rows.length} things.`);
}
