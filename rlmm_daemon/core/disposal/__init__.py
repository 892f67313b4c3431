"""Rules for the end of an object or a segment: which facts allow it. Pure tables, no IO, no clock.

The cleaner, `rlmm storage verify`, the nightly reconcile and the model tests all ask here, so that
no two of them can disagree about what may be deleted.

    findings     what listing and log say of one segment together, and which may be condemned
    steps        the next step of a partition's removal, of a stuck copy, of a stuck delete
    third_set    finished segments that no listing of Kafka's shows: which one may go
    observation  the clock of marks that nobody asked for

KIP-405's RemoteLogCleaner is the part of tiered storage that Kafka never shipped.
"""
