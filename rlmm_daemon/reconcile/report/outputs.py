"""Outputs of a run: JSON, one HTML page, a Prometheus textfile, a table.

The page stands alone: no network, no script of anyone else's, every foreign string escaped. Trends
come from the summaries of earlier runs in the same directory.
"""

import html
import json
import os
import re
import shutil
import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from rlmm_daemon.config.reconcile import Output
from rlmm_daemon.core.disposal.findings import CONDEMNABLE, RULES, Finding, Severity
from rlmm_daemon.observability.escape import escape
from rlmm_daemon.reconcile.report.summary import Night
from rlmm_daemon.reconcile.workspace import AUDIT, WORK

SUMMARY: Final = "summary.json"
PAGE: Final = "report.html"
TREND_RUNS: Final = 30
_RUN: Final = re.compile(r"\d{8}T\d{9}Z")
_GB: Final = 10**9
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
#: What is not there costs nothing.
_ABSENT: Final = frozenset({Finding.MISSING_OBJECT, Finding.PARTIAL_SEGMENT, Finding.OFFSET_GAP})
#: Data that consumers can't read, or not as it was.
_MISSING: Final = frozenset({
    Finding.MISSING_OBJECT, Finding.PARTIAL_SEGMENT, Finding.SIZE_MISMATCH
})  # fmt: skip
#: Objects that are stored and that nobody reads.
_LEAKED: Final = CONDEMNABLE | {
    Finding.DEAD_TOPIC, Finding.UNKNOWN_KEY, Finding.NOT_CURRENT_VERSION, Finding.FOREIGN_CLUSTER
}  # fmt: skip
_ORDER: Final = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2}


class _Earlier(msgspec.Struct):
    """What a trend needs of a summary, whichever program wrote it."""

    run: str
    findings: dict[str, tuple[int, int]]


def write(night: Night, directory: Path, output: Output) -> None:
    """Write everything that a run leaves behind, and forget the oldest runs."""
    earlier = read_earlier(directory.parent, before=night.run)
    (directory / SUMMARY).write_text(
        json.dumps(msgspec.to_builtins(night), indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
    (directory / PAGE).write_text(page(night, earlier, output), encoding="utf-8")
    _point_latest(directory)
    _forget(directory.parent, output.runs_kept)
    if output.textfile is not None:
        try:
            _replace(Path(output.textfile), metrics(night))
        except OSError as error:  # all is done and told: the exit code stays what was found
            night.notes.append(f"{output.textfile} was not written: {error.strerror}")


def rows(night: Night) -> list[tuple[str, str, int, int, str]]:
    """Return (severity, kind, number, bytes, action), the gravest first."""
    kinds = [Finding(kind) for kind in night.findings]
    kinds.sort(key=lambda kind: (_ORDER[RULES[kind].severity], kind.value))
    return [
        (RULES[kind].severity.value, kind.value, *night.findings[kind.value], RULES[kind].action)
        for kind in kinds
    ]


def metrics(night: Night) -> str:
    """Return the run as Prometheus text, for node_exporter's textfile collector."""
    lines = []

    def family(name: str, meaning: str, samples: Iterable[tuple[str, float]]) -> None:
        lines.append(f"# HELP {name} {meaning}\n# TYPE {name} gauge")
        lines.extend(f"{name}{labels} {value}" for labels, value in samples)

    every = [(kind.value, *night.findings.get(kind.value, (0, 0))) for kind in Finding]
    family(
        "rlmm_reconcile_findings",
        "Disagreements between storage and log in the last run.",
        [(f'{{kind="{kind}"}}', number) for kind, number, _ in every],
    )
    family(
        "rlmm_reconcile_finding_bytes",
        "Bytes of the findings of the last run.",
        [(f'{{kind="{kind}"}}', size) for kind, _, size in every],
    )
    for name, meaning, value in (
        ("objects", "Objects listed.", night.objects),
        ("object_bytes", "Bytes listed.", night.object_bytes),
        ("events", "Events of the log that were read.", night.events),
        ("condemned_objects", "Objects that may be deleted.", night.condemned),
        ("quarantined_objects", "Objects put into quarantine.", night.quarantined),
        ("deleted_objects", "Objects deleted.", night.deleted),
        ("deleted_bytes", "Bytes deleted.", night.deleted_bytes),
        ("broken_off", "1 if the run did not come to its end.", int(bool(night.broken_off))),
        (
            "next_deletion_timestamp_seconds",
            "When a quarantine is over next; 0: nothing is in one.",
            (night.next_deletion_ms or 0) / 1000,
        ),
        (
            "needs_approval_objects",
            "Objects that no run may delete unless they are approved.",
            sum(number for number, _ in night.needs_approval.values()),
        ),
        ("refused", "1 if a guard forbade to condemn anything.", int(bool(night.refused))),
        ("duration_seconds", "Wall time of the run.", round(sum(night.seconds.values()), 3)),
        ("last_run_timestamp_seconds", "When the last run listed.", night.listed_at_ms / 1000),
    ):
        family(f"rlmm_reconcile_{name}", meaning, [("", value)])
    return "\n".join(lines) + "\n"


def page(night: Night, earlier: Sequence[Mapping[str, Any]], output: Output) -> str:
    """Return the HTML page; `earlier` are summaries, oldest first."""
    template = resources.files(__package__).joinpath(PAGE).read_text(encoding="utf-8")
    missing, leaked = _sum(night, _MISSING), _sum(night, _LEAKED)
    listed = datetime.fromtimestamp(night.listed_at_ms / 1000, tz=UTC)
    return string.Template(template).substitute(
        cluster=_text(night.cluster),
        run=_text(night.run),
        listed=listed.strftime("%Y-%m-%d %H:%M UTC"),
        verdict=_verdict(night),
        objects=f"{night.objects:,}",
        stored=human(night.object_bytes),
        events=f"{night.events:,}",
        found=f"{sum(number for number, _ in night.findings.values()):,}",
        found_kinds=f"of {len(night.findings)} kinds",
        missing=f"{missing[0]:,}",
        missing_bytes=human(missing[1]),
        leaked=f"{leaked[0]:,}",
        leaked_bytes=human(leaked[1]),
        condemned=f"{night.condemned:,}",
        condemned_bytes=human(night.condemned_bytes),
        cost=_cost(night.condemned_bytes, output),
        kinds=_kinds(night, output),
        offenders=_offenders(night, output),
        refused=_notes(night) + _refused(night),
        examples=_examples(night),
        done=_done(night),
        ahead="<br>".join(_text(line) for line in ahead(night)),
        trend=_trend([*earlier, msgspec.to_builtins(night)]),
        stages=_stages(night),
    )


def ahead(night: Night) -> list[str]:
    """Return what is to come: the next deletion, and what waits for an operator's word."""
    lines = []
    if night.next_deletion_ms is not None:
        at = datetime.fromtimestamp(night.next_deletion_ms / 1000, tz=UTC)
        due = "Since" if night.next_deletion_ms <= night.listed_at_ms else "From"
        lines.append(f"{due} {at:%Y-%m-%d %H:%M} UTC on a run with --execute deletes.")
    for manifest, (number, size) in night.needs_approval.items():
        lines.append(
            f"{number:,} objects ({human(size)}) of {manifest} are more than a run may delete of"
            f" this storage: rlmm reconcile approve {manifest}"
        )
    return lines


def _sum(night: Night, kinds: Collection[Finding]) -> tuple[int, int]:
    """Return number and bytes of the findings of some kinds."""
    chosen = [found for kind, found in night.findings.items() if Finding(kind) in kinds]
    return sum(number for number, _ in chosen), sum(size for _, size in chosen)


def read_earlier(home: Path, *, before: str) -> list[dict[str, Any]]:
    """Return the summaries of the last runs before one, oldest first; damaged ones are passed."""
    found = []
    for name in [run for run in sorted(_runs(home)) if run < before][-TREND_RUNS:]:
        try:
            told = (home / name / SUMMARY).read_bytes()
            found.append(msgspec.to_builtins(msgspec.json.decode(told, type=_Earlier)))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found


def human(size: int) -> str:
    """Return a size for people, in powers of 1,000."""
    value, unit = float(size), 0
    while abs(value) >= 1000 and unit < len(_UNITS) - 1:  # noqa: PLR2004 - as the units go
        value, unit = value / 1000, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def _age(milliseconds: int) -> str:
    hours = milliseconds // 3_600_000
    return f"{hours // 24} d" if hours >= 48 else f"{max(hours, 0)} h"  # noqa: PLR2004 - hours of two days


def _runs(home: Path) -> list[str]:
    return [each.parent.name for each in home.glob(f"*/{SUMMARY}") if not each.parent.is_symlink()]


def _forget(home: Path, runs_kept: int) -> None:
    """Remove the oldest runs, but what they did, and what killed ones of their time have left."""
    kept = sorted(_runs(home))[-runs_kept:]
    for run in home.iterdir():
        # Only a run that goes on has something to work with.
        if _RUN.fullmatch(run.name) and run.name < kept[0] and not (run / WORK).exists():
            _remove_but_audit(run)


def _remove_but_audit(run: Path) -> None:
    audit = run / AUDIT
    if not (audit.exists() and audit.stat().st_size):
        shutil.rmtree(run, ignore_errors=True)
        return
    for each in run.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        elif each.name != AUDIT:
            each.unlink(missing_ok=True)


def _point_latest(directory: Path) -> None:
    link = directory.parent / "latest"
    fresh = directory.parent / f".latest.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(directory.name)
    fresh.replace(link)


def _replace(path: Path, text: str) -> None:
    # The collector reads whenever it likes, so it must never see half a file.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _text(value: object) -> str:
    return html.escape(escape(str(value)))


def _verdict(night: Night) -> str:
    if night.broken_off:
        return f'<span class="bad">broken off</span>, {_text(night.broken_off)}; the findings stand'
    if night.refused:
        return '<span class="bad">refused</span> to condemn anything; the findings stand'
    high = sum(n for kind, (n, _) in night.findings.items() if _is_high(kind))
    if high:
        return f'<span class="bad">{high:,} findings of high severity</span>'
    if night.findings:
        return '<span class="warn">findings</span>, none of high severity'
    return '<span class="good">storage and log agree</span>'


def _is_high(kind: str) -> bool:
    return RULES[Finding(kind)].severity is Severity.HIGH


def _cost(size: int, output: Output) -> str:
    if not output.price_per_gb_month:
        return ""
    return f"about {size / _GB * output.price_per_gb_month:,.2f} {output.currency} a month"


def _cost_of(kind: str, size: int, output: Output) -> str:
    return "" if Finding(kind) in _ABSENT else _cost(size, output)


def _kinds(night: Night, output: Output) -> str:
    body = []
    largest = max((size for _, size in night.findings.values()), default=0) or 1
    for severity, kind, number, size, action in rows(night):
        rule = RULES[Finding(kind)]
        fate = "may be quarantined" if Finding(kind) in CONDEMNABLE else "report only"
        cost = _cost_of(kind, size, output)
        body.append(
            f'<tr><td><span class="tag {severity}">{severity}</span></td>'
            f"<td><b>{kind}</b><br><small>{_text(rule.meaning)}; {fate}</small></td>"
            f'<td class="n">{number:,}</td><td class="n">{human(size)}'
            f'<div class="bar"><i style="width:{100 * size / largest:.1f}%"></i></div>'
            f"<small>{_text(cost)}</small></td><td><code>{_text(action)}</code></td></tr>"
        )
    return "".join(body) or '<tr><td colspan="5">Nothing.</td></tr>'


def _offenders(night: Night, output: Output) -> str:
    return (
        "".join(
            f'<tr><td class="name">{_text(topic) or "-"}</td><td>{_text(kind)}</td>'
            f'<td class="n">{number:,}</td><td class="n">{human(size)}'
            f"<br><small>{_text(_cost_of(kind, size, output))}</small></td>"
            f'<td class="n">{_age(oldest)}</td></tr>'
            for kind, topic, number, size, oldest in night.offenders
        )
        or '<tr><td colspan="5">None.</td></tr>'
    )


def _examples(night: Night) -> str:
    rows = sorted(night.examples, key=lambda each: _ORDER[RULES[Finding(each.kind)].severity])
    return (
        "".join(
            f"<tr><td>{_text(each.kind)}</td><td>{_text(each.where)}</td>"
            f"<td><code>{_text(each.segment_id)}</code></td>"
            f'<td class="key"><code>{_text(each.key)}</code></td><td class="n">{human(each.bytes)}'
            f'</td><td class="n">{_age(each.age_ms)}</td><td>{_text(each.facts)}</td></tr>'
            for each in rows
        )
        or '<tr><td colspan="7">None.</td></tr>'
    )


def _notes(night: Night) -> str:
    return "".join(f'<p class="warn">{_text(note)}</p>' for note in night.notes)


def _refused(night: Night) -> str:
    if not night.refused:
        return ""
    items = "".join(f"<li>{_text(reason)}</li>" for reason in night.refused)
    return f'<section><h2>Why nothing was condemned</h2><ul class="bad">{items}</ul></section>'


def _done(night: Night) -> str:
    if not night.execute:
        return "A dry run: nothing was touched. <code>--execute</code> would quarantine."
    dropped = sum(night.dropped.values())
    return (
        f"Quarantined {night.quarantined:,} objects, deleted {night.deleted:,}"
        f" ({human(night.deleted_bytes)}), spared {dropped:,} that changed meanwhile,"
        f" {night.failed:,} failed, {night.left:,} left for another night by the caps."
    )


def _stages(night: Night) -> str:
    return "".join(
        f'<tr><td>{_text(name)}</td><td class="n">{seconds:.1f} s</td></tr>'
        for name, seconds in night.seconds.items()
    )


def _trend(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG of findings' bytes over the runs; nothing for a single one."""
    if len(summaries) < 2:  # noqa: PLR2004 - a line needs two points
        return "<p>The first run: trends come with the next ones.</p>"
    stored = [_bytes(run, missing=False) for run in summaries]
    missing = [_bytes(run, missing=True) for run in summaries]
    names = [_text(run.get("run", "")) for run in summaries]
    top = max(*stored, *missing) or 1
    return (
        '<svg viewBox="-8 0 616 120" role="img" aria-label="Bytes of findings over the last runs">'
        + _line("stored", names, stored, top)
        + _line("missing", names, missing, top)
        + f"</svg><p><small>Bytes of findings in the last {len(names)} runs, at most {human(top)}:"
        " what is stored and in question; dashed, what is missing or damaged.</small></p>"
    )


def _bytes(run: Mapping[str, Any], *, missing: bool) -> int:
    """Return a run's bytes of what is missing, or of all that is there."""
    kinds = _MISSING if missing else {*Finding} - _MISSING - _ABSENT
    names = {kind.value for kind in kinds}
    return sum(size for kind, (_, size) in run.get("findings", {}).items() if kind in names)


def _line(kind: str, names: Sequence[str], sizes: Sequence[int], top: int) -> str:
    step = 600 / (len(sizes) - 1)
    points = [f"{n * step:.1f},{110 - 100 * size / top:.1f}" for n, size in enumerate(sizes)]
    return f'<polyline class="{kind}" points="{" ".join(points)}"/>' + "".join(
        f'<circle class="{kind}" cx="{point.split(",")[0]}" cy="{point.split(",")[1]}" r="3">'
        f"<title>{name}: {human(size)}{' missing' if kind == 'missing' else ''}</title></circle>"
        for point, name, size in zip(points, names, sizes, strict=True)
    )
