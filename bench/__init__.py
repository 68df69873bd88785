"""The benchmark: Holdfast, floors and peers, measured in one run. `make bench` starts it.

The folder:

    __main__         the program: prepares, runs the measurements, writes the results
    candidates       which candidates take part in which measurement
    adapters/        how each candidate is used; loaded in its own environment, so each needs only its own library
    worker           one process of one candidate; it runs the workloads that the testbed sends
    workloads        what a worker can run
    drivers          threads or tasks: how a worker calls its candidate
    environments     one virtual environment per candidate
    testbed          server, workers and rounds: the base of all measurements
    server_counters  the server's own counters
    machine          machine, interpreter and versions of a run
    stats            from samples to figures; pure functions
    suite            the measurements, in order
    scale            rounds and seconds: full, quick
    measurements/    one module per kind of measurement
    programs/        programs that measurements start
    before_after     two versions of Holdfast compared, instead of the measurements
    summary          from the raw results to the summary that is committed
    targets          the targets, and whether a run reached them
    page, picture    from the summary to the page and its charts
    studies/         one-off studies that docs and decisions cite; not part of the benchmark
"""
