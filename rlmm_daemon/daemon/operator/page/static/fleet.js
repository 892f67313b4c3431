// Several daemons side by side, as each tells of itself. Whatever a peer says is foreign text.

import { table } from "./parts.js";
import { ago, bytes, count, make, name, sentence, shown, span } from "./text.js";

// A cell of what a daemon told; of one that told nothing there is nothing to say.
function told(cell) {
  return (row) => (row.told == null ? "–" : cell(row.told));
}

function wrong(row) {
  if (row.told == null) return make("span", { class: "bad" }, sentence(row.trouble));
  if (row.told.wrong_count === 0) return make("span", { class: "good" }, "nothing");
  const more = row.told.wrong_count - row.told.wrong.length;
  return make("ul", {},
    row.told.wrong.map((each) => make("li", { class: "bad" }, sentence(each.text),
      each.command ? [" ", make("code", {}, shown(each.command))] : [])),
    more > 0 ? make("li", {}, `and ${count(more)} more`) : null);
}

function office(quorum) {
  if (quorum == null) return "–";
  if (quorum.role == null) return make("span", { class: "bad" }, "not open");
  return `${shown(quorum.role)} in epoch ${quorum.epoch ?? "–"}`;
}

export function fleet(data) {
  const reached = data.daemons.filter((row) => row.told != null).length;
  return [
    make("h1", {}, "Fleet"),
    make("p", {}, ...(data.daemons.length === 1
      ? ["No other is named in ", make("code", {}, "admin.peers"), "."]
      : [`${count(reached)} of ${count(data.daemons.length)} daemons answer; this one asked the others, named in `,
        make("code", {}, "admin.peers"), "."])),
    table("Daemons, this one first", [
      ["Daemon", (row) => (row.address == null ? "This daemon" : shown(row.address)), "place"],
      ["Wrong", wrong, "text"],
      ["Broker", told((row) => String(row.broker_id ?? "–")), "number"],
      ["Cluster", told((row) => name(row.cluster_id ?? "–"))],
      ["Version", told((row) => shown(row.version))],
      ["Up", told((row) => span(row.uptime_seconds)), "number"],
      ["Ready", told((row) => make("span", { class: row.ready === row.followed && row.followed > 0 ? "good" : "bad" },
        `${count(row.ready)} of ${count(row.followed)}`)), "number"],
      ["Topics", told((row) => count(row.topics)), "number"],
      ["Segments", told((row) => count(row.segments)), "number"],
      ["Size", told((row) => bytes(row.bytes)), "number"],
      ["Copies", told((row) => count(row.copies)), "number"],
      ["Quorum", told((row) => office(row.quorum))],
      ["Asked", (row) => (row.address == null ? "now" : ago(row.asked_at_ms, data.as_of_ms)), "number"],
    ], data.daemons, "None."),
  ];
}
