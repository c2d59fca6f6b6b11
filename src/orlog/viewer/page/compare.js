// Two episodes side by side at the same step, and what differs between two datasets.

import { choice, element, number, problem, table } from "./dom.js";
import { EpisodeView } from "./episode.js";
import { getWhenReady } from "./net.js";

export function sideBySide(opened, asked) {
  const { datasets } = opened;
  const read = (text, index) => (text || "").split(":").concat(["0"]).slice(0, 2).map(Number).map((value, place) => (text ? value : place ? 0 : index));
  const chosen = [read(asked.get("a"), 0), read(asked.get("b"), Math.min(1, datasets.length - 1))];
  const views = [];
  let leading = null;
  const columns = chosen.map((one, side) => {
    const [index, episode] = one;
    const follow = (step) => {
      // Who moves leads; the other one follows, and does not lead back.
      if (leading != null && leading !== side) return;
      leading = side;
      const other = views[1 - side];
      if (other?.head) other.go(step);
      leading = null;
    };
    const view = new EpisodeView(index, episode, { stepped: follow });
    views.push(view);
    const pick = choice(`Dataset on side ${side + 1}`, datasets.map((dataset, at) => [at, dataset.title]), index, (at) => move(side, [Number(at), 0]));
    const which = element("input", { type: "number", min: 0, max: datasets[index].episodes - 1, value: episode, "aria-label": `Episode on side ${side + 1}`,
      change: () => move(side, [index, Number(which.value)]) });
    view.load(episode, () => views[1 - side].step); // whoever comes later joins the other one
    return element("div", {}, element("div", { class: "bar sides" }, pick, " episode ", which), view.root);
  });
  const move = (side, to) => {
    chosen[side] = to;
    location.hash = `#/compare?a=${chosen[0].join(":")}&b=${chosen[1].join(":")}`;
  };
  const root = element("div", { class: "both" }, columns);
  const view = {
    get head() { return views[0].head && views[1].head; },
    get step() { return views[0].step; },
    get playing() { return views[0].playing; },
    go: (step) => views[0].go(step),
    play: (is) => views[0].play(is),
  };
  return { root, view };
}

export function differences(opened) {
  const [before, after] = opened.datasets;
  const place = element("div", {}, element("p", { class: "muted", role: "status" }, "Comparing …"));
  const root = element("article", { class: "sheet" }, element("h2", {}, `From ${before.title} to ${after.title}`), place);
  getWhenReady("diff", {}, () => root.isConnected)
    .then((found) => found && show(place, found)).catch((error) => place.replaceChildren(problem(error)));
  return root;
}

function show(place, found) {
  const count = (ranges) => ranges.reduce((sum, range) => sum + range.stop - range.start, 0);
  const words = (ranges, side) => ranges.slice(0, 40).flatMap((range, index) => [index ? ", " : "",
    element("a", { href: `#/${side}/episodes/${range.start}` }, range.stop - range.start > 1 ? `${range.start}–${range.stop - 1}` : String(range.start))])
    .concat(ranges.length > 40 ? [" …"] : []);
  const cell = (parts) => element("span", {}, parts);
  const changed = found.changed.slice(0, 40).flatMap((range) => [
    element("a", { href: `#/compare?a=0:${range.start}&b=1:${range.start}` }, range.stop - range.start > 1 ? `${range.start}–${range.stop - 1}` : String(range.start)), " "]);
  place.replaceChildren(
    element("h3", {}, "Episodes"),
    table(["", "number", "which"], [
      ["unchanged", number(found.unchanged), ""],
      ["changed", number(count(found.changed)), cell(changed)],
      ["added", number(count(found.added)), cell(words(found.added, 1))],
      ["removed", number(count(found.removed)), cell(words(found.removed, 0))],
      ["moved", number(found.moved.reduce((sum, one) => sum + one.before.stop - one.before.start, 0)), found.moved.slice(0, 20).map((one) => `${one.before.start} → ${one.after.start}`).join(", ")],
    ], { numbers: [1] }),
    Object.keys(found.changed_columns).length
      ? element("p", {}, `Columns of changed episodes: ${Object.entries(found.changed_columns).map(([name, times]) => `${name} in ${times}`).join(", ")}`) : "",
    element("h3", {}, "Metadata and columns"),
    found.differences.length
      ? table(["what", "name", "change", "before", "after"], found.differences.map((one) => [one.kind, one.name, one.change, plain(one.before), plain(one.after)]))
      : element("p", { class: "good" }, "No difference."));
}

const plain = (value) => (value == null ? "–" : typeof value === "string" ? value : JSON.stringify(value));
