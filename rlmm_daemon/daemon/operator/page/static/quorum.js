// The replica that this daemon runs of the quorum's log: its role, whom it hears, how far it is.

import { facts, table } from "./parts.js";
import { count, make, sentence } from "./text.js";

const OFFICES = { leader: "good", follower: "good", observer: "good" };

function reached(point) {
  return point == null ? "none yet" : `${count(point.end)} in epoch ${point.epoch}`;
}

export function quorum(told) {
  if (told == null) return [];
  const head = make("h2", {}, "Quorum");
  if (told.role == null) return [head, make("p", { class: "bad" }, "This replica is not open: ", sentence(told.why))];
  return [
    head,
    facts([
      ["This replica", String(told.replica)],
      ["Role", told.role, OFFICES[told.role] ?? "wait"],
      ["Leader", told.leader == null ? "nobody" : `replica ${told.leader}`, told.leader == null ? "bad" : null],
      ["Epoch", String(told.epoch)],
      ["High watermark", count(told.committed)],
      ["End of its log", count(told.end)],
      ["Newest checkpoint", reached(told.checkpoint)],
    ]),
    table(`Voters, ${told.voters.length}; ${told.needed} decide`, [
      ["Replica", (id) => String(id)],
      ["Standing", (id) => standing(told, id), "word"],
      ["Leads", (id) => (id === told.leader ? "yes" : "no"), "word"],
    ], told.voters, "No voter is known yet."),
  ];
}

// A follower asks its leader and nobody else, so its silence about the others says nothing of them.
function standing(told, id) {
  if (id === told.replica) return "this replica";
  if (told.heard.includes(id)) return make("span", { class: "good" }, "heard");
  const asks = told.role !== "follower" && told.role !== "observer";
  return asks || id === told.leader
    ? make("span", { class: "bad" }, "missed")
    : make("span", { class: "dim" }, `not asked by a ${told.role}`);
}
