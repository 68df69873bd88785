"""What messages and works say of themselves, to people who print them."""

import holdfast


def test_a_message_says_where_it_is():
    """One that was given back is in flight with somebody else, if at all."""
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
            work = owner.next(timeout=5).assignment
            assert repr(work).endswith(f" fence={work.fence} owned>")
        assert repr(work).endswith(f" fence={work.fence} lost>")
