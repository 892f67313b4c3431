"""A KRaft cluster's controllers, followed as an observer: an image of the cluster at an offset.

    dialer      TLS and SASL as Kafka's own clients have them
    observer    FetchSnapshot first, then Fetch; one image, and a word on it
    cluster     the cluster port: the brokers' answers, weighed together with that word

An observer neither votes nor is counted; it needs ClusterAction and the controllers' listener.
Source: KIP-595, KIP-630, KafkaRaftClient.
"""
