"""What is known of the Kafka cluster: `fixed` by configuration, `kafka` by asking its brokers."""
