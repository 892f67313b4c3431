"""What S3 says of when, as botocore would read it."""

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from botocore.utils import parse_timestamp
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.adapters.storage.s3 import S3Options, moments
from rlmm_daemon.adapters.storage.s3.credentials import ReloadableCredentials, session_with
from rlmm_daemon.adapters.storage.s3.moments import moment

whens = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds have no zone


@given(whens, st.sampled_from(["seconds", "milliseconds"]))
def test_what_s3_writes_is_read_as_botocore_reads_it_and_not_by_it(when, precision):
    listed = when.isoformat(timespec=precision).replace("+00:00", "Z")
    header = format_datetime(when.replace(microsecond=0), usegmt=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(moments, "parse_timestamp")
        found = [moment(listed), moment(header)]
    assert found == [parse_timestamp(listed), parse_timestamp(header)]


@pytest.mark.parametrize(
    "odd",
    ["2026-11-22T10:00:00", "2026-11-22 10:00:00+0100", "1763805600", 1763805600,
     "20261122T100000Z", "Sun, 22 Nov 2026 10:00:00 +0200", "Sunday, 22-Nov-26 10:00:00 GMT"],
)  # fmt: skip
def test_whatever_else_is_read_as_botocore_reads_it(odd):
    assert moment(odd) == parse_timestamp(odd)


@pytest.mark.parametrize("wrong", ["", "Z", "never GMT", "2026-13-01T00:00:00Z", None])
def test_what_is_no_moment_is_refused_as_botocore_refuses_it(wrong):
    with pytest.raises(ValueError, match="Invalid timestamp"):
        moment(wrong)


def test_answers_are_read_so():
    session = session_with(ReloadableCredentials(S3Options(bucket="b")))
    parser = session.get_component("response_parser_factory").create_parser("rest-xml")
    assert parser._timestamp_parser is moment
