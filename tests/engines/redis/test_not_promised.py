"""A single server does not exclude a second holder, under a larger fence, while the first still trusts its lease."""

import holdfast
from holdfast.testing import eventually
from holdfast.testing.servers import Server


def test_a_failover_that_lost_the_grant_lets_a_second_holder_in():
    """Replication is asynchronous: a promoted replica may lack the last grants. The fence grows."""
    with Server("valkey") as primary, Server("valkey") as replica:
        replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
        eventually(lambda: b"master_link_status:up" in replica.command("INFO", "replication"), 10)
        with holdfast.connect(primary.url) as client:
            replica.command("REPLICAOF", "NO", "ONE")  # promoted, while the old primary still answers its clients
            first = client.lock("x", ttl=30).acquire()
            primary.kill()
            with holdfast.connect(replica.url) as other, other.lock("x", timeout=0) as second:
                assert first.remaining() > 0
                assert second.fence > first.fence
            client.close(timeout=0)


def test_a_server_that_evicts_lets_a_second_holder_in():
    """A memory policy that deletes keys deletes leases without notice. The fence grows."""
    with Server("valkey") as server, holdfast.connect(server.url) as client:
        first = client.lock("x", ttl=30).acquire()
        server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        server.command("CONFIG", "SET", "maxmemory", "3mb")

        def evicted():
            for number in range(200):
                server.command("SET", f"filler:{number}", "x" * 20_000)
            return server.command("EXISTS", "hf2:{x}") == 0

        eventually(evicted, 20)
        server.command("CONFIG", "SET", "maxmemory", "0")
        with holdfast.connect(server.url) as other, other.lock("x", timeout=0) as second:
            assert first.remaining() > 0
            assert second.fence > first.fence
        client.close(timeout=0)
