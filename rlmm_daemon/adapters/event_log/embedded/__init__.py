"""The embedded event log: record batches in local files, durable when `append` returns.

    <directory>/lock                        one process at a time
    <directory>/identity.json               written once: cluster id, topic id, partition count
    <directory>/state.json                  the generation; after a clean stop the ends, too;
                                            and the identity, should its own file be damaged
    <directory>/<partition>/<20 digits>.log record batches v2, as Kafka's own segment files
    <directory>/<partition>/leader-epoch-checkpoint   generations of the files but the newest

Bytes move only through `ports.disk`, time comes from `ports.clock`, luck is handed in: the same
code runs in the simulation. `log` is the adapter, `writer` and `reader` work on a `journal`,
`recovery` hands it to them; `verify` and `repair` are for operators. For one broker only.
"""

from rlmm_daemon.adapters.event_log.embedded.log import EmbeddedLog
from rlmm_daemon.adapters.event_log.embedded.options import EmbeddedOptions, Spawn

__all__ = ["EmbeddedLog", "EmbeddedOptions", "Spawn"]
