// Two episodes side by side at the same step, and what differs between two datasets.

import { choice, element, number, problem, table } from "./dom.js";
import { EpisodeView } from "./episode.js";
import { getWhenReady } from "./net.js";

export function sideBySide(opened, asked, index, episode) {
  // Begins with the episode of the list and the next one, or with that number of two datasets.
  const { datasets } = opened;
  const [last, next] = [datasets[index].episodes - 1, index + 1 < datasets.length ? index + 1 : index - 1];
  const pair = next < 0 ? [[index, episode], [index, episode < last ? episode + 1 : Math.max(0, episode - 1)]]
    : [Math.min(index, next), Math.max(index, next)].map((at) => [at, Math.max(0, Math.min(episode, datasets[at].episodes - 1))]);
  const chosen = ["a", "b"].map((name, side) => (asked.has(name) ? [...asked.get(name).split(":"), 0].slice(0, 2).map(Number) : pair[side]));
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
  return { root: element("div", { class: "both" }, columns), view: views[0] }; // keys move the first one, and the other follows
}

export function differences(opened, asked) {
  // Of the datasets that are open, those that are versions; views are named with what to do.
  const versions = opened.datasets.map((one, at) => ({ ...one, at })).filter((one) => !one.is_view);
  const views = opened.datasets.filter((one) => one.is_view);
  const root = element("article", { class: "sheet" });
  if (views.length)
    root.append(element("p", { class: "note" }, `${views.map((one) => one.title).join(", ")}: a view is not compared here. Its episodes are those of `,
      views.map((one) => one.name).join(", "), "; to compare it, store it as a version: ", element("code", {}, `orlog save ${views[0].title} NAME@VERSION`)));
  if (versions.length < 2) {
    root.prepend(element("h2", {}, "Differences"), element("p", {}, "Two versions have to be open, for example: ", element("code", {}, "orlog open lab/arm-v1@1.0.0 lab/arm-v1")));
    return root;
  }
  const read = (name, otherwise) => versions.find((one) => String(one.at) === asked.get(name)) || otherwise;
  // Two of one name, if there are, are what one would compare.
  const named = (one) => one.name.split("@")[0];
  const first = versions.find((one) => versions.some((other) => other !== one && named(other) === named(one))) || versions[0];
  const second = versions.find((one) => one !== first && named(one) === named(first)) || versions.find((one) => one !== first);
  const sides = [read("before", first), read("after", second)];
  const pick = (label, side) => element("label", {}, `${label} `, choice(`Compared dataset ${side + 1}`, versions.map((one) => [one.at, one.title]), sides[side].at, (at) => {
    const chosen = sides.map((one, place) => (place === side ? at : one.at));
    location.hash = `#/differences?before=${chosen[0]}&after=${chosen[1]}`;
  }));
  const place = element("div", {}, element("p", { class: "muted", role: "status" }, "Comparing …"));
  root.prepend(element("h2", {}, `From ${sides[0].title} to ${sides[1].title}`), versions.length > 2 && element("div", { class: "bar" }, pick("from", 0), pick("to", 1)) || "");
  root.append(place);
  getWhenReady("diff", { before: String(sides[0].at), after: String(sides[1].at) }, () => root.isConnected)
    .then((found) => found && show(place, found, sides.map((one) => one.at))).catch((error) => place.replaceChildren(problem(error)));
  return root;
}

function show(place, found, [before, after]) {
  const count = (ranges) => ranges.reduce((sum, range) => sum + range.stop - range.start, 0);
  const said = (range) => (range.stop - range.start > 1 ? `${number(range.start)}–${number(range.stop - 1)}` : number(range.start));
  const links = (ranges, address) => element("span", {}, ranges.slice(0, 40).flatMap((range, index) => [index ? ", " : "",
    element("a", { href: address(range.start) }, said(range))]).concat(ranges.length > 40 ? [" …"] : []));
  place.replaceChildren(
    element("h3", {}, "Episodes"),
    table(["", "number", "which"], [
      ["unchanged", number(found.unchanged), ""],
      ["changed", number(count(found.changed)), links(found.changed, (episode) => `#/compare?a=${before}:${episode}&b=${after}:${episode}`)],
      ["added", number(count(found.added)), links(found.added, (episode) => `#/${after}/episodes/${episode}`)],
      ["removed", number(count(found.removed)), links(found.removed, (episode) => `#/${before}/episodes/${episode}`)],
      ["moved", number(found.moved.reduce((sum, one) => sum + one.before.stop - one.before.start, 0)), found.moved.slice(0, 20).map((one) => `${said(one.before)} → ${said(one.after)}`).join(", ")],
    ], { numbers: [1] }),
    Object.keys(found.changed_columns).length
      ? element("p", {}, `Columns of changed episodes: ${Object.entries(found.changed_columns).map(([name, times]) => `${name} in ${times}`).join(", ")}`) : "",
    element("h3", {}, "Metadata and columns"),
    found.differences.length
      ? table(["what", "name", "change", "before", "after"], found.differences.map((one) => [one.kind, one.name, one.change, plain(one.before), plain(one.after)]), { stacked: true })
      : element("p", { class: "good" }, "No difference."));
}

const plain = (value) => (value == null || value === "" ? "–" : typeof value === "string" ? value : typeof value === "number" ? number(value)
  : Array.isArray(value) && value.every((one) => typeof one !== "object") ? value.join(", ") : JSON.stringify(value));
