"""Remote storages: `memory` for tests and the embedded manager, `local` for a file system.

None knows another, and none knows what a key means.
"""
