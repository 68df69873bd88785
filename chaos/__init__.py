"""The fault campaign: real processes, real faults from a seed, and checkers that judge what happened.

    python -m chaos --minutes 2 --seed 7 --out report

A campaign is many rounds. A round is one engine, one face, one workload and a schedule of faults; same seed, same
schedule. First the campaign tests itself, with lock clients that are broken on purpose.
"""
