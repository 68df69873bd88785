"""How each candidate is used: open it, then take and give back.

An adapter is a context manager, made from a URL (or a folder) and a ttl, that gives `take(name)`. That blocks until the
name is held and gives the function that gives it back; in asyncio both are awaited. A new lock object is made for every
pair. Each module imports its own library only, because it is loaded where nothing else is installed.
"""
