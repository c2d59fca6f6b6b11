// Runs: learning curves with intervals, scores and verdicts, settings that differ, videos.

import { colors, element, number, onTheme, problem, table } from "./dom.js";
import { Frames } from "./frames.js";
import { PathMap } from "./map.js";
import { get, getEpisode } from "./net.js";
import { dots, numbersOf, scoreScale, ticks } from "./pictures.js";

export function runsView(index, opened) {
  const place = element("div", {}, element("p", { class: "muted", role: "status" }, "Reading the runs …"));
  const root = element("article", { class: "sheet" }, element("h2", {}, "Runs"), place);
  get(`runs/${index}`).then((found) => show(place, found, index, opened)).catch((error) => place.replaceChildren(problem(error)));
  return root;
}

const rounded = (value) => number(Math.round(value * 10) / 10);
const after = (score) => `${score.source} after ${number(score.step)} steps, ${number(score.episodes)} episode${score.episodes > 1 ? "s" : ""} a seed`;

function show(place, found, index, opened) {
  place.replaceChildren(element("p", { class: "note" }, "in ", element("code", {}, found.folder)));
  for (const [folder, text] of found.problems) place.append(problem(new Error(`${folder}: ${text}`)));
  for (const dataset of new Set(found.groups.map((group) => group.dataset))) {
    const groups = found.groups.filter((group) => group.dataset === dataset).map((group, at) => ({ ...group, color: at % 8 }));
    const isNormalized = groups.every((group) => group.normalized);
    const unit = isNormalized ? "normalized score (0 random, 100 expert)" : "return";
    // The curves and both kinds of scores have one scale, and a group one color.
    const scale = scoreScale(groups.flatMap(({ curve, scores }) => [...curve.means, ...curve.low, ...curve.high, ...numbersOf(scores)]), isNormalized);
    place.append(element("h3", {}, dataset));
    const drawn = groups.filter((group) => group.curve.steps.length);
    if (drawn.length) place.append(curves(drawn, unit, scale));
    else place.append(element("p", { class: "note" }, "No learning curve: these runs were trained without evaluations, or not far enough."));
    showScores(place, groups, unit, isNormalized, scale);
    place.append(table(["runs", "settings that differ", "seeds", "verdict"], groups.map((group) => [
      group.algorithm, group.settings.join(" ") || "–", group.seeds.join(", "),
      element("span", {}, element("b", {}, group.verdict), " ", element("small", {}, group.reason))]), { label: `Runs on ${dataset}`, stacked: true }));
    place.append(element("details", {}, element("summary", {}, "Each run"), table(["folder", "seed", "state", "step", "score", "measured by"],
      groups.flatMap((group) => group.each.map((run) => [run.folder, String(run.seed ?? "–"), run.state, `${number(run.step)} of ${number(run.steps)}`, run.score == null ? "–" : rounded(run.score),
        run.score == null ? "–" : `${run.source}, ${number(run.episodes)} episodes`])), { numbers: [4], stacked: true })),
    ...groups.flatMap((group) => group.left_out).map((text) => element("p", { class: "note" }, `left out: ${text}`)));
    const folders = groups.flatMap((group) => group.each.map((run) => run.folder));
    showVideos(place, found.videos.map((video, at) => ({ ...video, at })).filter((video) => folders.includes(video.run)), index, dataset, opened);
  }
  const others = found.videos.map((video, at) => ({ ...video, at })).filter((video) => !video.run);
  if (others.length) place.append(element("h3", {}, "Other videos"), element("div", { class: "pictures" }, others.map((video) => film(video, index))));
}

function showScores(place, groups, unit, isNormalized, scale) {
  // Scores of another source, or of another number of episodes, are other measurements: each has a picture of its own.
  const kinds = new Map();
  for (const group of groups)
    for (const score of group.scores) {
      const kind = `${score.source}, ${number(score.episodes)} episode${score.episodes > 1 ? "s" : ""} a seed`;
      kinds.set(kind, [...(kinds.get(kind) || []), { ...score, label: group.label, color: `c${group.color}` }]);
    }
  const drawn = [...kinds].map(([kind, scores]) => {
    const steps = new Set(scores.map((score) => score.step));
    return { kind, steps, rows: scores.map((score) => ({ ...score, algorithm: steps.size > 1 ? `${score.label}, ${number(score.step)} steps` : score.label,
      kind: "95 % interval of the mean over seeds", protocol: after(score) })) };
  });
  for (const { kind, steps, rows } of drawn) {
    const words = (score) => `${rounded(score.score)}${score.interval ? ` (95 % interval ${score.interval.map(rounded).join(" to ")})` : ""}, seed${score.seeds.length > 1 ? "s" : ""} ${score.seeds.join(", ")}${score.counted.map((one) => `, ${one}`).join("")}`;
    place.append(element("figure", { class: "scores" }, element("figcaption", {}, element("b", {}, `By ${kind}`), ` after ${[...steps].map(number).join(", ")} steps: ${unit}`), dots(rows.map((row) => ({ ...row, seeds: row.seeds.length })), `Scores by ${kind}`, isNormalized, scale, drawn.flatMap((one) => one.rows)),
      element("ul", { class: "note" }, rows.map((row) => element("li", {}, `${row.algorithm}: ${words(row)}`)))));
  }
}

function film(video, index) {
  // The fragment shows the first frame before anything is played.
  const said = video.kind ? [element("b", {}, video.kind), ` return ${rounded(video.return)}, episode ${number(video.episode)}, ${number(video.frames - 1)} steps`] : [video.file];
  return element("figure", { class: "film" }, element("video", { controls: true, preload: "metadata", muted: true, playsinline: true, width: 280,
    src: `api/runs/${index}/video/${video.at}#t=0.001`, "aria-label": `${video.kind ? `${video.kind} episode, ` : ""}${video.file}` }), element("figcaption", { title: video.file }, said));
}

function showVideos(place, videos, index, dataset, opened) {
  for (const run of new Set(videos.map((video) => video.run))) {
    const those = videos.filter((video) => video.run === run);
    place.append(element("h4", {}, `Videos of ${run}, after ${number(those[0].step)} steps`), element("div", { class: "pictures" }, those.map((video) => film(video, index))));
  }
  if (!videos.length) return;
  const at = opened.datasets.findIndex((one) => one.name.split("@")[0] === dataset.split("@")[0]);
  const beside = element("div", { class: "pictures" });
  place.append(element("h4", {}, "Beside them, episodes of the data"), beside);
  if (at < 0) beside.append(element("p", { class: "note" }, "Shown where the dataset is open too: ", element("code", {}, `orlog open ${dataset} RUNS`)));
  else showData(beside, at, opened.datasets[at]).catch((error) => beside.replaceChildren(problem(error)));
}

async function showData(place, at, dataset) {
  const last = dataset.episodes - 1;
  const rows = [["worst", 0], ["median", Math.floor(last / 2)], ["best", last]];
  for (const [kind, row] of last > 1 ? rows : rows.slice(0, last + 1)) {
    const { columns } = await get(`data/${at}/episodes`, { by: "returns", first: row, count: 1 });
    place.append(await clip(kind, at, columns.episode[0]));
  }
}

async function clip(kind, at, episode) {
  // Frames, a rendered picture, or a path: what the episode of the data has of these.
  const path = `data/${at}/episode/${episode}`;
  const head = await getEpisode(path, {});
  const [frames, map] = [new Frames(path), new PathMap()];
  frames.show(head);
  if (frames.root.hidden && head.renders) frames.addRendered(head);
  map.show(head);
  map.choices.hidden = true;
  const go = (step) => {
    frames.mark(step, true);
    map.mark(step);
  };
  const slider = element("input", { type: "range", min: 0, max: head.length, value: 0, "aria-label": `Step of the ${kind} episode of the data`, input: () => go(Number(slider.value)) });
  let isPlaying = false;
  const button = element("button", { type: "button", click: () => {
    isPlaying = !isPlaying;
    button.textContent = isPlaying ? "Stop" : "Play";
    if (isPlaying && Number(slider.value) >= head.length) slider.value = 0;
    const tick = () => {
      if (!isPlaying || !button.isConnected) return;
      slider.value = Number(slider.value) + 1;
      go(Number(slider.value));
      if (Number(slider.value) >= head.length) button.click();
      else setTimeout(tick, 1000 / 30);
    };
    if (isPlaying) tick();
  } }, "Play");
  go(0);
  return element("figure", { class: "film" }, frames.root, frames.root.hidden ? map.root : "", element("div", { class: "bar" }, button, slider),
    element("figcaption", {}, element("b", {}, kind), ` return ${rounded(head.facts.returns)}, `, element("a", { href: `#/${at}/episodes/${episode}` }, `episode ${number(episode)}`), `, ${number(head.length)} steps`));
}

function curves(groups, unit, scale) {
  const place = element("div", { class: "plot" });
  const legend = element("figcaption", {}, groups.map((group) => element("span", { class: "line" },
    element("i", { class: `swatch c${group.color}` }), `${group.label} (${group.seeds.length} seed${group.seeds.length > 1 ? "s" : ""}) `)));
  const root = element("figure", {}, element("b", {}, unit), " over gradient steps; each point is a short evaluation during training; bands: 95 % interval over seeds", place, legend);
  const steps = [...new Set(groups.flatMap((group) => group.curve.steps))].sort((a, b) => a - b);
  const line = (group, name) => {
    const known = new Map(group.curve.steps.map((step, at) => [step, group.curve[name][at]]));
    return steps.map((step) => known.get(step));
  };
  const ink = { stroke: () => colors().ink, grid: { stroke: () => colors().grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const series = groups.flatMap((group) => [
    { stroke: () => colors().lines[group.color], width: 2, spanGaps: true, points: { show: true, size: 5 } },
    { width: 0, points: { show: false }, spanGaps: true }, { width: 0, points: { show: false }, spanGaps: true }]);
  const data = [steps, ...groups.flatMap((group) => ["means", "high", "low"].map((name) => line(group, name)))];
  const options = {
    width: 640, height: 280, legend: { show: false }, cursor: { show: false }, scales: { x: { time: false }, y: { range: () => scale } },
    axes: [{ ...ink, size: 26, values: (_, found) => found.map(number) }, { ...ink, size: 56, splits: (_, axis, low, high) => ticks(low, high, 6), values: (_, found) => found.map(number) }],
    series: [{}, ...series],
    bands: groups.map((group, at) => ({ series: [3 * at + 2, 3 * at + 3], fill: () => `${colors().lines[group.color]}33` })),
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
