"""Kafka's error codes and aiokafka's exceptions, as this project's errors: the only place for both.

Codes are switched on as integers: aiokafka's own table knows none of 74 to 103 and calls them
"unknown, not retriable". Source: Kafka's Errors.
"""

import enum
import ssl
from types import MappingProxyType
from typing import Final

from aiokafka import errors as vendor

from rlmm_daemon.adapters.kafka.connection.requests import VersionMissing
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable


class Reaction(enum.Enum):
    """What is done about an answer that is an error."""

    RETRY = "retry in place"
    REFRESH = "ask for the leader again"
    OUT_OF_RANGE = "compare with the log's start and end"
    TOPIC = "look whether the topic is still the same"
    CORRUPT = "fetch again once"
    REFUSED = "an operator has to grant or change something"
    SEQUENCE = "the producer's identity is used up"
    TOO_LARGE = "the batch is too large"


R = Reaction
_CODES: Final = MappingProxyType(
    {
        -1: ("UNKNOWN_SERVER_ERROR", R.RETRY),
        1: ("OFFSET_OUT_OF_RANGE", R.OUT_OF_RANGE),
        2: ("CORRUPT_MESSAGE", R.CORRUPT),
        3: ("UNKNOWN_TOPIC_OR_PARTITION", R.TOPIC),
        5: ("LEADER_NOT_AVAILABLE", R.REFRESH),
        6: ("NOT_LEADER_OR_FOLLOWER", R.REFRESH),
        7: ("REQUEST_TIMED_OUT", R.RETRY),
        8: ("BROKER_NOT_AVAILABLE", R.REFRESH),
        9: ("REPLICA_NOT_AVAILABLE", R.REFRESH),
        10: ("MESSAGE_TOO_LARGE", R.TOO_LARGE),
        13: ("NETWORK_EXCEPTION", R.REFRESH),
        14: ("COORDINATOR_LOAD_IN_PROGRESS", R.RETRY),
        15: ("COORDINATOR_NOT_AVAILABLE", R.RETRY),
        16: ("NOT_COORDINATOR", R.RETRY),
        18: ("RECORD_LIST_TOO_LARGE", R.TOO_LARGE),
        19: ("NOT_ENOUGH_REPLICAS", R.RETRY),
        20: ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", R.RETRY),
        29: ("TOPIC_AUTHORIZATION_FAILED", R.REFUSED),
        31: ("CLUSTER_AUTHORIZATION_FAILED", R.REFUSED),
        35: ("UNSUPPORTED_VERSION", R.REFUSED),
        36: ("TOPIC_ALREADY_EXISTS", R.REFRESH),
        37: ("INVALID_PARTITIONS", R.REFUSED),
        38: ("INVALID_REPLICATION_FACTOR", R.REFUSED),
        40: ("INVALID_CONFIG", R.REFUSED),
        41: ("NOT_CONTROLLER", R.REFRESH),
        42: ("INVALID_REQUEST", R.REFUSED),
        44: ("POLICY_VIOLATION", R.REFUSED),
        45: ("OUT_OF_ORDER_SEQUENCE_NUMBER", R.SEQUENCE),
        46: ("DUPLICATE_SEQUENCE_NUMBER", R.SEQUENCE),
        47: ("INVALID_PRODUCER_EPOCH", R.SEQUENCE),
        49: ("INVALID_PRODUCER_ID_MAPPING", R.SEQUENCE),
        54: ("SECURITY_DISABLED", R.REFUSED),
        56: ("KAFKA_STORAGE_ERROR", R.REFRESH),
        58: ("SASL_AUTHENTICATION_FAILED", R.REFUSED),
        59: ("UNKNOWN_PRODUCER_ID", R.SEQUENCE),
        72: ("LISTENER_NOT_FOUND", R.REFRESH),
        74: ("FENCED_LEADER_EPOCH", R.REFRESH),
        75: ("UNKNOWN_LEADER_EPOCH", R.REFRESH),
        76: ("UNSUPPORTED_COMPRESSION_TYPE", R.REFUSED),
        78: ("OFFSET_NOT_AVAILABLE", R.RETRY),
        87: ("INVALID_RECORD", R.REFUSED),
        89: ("THROTTLING_QUOTA_EXCEEDED", R.RETRY),
        90: ("PRODUCER_FENCED", R.SEQUENCE),
        100: ("UNKNOWN_TOPIC_ID", R.TOPIC),
        103: ("INCONSISTENT_TOPIC_ID", R.TOPIC),
    }
)


def name_of(code: int) -> str:
    """Return the name that Kafka gives an error code."""
    known = _CODES.get(code)
    return known[0] if known else f"error {code}"


def reaction_to(code: int) -> Reaction:
    """Return what to do about a code; one that is not known is retried with back-off."""
    known = _CODES.get(code)
    return known[1] if known else Reaction.RETRY


def error_of(code: int, doing: str, detail: str | None = None) -> RlmmError:
    """Return the error for a code that answered `doing`."""
    name = name_of(code)
    hint = _HINTS.get(code, "")
    return StorageUnavailable(
        f"{doing}: the broker answered {name}" + (f" ({detail})" if detail else "") + hint,
        kafka_error=name,
    )


_HINTS: Final = MappingProxyType(
    {
        29: "; grant the daemon's principal READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS on the "
        "metadata topic, and CREATE where it may make it",
        31: "; grant the daemon's principal WRITE on the metadata topic, DESCRIBE on the cluster",
    }
)

#: What opening or using a connection may raise.
TRANSPORT_ERRORS: Final = (OSError, EOFError, TimeoutError, vendor.KafkaError, VersionMissing)


def transport_error(error: BaseException, doing: str) -> RlmmError:
    """Return the error for an exception of the connection; never shows a secret."""
    cause = error.__cause__
    match error:
        case TimeoutError():
            reason = "no answer in time"
        case vendor.UnsupportedSaslMechanismError():
            reason = "the broker does not offer this SASL mechanism"
        case vendor.SaslAuthenticationFailed() | vendor.AuthenticationFailedError():
            reason = "authentication failed: check username and password"
        case vendor.IllegalSaslStateError():
            reason = "the listener does not expect SASL"
        case ssl.SSLCertVerificationError():
            reason = f"the broker's certificate is not trusted: {error.verify_message}"
        case VersionMissing():
            reason = str(error)
        case _ if isinstance(cause, Exception):
            reason = f"{_plain(error)} ({_plain(cause)})"
        case _:
            reason = _plain(error)
    return StorageUnavailable(f"{doing}: {reason}", kafka_error=type(error).__name__)


def _plain(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text.removeprefix("KafkaConnectionError: ")
