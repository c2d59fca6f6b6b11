// What is known of a dataset, and figures of all its data, which are computed when this view is first opened.

import { drawn, element, number, problem, say, table } from "./dom.js";
import { getWhenReady } from "./net.js";

export function datasetView(index, dataset, opened) {
  // Figures first; what is written about the data stands on the right where there is room, and below where there is none.
  const [figures, scores, facts, audit] = [1, 2, 3, 4].map(() => element("section", {}));
  const main = element("div", {}, figures, scores, audit);
  const root = element("article", { class: "sheet about" }, element("h2", {}, dataset.title),
    element("dl", { class: "facts" }, [["episodes", number(dataset.episodes)], ["steps", number(dataset.steps)], dataset.is_view && ["a view of", dataset.name]]
      .filter(Boolean).map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text)))),
    element("div", { class: "columns" }, main, facts));
  const part = (place, path, fill) => {
    const wait = element("p", { class: "muted", role: "status" });
    place.append(wait);
    const from = performance.now();
    const progress = (done, total) => {
      if (performance.now() - from > 500) wait.textContent = `Reading the data${total ? `: ${number(done)} of ${number(total)}` : ""} …`;
      return root.isConnected;
    };
    return getWhenReady(path, {}, progress)
      .then((found) => found && fill(found)).catch((error) => place.append(problem(error)))
      .finally(() => wait.remove());
  };
  part(facts, `data/${index}/about`, (about) => {
    showFacts(facts, about);
    showScores(scores, about, opened);
  });
  part(figures, `data/${index}/statistics`, (found) => showFigures(figures, found)).then(() => showAudit(audit, index));
  return root;
}

function showFacts(place, about) {
  place.append(element("h3", {}, "About the data"),
    element("dl", { class: "told" }, about.facts.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)])),
    element("details", {}, element("summary", {}, `${about.columns.length} columns`),
      table(["column", "type", "row", "rows"], about.columns.map(([name, type, row, rows]) => [name, type, row, number(rows)]), { numbers: [3], stacked: true })));
}

function showScores(place, about, opened) {
  if (about.scores.length)
    place.append(element("h3", {}, "Recorded and published scores"), element("p", { class: "note" },
      "Large dots are means, small ones single seeds, bars what is said below. Compare scores of one block only: others were measured in another way."));
  about.scores.forEach((section, at) => place.append(element("details", { open: at < 2 }, element("summary", {}, section.title), drawn(section.picture),
    element("p", { class: "note" }, section.note),
    element("details", {}, element("summary", {}, "Protocol of each, in words"), section.protocol && element("p", { class: "note" }, section.protocol),
      element("ul", { class: "note" }, section.scores.map((row) => element("li", {}, `${row.name} ${number(row.value)}${row.interval ? ` (${row.interval.map(number).join(" to ")})` : ""}${row.note && `, ${row.note}`}`)))))));
  if (about.references.length)
    place.append(element("h3", {}, "Reference returns"), table(["score", "return", "policy", "source"], about.references, { numbers: [1], stacked: true }));
  place.append(element("h3", {}, "Where it comes from"), element("ul", { class: "breaks" }, about.lineage.map(([depth, how, title, text]) => element("li", {},
    "→ ".repeat(depth), how && `${how}: `, element("b", {}, title), ` (${text})`))));
  if (about.versions.length > 1) showVersions(place, about.versions, opened);
}

function showVersions(place, versions, opened) {
  const open = (version) => opened.datasets.findIndex((one) => one.digest === version.digest && !one.is_view);
  const rows = versions.map((one, at) => {
    const [before, after] = [versions[at + 1] ? open(versions[at + 1]) : -1, open(one)];
    const link = before >= 0 && after >= 0 && element("a", { href: `#/differences?before=${before}&after=${after}` }, "all differences");
    return [one.version + (one.shown ? " (shown)" : ""), number(one.episodes), number(one.steps), one.is_here ? "yes" : one.state === "not here" ? "no" : one.state,
      element("span", {}, [one.changes, one.status === "good" ? "" : `${one.status}: ${one.reason}`].filter(Boolean).join("; "), " ", link), element("code", {}, one.digest.slice(0, 19))];
  });
  const here = versions.filter((one) => one.is_here);
  place.append(element("h3", {}, "Versions"), table(["version", "episodes", "steps", "here", "changes", "digest"], rows, { numbers: [1, 2], stacked: true }));
  if (here.length > 1 && here.slice(0, 2).some((one) => open(one) < 0))
    place.append(element("p", { class: "note" }, "For each episode that differs between two that are here: ", element("code", {}, `orlog open ${here.slice(0, 2).map((one) => one.name).reverse().join(" ")}`)));
}

function showFigures(place, found) {
  const histograms = found.histograms.map((one) => element("figure", { class: "plotted" },
    element("figcaption", {}, element("b", {}, one.label), ` mean ${number(one.mean)}, median ${number(one.median)}, standard deviation ${number(one.deviation)}${one.non_finite ? `, ${number(one.non_finite)} not finite` : ""}`),
    one.text || drawn(one.picture)));
  const ends = Object.entries(found.ends).map(([word, count]) => `${number(count)} ${word}`).join(", ");
  place.append(element("h3", {}, "Figures of the data"), element("div", { class: "pictures" }, histograms), element("p", {}, element("b", {}, "ends: "), ends));
  for (const [name, error] of Object.entries(found.errors)) place.append(problem(new Error(`${name}: ${error}`)));
  if (!found.names.length) return;
  const all = found.sampled_steps >= found.all_steps;
  place.append(element("p", { class: "note" }, all ? `Below: all ${number(found.all_steps)} steps.`
    : `Below: an even sample of ${number(found.sampled_steps)} of ${number(found.all_steps)} steps (${number(found.sampled_episodes)} whole episodes).`));
  showActions(place, found);
  place.append(element("details", {}, element("summary", {}, `Ranges of ${found.names.length} numbers`),
    table(["number", "smallest", "mean", "standard deviation", "largest"],
      found.names.map((name, at) => [name, ...found.ranges[at].map(number)]), { numbers: [1, 2, 3, 4] })));
}

function showActions(place, found) {
  if (!found.actions.length) return;
  place.append(element("h3", {}, "Use of actions"));
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const words = (one) => (one.taken ? `${one.taken.filter(Boolean).length} of ${number(one.of)} actions taken`
    : `on a bound: ${percent(one.on_low)} at ${number(one.bounds[0])}, ${percent(one.on_high)} at ${number(one.bounds[1])}`);
  place.append(element("div", { class: "pictures" }, found.actions.map((one) => element("figure", { class: "plotted" },
    element("figcaption", {}, element("b", {}, one.name), ` ${words(one)}`), drawn(one.picture)))));
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
    rows.length ? table(["", "check", "column", "finding", "first at"], rows, { label: "Findings", stacked: true }) : element("p", { class: "good" }, "Nothing was found."),
    element("p", { class: "note" }, `${audit.checks.length} checks ran.${left ? ` Not checked: ${left}` : ""}`));
  say(`The audit found ${rows.length} things.`);
}
