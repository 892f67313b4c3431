"""The judge of the operators' simulation: what may go, and what no operator may give up."""

from tests.simulation.operators.truth import Books


def test_a_segment_of_a_deleted_topic_is_no_loss():
    books = Books(partition_count=1)
    segment = books.begin(books.partitions[0], 1)
    assert not books.can_be_put_back(segment), "it was never finished"
    segment.finished = True
    assert books.can_be_put_back(segment)
    books.gone.add(segment.first.partition.topic_id)
    assert not books.can_be_put_back(segment)


def test_a_segment_without_an_object_and_one_that_a_caller_deleted_are_no_loss():
    books = Books(partition_count=1)
    segment = books.begin(books.partitions[0], 1)
    segment.finished = True
    books.is_whole = lambda _: False
    assert not books.can_be_put_back(segment)
    books.is_whole = lambda _: True
    segment.unwanted = True
    assert not books.can_be_put_back(segment)
