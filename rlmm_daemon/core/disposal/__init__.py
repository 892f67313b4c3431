"""May this object or segment die, and by which facts? Pure tables, no IO, no clock.

The cleaner, `rlmm storage verify`, the nightly reconcile and the model tests all ask here, so that
no two of them can disagree about what may be deleted.

    findings   what listing and log say of one segment together, and which of it may be condemned

KIP-405's RemoteLogCleaner is the part of tiered storage that Kafka never shipped.
"""
