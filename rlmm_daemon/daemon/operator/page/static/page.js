// The page: which view is asked for, its data again and again, and where the reader was in it.

import { events } from "./events.js";
import { forecast } from "./forecast.js";
import { fleet } from "./fleet.js";
import { count, name } from "./text.js";
import * as views from "./views.js";

const PERIOD_MS = 5000;
// That are shown among the rest; a view of their own has all.
const EVENTS = 12;
const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
const said = document.getElementById("said");
const pause = document.getElementById("pause");
const search = document.getElementById("search");

let asking = null;
let timer = null;
let before = null;
let shownRoute = null;

async function ask(path, query, signal) {
  const answer = await fetch(`/api/${path}?${new URLSearchParams(query)}`, { signal });
  if (!answer.headers.get("content-type")?.startsWith("application/json")) {
    throw new Error(`${answer.status} ${answer.statusText}`);
  }
  return answer.json();
}

// What grew since the last look, by second.
function ratesOf(overview, topics) {
  const now = { at: topics.as_of_ms, overview, topics: new Map(topics.topics.map((row) => [row.topic, row])) };
  const last = before;
  before = now;
  if (last === null || now.at <= last.at) return { topics: new Map() };
  const seconds = (now.at - last.at) / 1000;
  const grown = (is, was) => (was == null || is < was ? null : (is - was) / seconds);
  const rates = new Map();
  for (const [topic, row] of now.topics) {
    const was = last.topics.get(topic);
    rates.set(topic, { copied: grown(row.copied_bytes, was?.copied_bytes), fetched: grown(row.fetched_bytes, was?.fetched_bytes) });
  }
  return {
    topics: rates,
    copied: grown(overview?.copied_bytes, last.overview?.copied_bytes),
    fetched: grown(overview?.fetched_bytes, last.overview?.fetched_bytes),
  };
}

function route() {
  const [path, query] = (location.hash.slice(1) || "/").split("?", 2);
  return { path, query: new URLSearchParams(query ?? "") };
}

async function viewed(signal) {
  const { path, query } = route();
  const offset = query.get("offset") ?? "";
  if (path === "/topic") {
    const wanted = { id: query.get("id") ?? "" };
    const [found, next] = await Promise.all([ask("topic", wanted, signal), ask("forecast", wanted, signal)]);
    return [[...views.topic(found, offset), ...forecast(next)], "Topic"];
  }
  if (path === "/explain") {
    const asked = { partition: query.get("partition") ?? "" };
    if (offset) asked.offset = offset;
    return [views.explanation(await ask("explain", asked, signal), offset), "Partition"];
  }
  if (path === "/events") return [events(await ask("events", {}, signal)), "Recent events"];
  if (path === "/fleet") {
    const all = await ask("fleet", {}, signal);
    tellWho(all.daemons[0].told);
    return [fleet(all), "Fleet"];
  }
  const wanted = path === "/topics" ? query.get("search") ?? "" : "";
  const [overview, topics, happened] = await Promise.all([
    ask("overview", {}, signal), ask("topics", { search: wanted }, signal), ask("events", { newest: EVENTS }, signal)]);
  tellWho(overview);
  const rates = ratesOf(overview, topics);
  if (path === "/topics") return [views.topics(topics, rates, wanted, offset), `${count(topics.found)} topics`];
  return [views.overview(overview, topics, happened, rates), "What the tier holds"];
}

function tellWho(overview) {
  document.getElementById("who").replaceChildren(
    `broker ${overview.broker_id ?? "–"} of cluster `, name(overview.cluster_id ?? "–"),
    `, rlmm ${overview.version}`);
}

// Put the new elements in place, and the reader where he was.
function put(elements, title) {
  const focused = document.activeElement?.dataset?.key;
  main.replaceChildren(...elements.flat(Infinity).filter((each) => each != null));
  document.title = `rlmm: ${title}`;
  if (shownRoute !== location.hash) {
    if (shownRoute !== null) main.focus();
    shownRoute = location.hash;
    said.textContent = title;
    scrollTo(0, 0);
  } else if (focused !== undefined) {
    main.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

async function look() {
  clearTimeout(timer);
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  try {
    const [elements, title] = await viewed(mine.signal);
    if (asking !== mine) return;
    put(elements, title);
    trouble.hidden = true;
    document.getElementById("as-of").textContent = `As of ${new Date().toLocaleTimeString()}.`;
    document.body.dataset.state = "shown";
  } catch (error) {
    if (asking !== mine || error.name === "AbortError") return;
    trouble.textContent = `The daemon does not answer (${error.message}); what stands here is older.`;
    trouble.hidden = false;
    document.body.dataset.state = "trouble";
  }
  if (pause.getAttribute("aria-pressed") === "false" && !document.hidden) timer = setTimeout(look, PERIOD_MS);
}

search.addEventListener("submit", (event) => {
  event.preventDefault();
  const { topic, offset } = search.elements;
  const asked = new URLSearchParams({ search: topic.value.trim() });
  if (offset.value) asked.set("offset", offset.value);
  location.hash = `#/topics?${asked}`;
});
pause.addEventListener("click", () => {
  const paused = pause.getAttribute("aria-pressed") === "false";
  pause.setAttribute("aria-pressed", String(paused));
  if (paused) clearTimeout(timer); else look();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
addEventListener("hashchange", () => { before = null; look(); });
look();
