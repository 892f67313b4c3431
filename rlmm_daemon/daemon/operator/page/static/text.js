// Numbers, times and names as people read them. Everything foreign is text: nothing here makes HTML.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function bytes(count) {
  if (count == null) return "–";
  let at = 0;
  let left = count;
  while (left >= 1024 && at < UNITS.length - 1) { left /= 1024; at += 1; }
  return `${at === 0 ? left : left.toFixed(left < 10 ? 2 : 1)} ${UNITS[at]}`;
}

export function count(number) {
  return number == null ? "–" : number.toLocaleString("en");
}

export function rate(perSecond) {
  return perSecond == null ? "–" : `${bytes(Math.round(perSecond))}/s`;
}

export function span(seconds) {
  if (seconds == null) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

export function ago(ms, nowMs) {
  return ms == null ? "–" : `${span(Math.max(0, (nowMs - ms) / 1000))} ago`;
}

// What does not print, turns the reading direction or is a space that is none, shown as what it is.
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

export function shown(text) {
  return String(text).replace(UNSEEN, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);
}

export function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value != null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((each) => each != null));
  return made;
}

// A name that somebody else chose: isolated, so that it moves nothing beside it.
export function name(text) {
  return make("bdi", {}, shown(text));
}

// Commands stand between backticks in what the daemon says.
export function sentence(text) {
  return shown(text).split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));
}
