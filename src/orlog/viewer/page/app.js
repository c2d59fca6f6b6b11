// The page: which view is shown, and what keys do. An address after `#` names each view, so that back works.

import { differences, sideBySide } from "./compare.js";
import { datasetView } from "./dataset.js";
import { choice, element, isDark, problem, showTheme } from "./dom.js";
import { EpisodeView } from "./episode.js";
import { EpisodeList } from "./list.js";
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

function views() {
  const { datasets, runs, reports } = page.opened;
  const found = [];
  if (datasets.length) {
    found.push([`#/${page.dataset}/episodes`, "Episodes"], [`#/${page.dataset}/dataset`, "Dataset"]);
    found.push(["#/compare", "Side by side"]);
  }
  if (datasets.length > 1) found.push(["#/differences", "Differences"]);
  runs.forEach((name, index) => found.push([`#/runs/${index}`, runs.length > 1 ? `Runs: ${name}` : "Runs"]));
  reports.forEach((name, index) => found.push([`#/report/${index}`, reports.length > 1 ? `Report: ${name}` : "Report"]));
  return found;
}

function show() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [first, second, third] = path.split("/");
  const asked = new URLSearchParams(query);
  page.view = null;
  const { datasets } = page.opened;
  if (!first) {
    location.replace(views()[0][0]);
    return;
  }
  if (datasets[first]) page.dataset = Number(first);
  drawTabs(path);
  if (datasets[first] && second === "episodes") showEpisodes(Number(first), third, Number(asked.get("step") || 0));
  else if (datasets[first] && second === "dataset") main.replaceChildren(datasetView(Number(first), datasets[first], page.opened));
  else if (first === "compare" && datasets.length) {
    const { root, view } = sideBySide(page.opened, asked, page.dataset, page.lists.get(page.dataset)?.list.chosen ?? 0);
    page.view = { view };
    main.replaceChildren(root);
  } else if (first === "differences" && datasets.length > 1) main.replaceChildren(differences(page.opened, asked));
  else if (first === "runs" && page.opened.runs[second]) main.replaceChildren(runsView(second, page.opened));
  else if (first === "report" && page.opened.reports[second]) showReport(second);
  else main.replaceChildren(element("div", { class: "sheet" }, problem(new Error("There is no such view; choose one above."))));
}

function drawTabs(path) {
  const { datasets } = page.opened;
  const links = views().map(([address, text]) => {
    const is = `#/${path}`.startsWith(address);
    return element("a", { href: address, "aria-current": is ? "page" : null }, text);
  });
  const picker = datasets.length > 1
    ? choice("Dataset", datasets.map((one, index) => [index, one.title]), page.dataset, (index) => {
      location.hash = `#/${index}/episodes`;
    })
    : datasets.length ? element("span", { class: "dataset" }, datasets[0].title) : null;
  document.getElementById("tabs").replaceChildren(...[picker, ...links].filter(Boolean));
  document.querySelector("#tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  document.title = `${datasets[page.dataset]?.title || "runs"} · orlog`;
}

function showEpisodes(index, episode, step) {
  if (!page.lists.has(index)) {
    const list = new EpisodeList(page.opened.datasets[index], index, page.opened);
    const view = new EpisodeView(index, null);
    list.picked = (chosen) => {
      view.load(chosen);
      // Later, since browsers take milliseconds for it, and refuse it when it comes too often.
      clearTimeout(page.waiting);
      const { hash } = location;
      page.waiting = setTimeout(() => {
        if (page.view?.list === list && location.hash === hash) history.replaceState(null, "", `#/${index}/episodes/${list.chosen}`);
      }, 300);
    };
    list.left = (is) => view.left(is);
    list.shown = () => list.chosen == null && list.matching && list.move(0);
    const root = element("div", { class: "browse" }, list.root, view.root);
    page.lists.set(index, { list, view, root });
  }
  const { list, view, root } = page.lists.get(index);
  page.view = { list, view };
  main.replaceChildren(root);
  if (episode != null && episode !== "") {
    const chosen = Number(episode);
    if (view.episode !== chosen || step) view.load(chosen, () => step);
    list.reveal(chosen);
  }
  list.draw();
}

function showReport(index) {
  main.replaceChildren(element("iframe", { class: "report", sandbox: true, src: `api/report/${index}`, title: "Report" }));
}

function press(event) {
  const typing = event.target.closest?.("input:not([type=range]), select, textarea, dialog");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const { list, view } = page.view || {};
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
