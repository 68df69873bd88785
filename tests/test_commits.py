"""tools/commits.py checks the subjects of the newest commits. These tests run it on real, small git repositories."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "tools" / "commits.py"
IDENTITY = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")
GOOD = "queue: keep the cause of Retry as the attempt's error"
BAD = "What a word was said for is kept"


def git(folder, *words):
    done = subprocess.run(["git", *IDENTITY, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder, *subjects):
    for subject in subjects:
        git(folder, "commit", "--quiet", "--allow-empty", "-m", subject)


def add_check(folder):
    """Commit the script itself, as the project does."""
    (folder / "tools").mkdir(exist_ok=True)
    shutil.copy(SCRIPT, folder / "tools" / "commits.py")
    git(folder, "add", "tools")
    git(folder, "commit", "--quiet", "-m", "tidy: check the subjects of commits")


def run(folder):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--root", folder], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def repository(tmp_path):
    """A repository on the branch `work`, with one old commit that breaks the rule."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "work")
    commit(tmp_path, BAD)
    return tmp_path


def test_a_good_subject_after_the_check_passes(repository):
    """The rule begins with the check: older commits stay as they are."""
    add_check(repository)
    commit(repository, GOOD, "core/lease: return the same fence", "redis, sqlite: raise the layout version")

    assert run(repository) == (0, "", "")


@pytest.mark.parametrize(
    "subject",
    [
        BAD,
        "Queue: keep the cause of Retry",
        "queue: Keep the cause of Retry",
        "queue: keep",
        "queue:keep the cause",
        "keep the cause of Retry",
        "queue: keep " + "x" * 61,
    ],
)
def test_a_bad_subject_after_the_check_is_refused(repository, subject):
    """The output names the commit and its subject, so that its author can reword it."""
    add_check(repository)
    commit(repository, subject, GOOD)

    returncode, _, errors = run(repository)

    assert returncode == 1
    assert repr(subject) in errors
    assert GOOD not in errors.replace(f"for example `{GOOD}`", "")


def test_a_subject_of_exactly_72_characters_passes(repository):
    """72 is the maximum, not the first length that is refused."""
    add_check(repository)
    commit(repository, "queue: keep " + "x" * 60)

    assert run(repository) == (0, "", "")


def test_commits_before_the_last_tag_are_not_checked(repository):
    """A release is history: the check begins after it."""
    add_check(repository)
    commit(repository, BAD)
    git(repository, "tag", "v0.1.0")

    assert run(repository) == (0, "", "")

    commit(repository, BAD)

    assert run(repository)[0] == 1


def test_commits_of_the_main_branch_are_not_checked(repository):
    """A branch answers for its own commits, not for those that `main` already has."""
    add_check(repository)
    commit(repository, BAD)
    git(repository, "branch", "main")
    commit(repository, GOOD)

    assert run(repository) == (0, "", "")

    commit(repository, BAD)

    assert run(repository)[0] == 1


def test_on_the_main_branch_commits_after_the_check_are_checked(repository):
    """A check that passes on `main` whatever is committed there would be none."""
    add_check(repository)
    git(repository, "branch", "-m", "main")
    commit(repository, GOOD)

    assert run(repository) == (0, "", "")

    commit(repository, BAD)

    assert run(repository)[0] == 1


def test_merge_commits_are_skipped(repository):
    """Git writes the subject of a merge commit."""
    add_check(repository)
    git(repository, "checkout", "--quiet", "-b", "other")
    commit(repository, "pool: return an item once")
    git(repository, "checkout", "--quiet", "work")
    commit(repository, GOOD)
    git(repository, "merge", "--quiet", "--no-ff", "--no-edit", "other")

    assert git(repository, "log", "-1", "--format=%s").startswith("Merge branch")
    assert run(repository) == (0, "", "")


def test_a_tree_without_git_is_skipped(tmp_path):
    """An unpacked source archive has no history to check."""
    returncode, output, errors = run(tmp_path)

    assert (returncode, errors) == (0, "")
    assert output == "commits: skipped this step: this tree is no git checkout\n"


def test_an_archive_inside_of_another_checkout_is_skipped(repository):
    """The history of the outer project is not ours."""
    add_check(repository)
    commit(repository, BAD)
    (repository / "vendored").mkdir()

    assert run(repository / "vendored")[:2] == (0, "commits: skipped this step: this tree is no git checkout\n")


def test_a_shallow_clone_is_skipped(repository, tmp_path_factory):
    """A shallow clone lacks the commit to begin after, so every commit would look new."""
    add_check(repository)
    commit(repository, BAD)
    clone = tmp_path_factory.mktemp("clone") / "shallow"
    git(repository, "clone", "--quiet", "--depth", "1", repository.as_uri(), str(clone))

    assert run(clone) == (0, "commits: skipped this step: this is a shallow clone\n", "")


def test_a_repository_without_a_commit_is_skipped(tmp_path):
    """A new repository has nothing to check."""
    git(tmp_path, "init", "--quiet")

    assert run(tmp_path) == (0, "commits: skipped this step: this checkout has no commit\n", "")
