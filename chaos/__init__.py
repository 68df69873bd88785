"""The fault campaign: real processes, real faults from a seed, and checkers of the history.

    python -m chaos --minutes 2 --seed 7 --out report

A campaign is many rounds. A round is one engine, one face, one workload and a schedule of faults; the same seed gives
the same schedule. First the campaign tests itself with mutants: lock clients that have a deliberate mistake.
"""
