// The page: which view is shown, and what keys do. An address after `#` names each view, so that back works.

import { differences, sideBySide } from "./compare.js";
import { datasetView } from "./dataset.js";
import { choice, element, isDark, problem, showTheme } from "./dom.js";
import { EpisodeView } from "./episode.js";
import { EpisodeList } from "./list.js";
import { LabelBar } from "./labels.js";
import { get } from "./net.js";
import { runsView } from "./runs.js";

const main = document.getElementById("main");
const page = { opened: null, lists: new Map(), view: null, dataset: 0 };

async function start() {
  showTheme(remembered());
  try {
    page.opened = await get("opened");
  } catch (error) {
    main.replaceChildren(problem(error));
    return;
  }
  addEventListener("hashchange", show);
  addEventListener("keydown", press);
  document.getElementById("theme").addEventListener("click", changeTheme);
  document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
  show();
}

// The views: their address, their tab, and what draws them from the rest of the path and what is asked.
function views() {
  const { datasets, runs, reports } = page.opened;
  const at = page.dataset;
  const found = datasets.length ? [
    [`#/${at}/episodes`, "Episodes", ([episode], asked) => episodes(at, episode, Number(asked.get("step") || 0))],
    [`#/${at}/dataset`, "Dataset", () => datasetView(at, datasets[at], page.opened)],
    ["#/compare", "Side by side", (_, asked) => compare(asked)],
  ] : [];
  if (datasets.length > 1) found.push(["#/differences", "Differences", (_, asked) => differences(page.opened, asked)]);
  runs.forEach((name, index) => found.push([`#/runs/${index}`, runs.length > 1 ? `Runs: ${name}` : "Runs", () => runsView(index, page.opened)]));
  reports.forEach((name, index) => found.push([`#/report/${index}`, reports.length > 1 ? `Report: ${name}` : "Report",
    () => element("iframe", { class: "report", sandbox: true, src: `api/report/${index}`, title: "Report" })]));
  return found;
}

function show() {
  const [path, query] = location.hash.split("?");
  const first = path.split("/")[1];
  if (!first) {
    location.replace(views()[0][0]);
    return;
  }
  page.view = null;
  if (page.opened.datasets[first]) page.dataset = Number(first);
  const chosen = views().find(([address]) => `${path}/`.startsWith(`${address}/`));
  drawTabs(chosen?.[0]);
  main.replaceChildren(chosen ? chosen[2](path.slice(chosen[0].length + 1).split("/"), new URLSearchParams(query))
    : element("div", { class: "sheet" }, problem(new Error("There is no such view; choose one above."))));
  page.view?.list?.draw();
}

function drawTabs(shown) {
  const { datasets } = page.opened;
  const links = views().map(([address, text]) => element("a", { href: address, "aria-current": address === shown ? "page" : null }, text));
  const picker = datasets.length > 1
    ? choice("Dataset", datasets.map((one, index) => [index, one.title]), page.dataset, (index) => {
      location.hash = `#/${index}/episodes`;
    })
    : datasets.length ? element("span", { class: "dataset" }, datasets[0].title) : null;
  document.getElementById("tabs").replaceChildren(...[picker, ...links].filter(Boolean));
  document.querySelector("#tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  document.title = `${datasets[page.dataset]?.title || "runs"} · orlog`;
}

function compare(asked) {
  const { root, view } = sideBySide(page.opened, asked, page.dataset, page.lists.get(page.dataset)?.list.chosen ?? 0);
  page.view = { view };
  return root;
}

function episodes(index, episode, step) {
  if (!page.lists.has(index)) {
    const list = new EpisodeList(page.opened.datasets[index], index, page.opened);
    const view = new EpisodeView(index, null);
    const labels = page.opened.labels && index === 0 ? new LabelBar(page.opened.labels, view) : null;
    if (labels) view.title.after(labels.root);
    list.picked = (chosen) => {
      view.load(chosen);
      labels?.show(chosen);
      // Later, since browsers take milliseconds for it, and refuse it when it comes too often.
      clearTimeout(page.waiting);
      const { hash } = location;
      page.waiting = setTimeout(() => {
        if (page.view?.list === list && location.hash === hash) history.replaceState(null, "", `#/${index}/episodes/${list.chosen}`);
      }, 300);
    };
    list.left = (is) => view.left(is);
    list.shown = () => list.chosen == null && list.matching && list.move(0);
    page.lists.set(index, { list, view, labels, root: element("div", { class: "browse" }, list.root, view.root) });
  }
  const { list, view, labels, root } = page.lists.get(index);
  page.view = { list, view, labels };
  if (episode) {
    const chosen = Number(episode);
    if (view.episode !== chosen || step) view.load(chosen, () => step);
    labels?.show(chosen);
    list.reveal(chosen);
  }
  return root;
}

function press(event) {
  const typing = event.target.closest?.("input:not([type=range]), select, textarea, dialog");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const { list, view, labels } = page.view || {};
  const many = event.shiftKey ? 10 : 1;
  const actions = {
    j: list && (() => list.move(1)), ArrowDown: list && (() => list.move(1)),
    k: list && (() => list.move(-1)), ArrowUp: list && (() => list.move(-1)),
    ArrowRight: view?.head && (() => view.go(view.step + many)), ArrowLeft: view?.head && (() => view.go(view.step - many)),
    " ": view?.head && !event.target.closest?.("button, summary, a") && (() => view.player.play(!view.player.playing)),
    "/": list && (() => list.filter.focus()),
    "?": () => document.getElementById("keys").showModal(),
    t: changeTheme,
  };
  const tab = /^[1-9]$/.test(event.key) && views()[event.key - 1];
  if (tab) actions[event.key] = () => (location.hash = tab[0]);
  Object.assign(actions, labels?.actions());
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

function changeTheme() {
  const name = isDark() ? "light" : "dark";
  showTheme(name);
  try {
    localStorage.setItem("theme", name);
  } catch {
    // A browser that keeps nothing forgets it.
  }
}

function remembered() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

start();
