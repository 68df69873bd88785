"""The parts that tests, campaign and benchmark start and break: groups of servers, networks, proxies, clocks."""
