"""The race: Holdfast beside the floor and its peers, measured in one run. `make bench` starts it.

How the folder is laid out:

    __main__       the program: prepares, runs the parts, writes the results
    contenders     who takes part, and in what
    openers/       how each contender is used; loaded in its own environment, so each needs nothing but its library
    worker         one process of one contender; it obeys what the arena tells it
    deeds          what a worker can be told to do
    stages         threads or tasks: who calls a contender
    environments   one virtual environment per contender
    arena          server, workers and rounds: what all parts stand on
    meter          what the server counts about itself
    facts          where a run took place
    figures        from samples to figures; pure functions
    race           the parts, in order
    scale          how much of everything: full, quick
    parts/         one module per kind of measurement
    table          the targets, and whether a run reached them
    page, picture  from the results to what people read
"""
