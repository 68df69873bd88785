"""A program under a lease: `holdfast run NAME -- CMD`.

Three processes take part. The *parent* renews the lease. The *program* leads its own process group, and starts only
when the lease is granted. The *watcher* knows only the program's group and the newest deadline; it ends the program
before that deadline, also when the parent is frozen or killed. Parent and watcher keep the same timetable, so that one
of them is enough.
"""
