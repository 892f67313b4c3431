// What happened last at the daemon, as its log says it: troubles and changes of state.

import { table } from "./parts.js";
import { ago, count, make, shown } from "./text.js";

const GRAVE = { warning: "wait", error: "bad", critical: "bad" };

function rows(data) {
  return table(`Events, ${data.events.length} of ${count(data.count)}, the newest first`, [
    ["Event", (row) => shown(row.text), "text"],
    ["Level", (row) => make("span", { class: GRAVE[row.level] ?? null }, shown(row.level)), "word"],
    ["In a row", (row) => count(row.count), "number"],
    ["When", (row) => ago(row.at_ms, data.as_of_ms), "number"],
  ], data.events, "No line of the log is kept here.");
}

export function newest(data) {
  const more = data.count > data.events.length
    ? make("p", {}, make("a", { href: "#/events", "data-key": "events" }, `All ${count(data.count)} that are kept`)) : null;
  return [make("h2", {}, "Recent events"), rows(data), more];
}

export function events(data) {
  return [make("h1", {}, "Recent events"),
    make("p", {}, "Since the start, as long as there is room: a hundred warnings and errors, a hundred changes " +
      "of state and orders. Lines below ", make("code", {}, "log.level"), " are not among them; the log itself has the rest."),
    rows(data)];
}
