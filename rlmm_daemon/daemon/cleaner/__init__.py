"""The RemoteLogCleaner of KIP-405: what is marked for removal goes, and what got stuck ends.

    cleaner     one task per metadata partition, as long as this daemon owns or follows it
    removal     one marked user partition, step by step (`core.disposal.steps`)
    segments    many segments at once: STARTED, objects, FINISHED; bounded, limited, backed off
    stuck       copies and deletes that nobody ends, and what no listing shows
    superseded  copies that a later one of their broker shows as given up
    leftovers   what a listing of a partition's prefixes shows
    proof       the second fact: is the topic id gone?
    peers       what the presence files say of other brokers
    purge       what a person orders
    observer    marks that nobody asked for, off unless configured; directories: what disks carry
    notes       what `rlmm cleanup` and `rlmm explain` are told

Nothing is remembered but what the log says: a new owner goes on where the old one stopped, and two
owners for a moment repeat each other's steps without harm.
"""
