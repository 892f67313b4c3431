"""A sidecar beside each Kafka broker: KIP-405's remote log metadata, and the segments it names.

The rooms and the one direction in which they depend on each other::

    cli > reconcile | embed > wiring > daemon | adapters | client > ports | config | observability
        > core > codec > domain
"""

__version__ = "0.1.0"
