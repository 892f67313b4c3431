// One topic's next thirty days, as the daemon draws its line.

import { facts } from "./parts.js";
import { bytes, count, make, sentence } from "./text.js";

function some(number) {
  return number == null ? "not known" : count(Math.round(number));
}

function size(number) {
  return number == null ? "not known" : bytes(Math.round(number));
}

function money(number, currency) {
  return number == null ? "not known" : `${number.toLocaleString("en", { maximumFractionDigits: 2, minimumFractionDigits: 2 })} ${currency}`;
}

function costs(cost, currency) {
  return [
    ["Cost of what is held", money(cost.held, currency)],
    ["Cost of writes", money(cost.writes, currency)],
    ["Cost of reads", money(cost.reads, currency)],
    ["Cost, what is known", money(cost.total, currency)],
  ];
}

export function forecast(data) {
  const head = make("h2", {}, "Next thirty days");
  if (data.why) return [head, make("p", {}, "Not forecast: ", sentence(data.why), ".")];
  return [head, ...data.topics.flatMap((row) => [
    facts([
      ["Held now", bytes(row.bytes)],
      ["Tiered in a day", size(row.tiered_bytes)],
      ["Whole days of history", count(row.days)],
      ["Held on average", row.days === 0 ? "not known" : size(row.held_bytes)],
      ["Held at the end", row.days === 0 ? "not known" : size(row.end_bytes)],
      ["Requests that write", some(row.write_requests)],
      ["Requests that read", some(row.read_requests)],
      ...(data.priced ? costs(row.cost, data.currency) : []),
    ]),
  ]), make("p", { class: "dim" }, data.rule, data.priced ? null : " No price is configured, so no cost is shown.")];
}
