// The page's views: from an answer of the daemon to elements.

import { newest } from "./events.js";
import { explained, facts, link, short, state, table, WELL } from "./parts.js";
import { quorum } from "./quorum.js";
import { ago, bytes, count, make, name, rate, sentence, shown, span } from "./text.js";

export function overview(data, topics, events, rates) {
  const states = Object.entries(data.metadata_partitions);
  const ready = data.metadata_partitions.ready ?? 0;
  const all = states.reduce((sum, [, number]) => sum + number, 0);
  return [
    make("h1", {}, "What the tier holds"),
    facts([
      ["Topics", count(data.totals.topics)],
      ["Partitions", count(data.totals.partitions)],
      ["Segments", count(data.totals.segments)],
      ["Size", bytes(data.totals.bytes)],
      ["Copied", rate(rates.copied)],
      ["Read", rate(rates.fetched)],
      ["Copies now", count(data.copies_count), data.copies_count ? "wait" : null],
      ["Metadata partitions ready", `${ready} of ${all}`, ready === all && all ? "good" : "bad"],
    ]),
    make("h2", {}, "What is wrong"),
    data.wrong.length === 0
      ? make("p", { class: "good" }, "Nothing with the daemon as a whole.")
      : make("ul", {}, data.wrong.map((each) => make("li", { class: "bad" }, sentence(each.text),
        each.command ? [" ", make("code", {}, shown(each.command))] : []))),
    table(`What went wrong or waits, ${data.troubles.length} shown`, [
      ["Partition", (row) => link(explained(row.partition), `t ${row.kind} ${row.partition}`, short(row.partition))],
      ["What", (row) => row.kind, "word"],
      ["Why", (row) => sentence(row.message), "text"],
      ["Since", (row) => ago(row.at_ms, data.as_of_ms), "number"],
    ], data.troubles, "No copy failed last, and no removal waits."),
    make("h2", {}, "Topics"),
    ...topicsTable(topics, rates, ""),
    ...newest(events),
    make("h2", {}, "Copies"),
    table(`Copies that run or wait, ${data.copies.length} of ${data.copies_count}, the oldest first`, [
      ["Partition", (job) => link(explained(job.partition), `c ${job.segment_id}`, short(job.partition))],
      ["Phase", (job) => job.phase, "word"],
      ["Done", (job) => [make("progress", {
        max: Math.max(1, job.bytes_total), value: job.bytes_done,
        "aria-label": `${bytes(job.bytes_done)} of ${bytes(job.bytes_total)}`,
      }), ` ${bytes(job.bytes_done)} of ${bytes(job.bytes_total)}`]],
      ["Call in flight", (job) => shown(job.call), "word"],
      ["Age", (job) => span(job.age_seconds), "number"],
    ], data.copies, "None runs, none waits."),
    ...quorum(data.log.quorum),
    make("h2", {}, "Metadata partitions"),
    table(`Followed metadata partitions, ${data.partitions.length} of ${all}, those first that are not ready`, [
      ["Number", (row) => count(row.metadata_partition)],
      ["State", (row) => state(row.state), "word"],
      ["Behind", (row) => count(row.lag), "number"],
      ["Next offset", (row) => count(row.position), "number"],
      ["Partitions", (row) => count(row.user_partitions), "number"],
      ["Snapshot", (row) => ago(row.snapshot_at_ms, data.as_of_ms), "number"],
      ["Trouble", (row) => (row.failure
        ? [sentence(row.failure.evidence), " ", make("code", {}, row.failure.command)]
        : sentence(row.trouble ?? "")), "text"],
    ], data.partitions, "None is followed yet."),
    make("h2", {}, "Storage and caches"),
    facts([
      ["Storage", data.storage.kind, data.storage.error ? "bad" : "good"],
      ["Requests that were ok", count(data.requests.outcomes.ok ?? 0)],
      ["Requests that failed", count(Object.entries(data.requests.outcomes)
        .reduce((sum, [outcome, number]) => sum + (outcome === "ok" ? 0 : number), 0))],
      ["Throttled", count(data.requests.throttled)],
      ["Uploads left", count(data.requests.uploads_left)],
      ...data.caches.flatMap((cache) => [
        [`Cache of ${cache.cache === "chunk" ? "chunks" : "indexes"}`, bytes(cache.bytes)],
        [`Hits in ${cache.cache === "chunk" ? "chunks" : "indexes"}`, hits(cache)],
      ]),
    ]),
  ];
}

function hits(cache) {
  const all = cache.hit + cache.miss + cache.joined;
  return all === 0 ? "–" : `${Math.round((100 * (cache.hit + cache.joined)) / all)} % of ${count(all)}`;
}

function topicsTable(data, rates, offset) {
  const more = data.found > data.topics.length
    ? make("p", {}, `The ${data.topics.length} largest of ${count(data.found)}: search for others.`) : null;
  return [table(`Topics, ${data.topics.length} of ${count(data.count)}, the largest first`, [
    ["Topic", (row) => [link(`#/topic?${new URLSearchParams(
      offset ? { id: row.topic_id, offset } : { id: row.topic_id })}`, `n ${row.topic_id}`, name(row.topic)),
    row.paused_since_ms ? make("span", { class: "wait" }, " paused") : null]],
    ["Partitions", (row) => count(row.partitions), "number"],
    ["Segments", (row) => count(row.segments), "number"],
    ["Size", (row) => bytes(row.bytes), "number"],
    ["Begun", (row) => count(row.started), "number"],
    ["Oldest copy", (row) => span(row.oldest_copy_seconds), "number"],
    ["Copied", (row) => rate(rates.topics?.get(row.topic)?.copied), "number"],
    ["Read", (row) => rate(rates.topics?.get(row.topic)?.fetched), "number"],
    ["Failed", (row) => make("span", { class: row.failed ? "bad" : null }, count(row.failed)), "number"],
  ], data.topics, "No topic of that name is in this daemon's log."), more];
}

export function topics(data, rates, search, offset) {
  return [make("h1", {}, search ? ["Topics with ", name(search)] : "Topics"),
    ...topicsTable(data, rates, offset)];
}

export function topic(data, offset) {
  const said = data.partitions[0]?.topic ?? data.id;
  return [
    make("h1", {}, "Topic ", name(said)),
    make("p", {}, "Id ", make("code", {}, shown(data.id)),
      offset ? `; a partition's link asks for offset ${offset} in it.` : "."),
    table(`Partitions, ${data.partitions.length} of ${count(data.count)}`, [
      ["Partition", (row) => link(explained(row.selector, offset), `p ${row.partition}`,
        `${row.partition}: why does it answer as it does?`)],
      ["Role here", (row) => row.role ?? "none", "word"],
      ["Metadata partition", (row) => count(row.metadata_partition), "number"],
      ["Finished", (row) => count(row.segments.COPY_SEGMENT_FINISHED ?? 0), "number"],
      ["Begun", (row) => count(row.segments.COPY_SEGMENT_STARTED ?? 0), "number"],
      ["Being deleted", (row) => count(row.segments.DELETE_SEGMENT_STARTED ?? 0), "number"],
      ["Size", (row) => bytes(row.bytes), "number"],
      ["Marked", (row) => row.delete_state ?? "no", "word"],
    ], data.partitions, "This daemon's log names no partition of it."),
  ];
}

export function explanation(data, offset) {
  if (data.error) return [make("h1", {}, "Not known here"), make("p", {}, sentence(data.error))];
  return [
    make("h1", {}, "Partition ", short(data.partition)),
    make("p", {}, "In full ", make("code", {}, name(data.partition)), "."),
    offset ? make("p", {}, `Asked for offset ${offset}.`) : null,
    make("p", { class: WELL[data.verdict] ?? "wait" }, `${data.verdict}: `, sentence(data.sentence)),
    make("h2", {}, "Evidence"),
    make("ul", {}, data.evidence.map((each) => make("li", {}, sentence(each)))),
    data.next_command ? [make("h2", {}, "Next command"),
      make("p", {}, make("code", {}, shown(data.next_command)))] : null,
    data.also.length ? [make("h2", {}, "Besides"), make("ul", {}, data.also.map((each) =>
      make("li", { class: each.trouble ? "bad" : null }, sentence(each.sentence),
        each.next_command ? [" ", make("code", {}, shown(each.next_command))] : [])))] : null,
  ].flat();
}
