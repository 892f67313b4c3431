"""Proof of who is at the other end of a quorum's connection: TLS certificates, and SASL."""
