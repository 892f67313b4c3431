"""The nightly job: hold the remote storage and the metadata log against each other, both ways.

    listing at T0 ─> objects ─┐
                              ├─ sifting (SQL, by hash) ─> suspicious rows ─> judging ─> findings
    log up to ends after T0 ──┘                                                  │
                 confirming (HEAD, then the log's tail) <─ what seems missing ───┤
                 lineage (SQL windows): overlaps and gaps ───────────────────────┤
                 guards: may anything be condemned? ─> quarantine ─> executing   └─> report

Only this package imports pyspark. Decisions are `core.disposal`'s; joins are Spark SQL; nothing
that grows with the input ever comes to the driver. `night` is the run as a whole, and the order of
its steps is the safety case: the listing ends before the log's end offsets are asked for, and since
COPY_SEGMENT_STARTED is applied before the first byte is put, an object without any event in that
log is nobody's.
"""
