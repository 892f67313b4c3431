// The page's views: from an answer of the daemon to elements.

import { ago, bytes, count, make, name, rate, sentence, shown, span } from "./text.js";

const WELL = { ready: "good", failed: "bad" };

function facts(rows) {
  return make("dl", { class: "facts" }, rows.map(([term, value, kind]) =>
    make("div", {}, make("dt", {}, term), make("dd", { class: kind }, value))));
}

// columns: [head, cell of a row, class]; the first names its row.
function table(caption, columns, rows, none) {
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

function link(path, key, ...children) {
  return make("a", { href: path, "data-key": key }, children);
}

// Kafka's form without the topic's id, which a link still has.
function short(partition) {
  return name(partition.replace(/^[A-Za-z0-9_-]{22}:/, ""));
}

function explained(selector, offset) {
  const asked = new URLSearchParams({ partition: selector });
  if (offset) asked.set("offset", offset);
  return `#/explain?${asked}`;
}

function state(text) {
  return make("span", { class: WELL[text] ?? "wait" }, text);
}

function wrong(data) {
  const log = data.log;
  return [
    data.draining && ["The daemon stops.", null],
    !log.open && [log.trouble ?? "The event log is not open.", "rlmm doctor"],
    ...quiet(data.partitions),
    log.failure && [log.failure.evidence, log.failure.command],
    log.unwritable && [`Writes are refused: ${log.unwritable}`, "rlmm doctor"],
    ...log.warnings.map((text) => [text, "rlmm doctor"]),
    data.paused.trouble && [data.paused.trouble, "rlmm status"],
    data.storage.error && [`The storage does not work as it should: ${data.storage.error}`, "rlmm doctor"],
    data.storage.slow && [`The storage is slow: ${data.storage.slow}.`, "rlmm doctor"],
    data.storage.other_daemon && [data.storage.other_daemon, "rlmm status"],
    data.internal_errors.count > 0 && [`${data.internal_errors.count} bugs were met, the last in ` +
      `${data.internal_errors.last.where}: ${data.internal_errors.last.error}`, null],
  ].filter(Boolean);
}

// Metadata partitions whose log has been silent for longer than it is between two answers.
const QUIET_SECONDS = 5;

function quiet(partitions) {
  const found = partitions.filter((row) => row.silent_seconds > QUIET_SECONDS);
  return found.length === 0 ? [] : [[`The event log has not answered for ` +
    `${span(Math.max(...found.map((row) => row.silent_seconds)))}, in ${count(found.length)} ` +
    `metadata partitions: ${shown(found[0].trouble ?? "no answer")}`, "rlmm doctor"]];
}

export function overview(data, topics, rates) {
  const states = Object.entries(data.metadata_partitions);
  const ready = data.metadata_partitions.ready ?? 0;
  const all = states.reduce((sum, [, number]) => sum + number, 0);
  const found = wrong(data);
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
    found.length === 0
      ? make("p", { class: "good" }, "Nothing with the daemon as a whole.")
      : make("ul", {}, found.map(([text, command]) => make("li", { class: "bad" }, sentence(text),
        command ? [" ", make("code", {}, command)] : []))),
    table(`What went wrong or waits, ${data.troubles.length} shown`, [
      ["Partition", (row) => link(explained(row.partition), `t ${row.kind} ${row.partition}`, short(row.partition))],
      ["What", (row) => row.kind, "word"],
      ["Why", (row) => sentence(row.message), "text"],
      ["Since", (row) => ago(row.at_ms, data.as_of_ms), "number"],
    ], data.troubles, "No copy failed last, and no removal waits."),
    make("h2", {}, "Topics"),
    ...topicsTable(topics, rates, ""),
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
