"""The daemon with its real Kafka adapter, over a simulated cluster.

aiokafka's connection and the adapter's own code run unmodified: the loop's `create_connection` is
the seam, and what it gives is a connection of bytes to a broker that speaks Kafka's protocol.

``replica`` is one copy of one partition, ``cluster`` elects, replicates and loses, ``broker``
answers requests, ``network`` carries bytes; ``truth`` remembers what was ever committed;
``chaos`` draws what goes wrong; ``scenario`` runs the manager on it and judges by ``truth``.
"""
