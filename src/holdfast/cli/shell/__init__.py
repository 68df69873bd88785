"""A lease for a shell script: `holdfast acquire`, `check` and `release`.

`eval "$(holdfast acquire NAME)"` leaves a *watcher* process behind: it holds and renews the lease for as long as the
script runs. `check` and `release` reach the watcher through a socket whose name they compute from the token.
"""
