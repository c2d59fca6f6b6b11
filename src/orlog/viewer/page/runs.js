// Runs: learning curves with intervals, scores and verdicts, settings that differ, videos.

import { drawn, element, number, problem, table } from "./dom.js";
import { Frames } from "./frames.js";
import { PathMap } from "./map.js";
import { get, getEpisode } from "./net.js";
import { Player } from "./player.js";

export function runsView(index, opened) {
  const place = element("div", {}, element("p", { class: "muted", role: "status" }, "Reading the runs …"));
  const root = element("article", { class: "sheet" }, element("h2", {}, "Runs"), place);
  get(`runs/${index}`).then((found) => show(place, found, index, opened)).catch((error) => place.replaceChildren(problem(error)));
  return root;
}

const rounded = (value) => number(Math.round(value * 10) / 10);

function show(place, found, index, opened) {
  place.replaceChildren(element("p", { class: "note" }, "in ", element("code", {}, found.folder)));
  for (const [folder, text] of found.problems) place.append(problem(new Error(`${folder}: ${text}`)));
  const videos = found.videos.map((video, at) => ({ ...video, at }));
  for (const [dataset, pictures] of Object.entries(found.pictures)) {
    const groups = found.groups.filter((group) => group.dataset === dataset);
    place.append(element("h3", {}, dataset));
    if (pictures.curves) place.append(element("div", { class: "curves" }, drawn(pictures.curves)));
    else place.append(element("p", { class: "note" }, "No learning curve: these runs were trained without evaluations, or not far enough."));
    for (const { kind, unit, picture, words } of pictures.scores)
      place.append(element("figure", { class: "scores" }, element("figcaption", {}, element("b", {}, `By ${kind}`), `: ${unit}`), drawn(picture),
        element("ul", { class: "note" }, words.map((line) => element("li", {}, line)))));
    place.append(table(["runs", "settings that differ", "seeds", "verdict"], groups.map((group) => [
      group.algorithm, group.settings.join(" ") || "–", group.seeds.join(", "),
      element("span", {}, element("b", {}, group.verdict), " ", element("small", {}, group.reason))]), { label: `Runs on ${dataset}`, stacked: true }));
    place.append(element("details", {}, element("summary", {}, "Each run"), table(["folder", "seed", "state", "step", "score", "measured by"],
      groups.flatMap((group) => group.each.map((run) => [run.folder, String(run.seed ?? "–"), run.state, `${number(run.step)} of ${number(run.steps)}`, run.score == null ? "–" : rounded(run.score),
        run.score == null ? "–" : `${run.source}, ${number(run.episodes)} episodes`])), { numbers: [4], stacked: true })));
    const folders = groups.flatMap((group) => group.each.map((run) => run.folder));
    showVideos(place, videos.filter((video) => folders.includes(video.run)), index, dataset, opened);
  }
  const others = videos.filter((video) => !video.run);
  if (others.length) place.append(element("h3", {}, "Other videos"), element("div", { class: "pictures" }, others.map((video) => film(video, index))));
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
  const head = await getEpisode(path);
  const [frames, map] = [new Frames(path), new PathMap()];
  frames.show(head);
  if (frames.root.hidden && head.renders) frames.addRendered(head);
  map.show(head);
  map.choices.hidden = true;
  const player = new Player(`Step of the ${kind} episode of the data`, (step) => {
    frames.mark(step, player.playing && player.speed);
    map.mark(step);
  }, () => frames.led());
  player.slider.max = head.length;
  player.go(0);
  return element("figure", { class: "film" }, frames.root, frames.root.hidden ? map.root : "", element("div", { class: "bar" }, player.button, player.slider),
    element("figcaption", {}, element("b", {}, kind), ` return ${rounded(head.facts.returns)}, `, element("a", { href: `#/${at}/episodes/${episode}` }, `episode ${number(episode)}`), `, ${number(head.length)} steps`));
}
