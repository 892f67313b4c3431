// Parts that several views are made of.

import { make, name } from "./text.js";

export const WELL = { ready: "good", failed: "bad" };

export function facts(rows) {
  return make("dl", { class: "facts" }, rows.map(([term, value, kind]) =>
    make("div", {}, make("dt", {}, term), make("dd", { class: kind }, value))));
}

// columns: [head, cell of a row, class]; the first names its row.
export function table(caption, columns, rows, none) {
  if (rows.length === 0) return make("p", {}, none);
  const heads = columns.map(([head, , kind]) => make("th", { scope: "col", class: kind }, head));
  const body = rows.map((row) => make("tr", {}, columns.map(([, cell, kind], at) =>
    at === 0
      ? make("th", { scope: "row", class: kind }, cell(row))
      : make("td", { class: kind }, cell(row)))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, heads)), make("tbody", {}, body)));
}

export function link(path, key, ...children) {
  return make("a", { href: path, "data-key": key }, children);
}

// Kafka's form without the topic's id, which a link still has.
export function short(partition) {
  return name(partition.replace(/^[A-Za-z0-9_-]{22}:/, ""));
}

export function explained(selector, offset) {
  const asked = new URLSearchParams({ partition: selector });
  if (offset) asked.set("offset", offset);
  return `#/explain?${asked}`;
}

export function state(text) {
  return make("span", { class: WELL[text] ?? "wait" }, text);
}
