"""Workers on many hosts share one directory of npm packages; one worker installs each package, once.

Run it on any number of hosts, with the same directory:

    python examples/shared_adaptors.py /shared/repo lodash@4.17.21 @scope/name@latest
"""

import sys

import holdfast
from holdfast.contrib import npm


def main(directory, *specs):
    # The leases are in the directory itself. With a server the URL would be "redis://…", and nothing else would change.
    with holdfast.connect(f"file://{directory}", label="worker") as hf:
        repo = npm.Repo(hf, directory, timeout=600, say=lambda line: print(line, file=sys.stderr))
        for done in repo.install(specs):
            if done.error:
                print(f"{done.spec}: {done.error}")
                return 1
            print(f"{done.alias} is in {done.path}" + (" (just installed)" if done.fresh else ""))
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
