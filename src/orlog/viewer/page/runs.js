// Runs: learning curves with intervals, scores and verdicts, settings that differ, videos.

import { colors, element, number, onTheme, problem, table } from "./dom.js";
import { get } from "./net.js";
import { dots } from "./pictures.js";

export function runsView(index, name) {
  const place = element("div", {}, element("p", { class: "muted", role: "status" }, "Reading the runs …"));
  const root = element("article", { class: "sheet" }, element("h2", {}, `Runs in ${name}`), place);
  get(`runs/${index}`).then((found) => show(place, found, index)).catch((error) => place.replaceChildren(problem(error)));
  return root;
}

function show(place, found, index) {
  place.replaceChildren();
  for (const [folder, text] of found.problems) place.append(problem(new Error(`${folder}: ${text}`)));
  for (const dataset of new Set(found.groups.map((group) => group.dataset))) {
    const groups = found.groups.filter((group) => group.dataset === dataset);
    const isNormalized = groups.every((group) => group.normalized);
    const unit = isNormalized ? "normalized score (0 random, 100 expert)" : "return";
    place.append(element("h3", {}, dataset));
    const drawn = groups.filter((group) => group.curve.steps.length);
    if (drawn.length) place.append(curves(drawn, unit));
    else place.append(element("p", { class: "note" }, "No learning curve: these runs were trained without evaluations, or not far enough."));
    const scored = groups.filter((group) => group.score != null);
    if (scored.length)
      place.append(element("p", { class: "note" }, `Last ${unit}: mean over seeds with its 95 % interval, and each seed.`),
        dots(scored.map((group) => ({ algorithm: group.label, score: group.score, interval: group.interval,
          kind: "95 % interval of the mean over seeds", seeds: group.seeds.length, each: group.each.map((run) => run.score).filter((score) => score != null) })), `Scores on ${dataset}`));
    place.append(table(["runs", "settings that differ", "seeds", "score", "counted", "verdict"], groups.map((group) => [
      group.algorithm, group.settings.join(" ") || "–", group.seeds.join(", "),
      group.score == null ? "–" : `${number(Math.round(group.score * 10) / 10)}${group.interval ? ` (${group.interval.map((one) => number(Math.round(one * 10) / 10)).join(" to ")})` : ""}`,
      group.counted.join("; ") || "–",
      element("span", {}, element("b", {}, group.verdict), " ", element("small", {}, group.reason))]), { label: `Runs on ${dataset}` }));
    place.append(element("details", {}, element("summary", {}, "Each run"), table(["folder", "seed", "state", "step", "score"],
      groups.flatMap((group) => group.each.map((run) => [run.folder, String(run.seed ?? "–"), run.state, `${number(run.step)} of ${number(run.steps)}`, number(run.score)])), { numbers: [4] })),
    ...groups.flatMap((group) => group.left_out).map((text) => element("p", { class: "note" }, `left out: ${text}`)));
  }
  if (!found.videos.length) return;
  place.append(element("h3", {}, "Videos"), element("div", { class: "pictures" }, found.videos.map((name, at) =>
    element("figure", {}, element("video", { controls: true, preload: "none", width: 280, src: `api/runs/${index}/video/${at}`, "aria-label": name }), element("figcaption", {}, name)))));
}

function curves(groups, unit) {
  const place = element("div", { class: "plot" });
  const legend = element("figcaption", {}, groups.map((group, at) => element("span", { class: "line" },
    element("i", { class: `swatch c${at % 8}` }), `${group.label} (${group.seeds.length} seed${group.seeds.length > 1 ? "s" : ""}) `)));
  const root = element("figure", {}, element("b", {}, unit), " over gradient steps; bands: 95 % interval over seeds", place, legend);
  const steps = [...new Set(groups.flatMap((group) => group.curve.steps))].sort((a, b) => a - b);
  const line = (group, name) => {
    const known = new Map(group.curve.steps.map((step, at) => [step, group.curve[name][at]]));
    return steps.map((step) => known.get(step));
  };
  const ink = { stroke: () => colors().ink, grid: { stroke: () => colors().grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const series = groups.flatMap((_, at) => [
    { stroke: () => colors().lines[at % 8], width: 2, spanGaps: true, points: { show: true, size: 5 } },
    { width: 0, points: { show: false }, spanGaps: true }, { width: 0, points: { show: false }, spanGaps: true }]);
  const data = [steps, ...groups.flatMap((group) => ["means", "high", "low"].map((name) => line(group, name)))];
  const options = {
    width: 640, height: 280, legend: { show: false }, cursor: { show: false }, scales: { x: { time: false } },
    axes: [{ ...ink, size: 26, values: (_, ticks) => ticks.map(number) }, { ...ink, size: 56, values: (_, ticks) => ticks.map(number) }],
    series: [{}, ...series],
    bands: groups.map((_, at) => ({ series: [3 * at + 2, 3 * at + 3], fill: () => `${colors().lines[at % 8]}33` })),
  };
  let chart = null;
  new ResizeObserver(() => {
    const width = Math.min(760, place.clientWidth || 640);
    if (!chart) chart = new uPlot({ ...options, width }, data, place);
    else chart.setSize({ width, height: options.height });
  }).observe(place);
  onTheme(() => (root.isConnected ? chart?.redraw(false) : false));
  return root;
}
