"""The repr of messages and assignments."""

import holdfast


def test_the_repr_of_a_message_shows_its_state():
    """A message that was given back shows as lost: another consumer may have it."""
    with holdfast.connect("memory://") as client:
        queue = client.queue("says of itself")
        queue.publish_many([1, 2])
        with queue.consumer(prefetch=2) as consumer:
            done, left = consumer.receive(2, timeout=5)
            assert repr(left).endswith(" attempt=1 in flight>")
            done.ack()
        assert repr(done).endswith(" attempt=1 ack>")
        assert repr(left).endswith(" attempt=1 lost>")
        with queue.owner() as owner:
            assignment = owner.next(timeout=5).assignment
            assert repr(assignment).endswith(f" fence={assignment.fence} owned>")
        assert repr(assignment).endswith(f" fence={assignment.fence} lost>")
