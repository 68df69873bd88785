"""What the tests, the campaign and the benchmark start and break: groups of servers, networks, proxies, clocks."""
