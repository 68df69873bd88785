"""An error that the program's signal handler raises is the program's: the library neither explains nor drops it.

The usual case is an alarm that raises `TimeoutError`, which is also the error of a late socket. A tracer that raises at
a chosen line calls such a function: its arguments are a number and the frame that it interrupts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupts import InterruptAt

import holdfast
import holdfast.aio
from holdfast.interrupts import error_of_signal, is_of_signal, suppress_unless_signal
from holdfast.testing import eventually
from holdfast.testing.servers import Server, available, missing

pytestmark = [
    pytest.mark.finding("T6"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine object"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Alarm(TimeoutError):
    """The error of the program's alarm."""


@pytest.fixture(scope="module")
def server():
    if not available():
        pytest.skip(missing())
    with Server() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request, tmp_path):
    """Return the URL of an engine with queues."""
    if request.param == "redis":
        return request.getfixturevalue("server").url
    return f"sqlite://{tmp_path}/hf.db" if request.param == "sqlite" else f"memory://alarms-{tmp_path.name}"


# A change in memory is not whole under an interrupt, so there only the lines of the core count.
CORE = ("/core/queue/", "/core/resend.py", "/core/lease/acquire.py", "/core/lease/release.py")
LINES = {
    "memory": CORE,
    "sqlite": (*CORE, "/engines/sqlite/"),
    "redis": (*CORE, "/engines/redis/", "/engines/transport"),
}


EVERY, SAMPLE = 10**9, 150


class Program:
    """A program that sends one message through a queue, and calls again when its alarm interrupts a call."""

    def __init__(self):
        self.alarms = 0

    def call(self, call, *others):
        """Call; after the alarm, call again. Errors of `others` may answer the second call."""
        try:
            return call()
        except Alarm:
            self.alarms += 1
        with contextlib.suppress(*others):
            return call()

    def run(self, url, name):
        client = self.call(lambda: holdfast.connect(url))
        try:
            queue = self.call(lambda: client.queue(name, max_attempts=1, ttl=60))
            self.call(lambda: queue.publish({"text": name}, headers={"kind": "x"}, dedup_key="1"))
            consumer = self.call(queue.consumer)
            self.call(consumer.__enter__)
            (message,) = self.call(lambda: consumer.receive(timeout=5))
            assert message.body == {"text": name}
            # If the first ack arrived before the alarm, the second call says so.
            self.call(message.ack, holdfast.NotOwner)
            self.call(lambda: consumer.__exit__(None, None, None))
        finally:
            self.call(lambda: client.close(timeout=5))


def test_an_alarm_at_any_line_reaches_the_program_and_loses_no_message(url):
    """A healthy message never becomes a dead letter, a repeated ack is not refused, and no alarm is swallowed."""
    scheme, _, _ = url.partition(":")
    with holdfast.connect(url) as other:
        counted = InterruptAt(EVERY, among=LINES[scheme], error=Alarm)
        Program().run(url, "imports")
        with counted:
            Program().run(url, "not interrupted")
        lines = range(EVERY - counted.left)
        assert len(lines) > 100
        for number in lines if scheme == "memory" else random.Random(20261118).sample(lines, SAMPLE):
            program, alarm = Program(), InterruptAt(number, among=LINES[scheme], error=Alarm)
            name = f"alarm {number}"
            with alarm:
                program.run(url, name)
            queue = other.queue(name)
            eventually(lambda queue=queue: queue.stats().consumers == 0, what=f"no consumer after {alarm.where}")
            now = queue.stats()
            assert program.alarms == (alarm.where is not None), alarm.where
            places = (now.dead, now.ready, now.in_flight, now.counts.get("acked"), now.counts.get("lost", 0))
            assert places == (0, 0, 0, 1, 0), (alarm.where, now)


RANDOM_ALARMS = """
import random, signal, sys
import holdfast

chance, alarms, acked, errors, sent = random.Random(20261118), 0, set(), [], 0


class Alarm(TimeoutError):
    pass


def handler(_signum, _frame):
    raise Alarm


def soon():
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00003, 0.0008))


signal.signal(signal.SIGALRM, handler)
client = holdfast.connect(sys.argv[1])
queue = client.queue("random alarms", max_attempts=1, ttl=60)
with queue.consumer(prefetch=100) as consumer:
    while len(acked) < 300:
        try:
            soon()
            if sent < 300:
                queue.publish(sent, dedup_key=str(sent))
                sent += 1
            for message in consumer.receive(timeout=0.2):
                while message.body not in acked:
                    try:
                        soon()
                        message.ack()
                        acked.add(message.body)
                    except Alarm:
                        alarms += 1
                    except holdfast.NotOwner as error:  # the first ack arrived before the alarm
                        acked.add(message.body)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            alarms += 1
        except holdfast.HoldfastError as error:
            errors.append(repr(error))
            break
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    now = queue.stats()
print(errors, sorted(acked) == list(range(300)), now.dead, now.counts["acked"], now.counts.get("lost", 0), alarms > 50)
"""


def test_alarms_at_random_moments_lose_no_message(server):
    """With a real timer, which also strikes inside calls of the standard library and of redis-py."""
    ran = subprocess.run(
        [sys.executable, "-c", RANDOM_ALARMS, server.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "[] True 0 300 0 True\n", ran.stderr[-3000:]


async def in_a_loop(url, name):
    """Do the same in an event loop; asyncio itself reports an error that a signal handler raises in its callbacks."""

    async def call(make, *others):
        for allowed in ((Alarm,), others):
            with contextlib.suppress(*allowed):
                made = make()
                return await made if hasattr(made, "__await__") else made
        return None

    client = await call(lambda: holdfast.aio.connect(url))
    try:
        queue = await call(lambda: client.queue(name, max_attempts=1, ttl=60))
        await call(lambda: queue.publish({"text": name}, dedup_key="1"))
        consumer = await call(queue.consumer)
        await call(consumer.__aenter__)
        (message,) = await call(lambda: consumer.receive(timeout=5))
        await call(message.ack, holdfast.NotOwner)
        await call(lambda: consumer.__aexit__(None, None, None))
    finally:
        await call(lambda: client.close(timeout=5))


# The lines of tasks: asyncio itself catches an error in a callback of its loop, and no task gets it.
ASYNCIO_LINES = ("/core/queue/consumer.py", "/core/queue/message.py", "/core/resend.py", "/engines/redis/connect.py")


def test_an_alarm_in_an_event_loop_loses_no_message(server):
    """The same core serves both faces."""
    counted = InterruptAt(EVERY, among=ASYNCIO_LINES, error=Alarm)
    asyncio.run(in_a_loop(server.url, "imports in a loop"))
    with counted:
        asyncio.run(in_a_loop(server.url, "not interrupted in a loop"))
    lines, struck = range(EVERY - counted.left), 0
    with holdfast.connect(server.url) as other:
        for number in random.Random(20261118).sample(lines, SAMPLE):
            alarm = InterruptAt(number, among=ASYNCIO_LINES, error=Alarm)
            name = f"loop alarm {number}"
            with alarm:
                asyncio.run(in_a_loop(server.url, name))
            queue = other.queue(name)
            eventually(lambda queue=queue: queue.stats().consumers == 0, what=f"no consumer after {alarm.where}")
            now = queue.stats()
            places = (now.dead, now.ready, now.in_flight, now.counts.get("acked"), now.counts.get("lost", 0))
            assert places == (0, 0, 0, 1, 0), (alarm.where, now)
            struck += alarm.where is not None
    assert struck > SAMPLE // 2


def in_alarm(work):
    """Call `work` with an alarm that comes in a moment, and return the error that leaves it."""

    def handler(*_details):
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        work()
    except (OSError, ExceptionGroup) as error:
        return error, error_of_signal(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read(timeout=5.0):
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(timeout)
        one.recv(1)


def test_an_error_of_a_signal_handler_is_recognised_behind_the_error_of_a_library():
    """Libraries turn `TimeoutError` into errors of their own, and keep it as the context."""

    def converted():
        try:
            read()
        except TimeoutError:
            raise ConnectionError("the library gives up") from None

    error, found = in_alarm(read)
    assert found is error
    error, found = in_alarm(converted)
    assert (type(error), type(found)) == (ConnectionError, Alarm)


def test_a_timeout_of_a_socket_is_no_error_of_a_signal_handler():
    """Not even if the program calls the library inside the `except` clause for its alarm."""
    found = []

    def library():
        try:
            read(0.01)
        except TimeoutError as error:
            found.append((error_of_signal(error), is_of_signal(error), type(error.__context__)))

    def program():
        try:
            read()
        except Alarm:
            library()

    library()
    in_alarm(program)
    assert found == [(None, False, type(None)), (None, False, Alarm)]


class FrameKeeper:
    """A codec that looks at its caller, as for the text of an error."""

    name = "frame-keeper"

    def encode(self, value):
        return value.encode()

    def decode(self, data):
        caller = sys._getframe(1)
        if data == b"bad":
            raise ValueError(f"cannot decode in {caller.f_code.co_name}")
        return data.decode()


@pytest.mark.parametrize("in_thread", [False, True])
def test_the_error_of_a_codec_that_keeps_its_callers_frame_is_no_error_of_a_signal_handler(url, in_thread):
    """The message becomes a dead letter, and the worker continues."""
    with holdfast.connect(url) as hf:
        jobs = hf.queue(f"frames-{in_thread}", codec=FrameKeeper())
        jobs.publish_many(["bad", "good"])
        handled = []
        worker = jobs.worker(lambda message: (handled.append(message.body), worker.stop()))
        if in_thread:
            thread = threading.Thread(target=worker.run)
            thread.start()
            thread.join(20)
        else:
            bound = threading.Timer(20, worker.stop)
            bound.start()
            worker.run()
            bound.cancel()
        assert handled == ["good"]
        assert jobs.stats().dead == 1


def test_a_handler_with_more_arguments_is_recognised():
    """A method and a `functools.partial` are handlers too; on another thread, no function is one."""

    class Program:
        def handle(self, _signum, _frame):
            raise Alarm

    def extended(_extra, _signum, _frame):
        raise Alarm

    def no_handler(_signum, _frame):
        _frame, _mine = None, sys._getframe(1)
        raise Alarm

    def call(handler):
        try:
            handler(signal.SIGALRM, sys._getframe())
        except Alarm as error:
            return error_of_signal(error) is error

    assert call(Program().handle)
    assert call(functools.partial(extended, "extra"))
    assert not call(no_handler)
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(call, Program().handle).result()


def test_a_suppressed_error_does_not_hide_an_alarm():
    """`TimeoutError` is an `OSError`, and the program would wait for an alarm that has come."""

    def work():
        with suppress_unless_signal(OSError):
            read(0.001)
        with suppress_unless_signal(OSError):
            read()

    error, _ = in_alarm(work)
    assert type(error) is Alarm


def test_an_alarm_in_a_function_of_on_closing_reaches_the_program():
    """The client logs an error of the function itself; the alarm belongs to the program, which closes again."""
    client = holdfast.connect("memory://alarm-in-on-closing")
    later = []
    client.on_closing(read)
    client.on_closing(lambda: later.append("called"))
    error, _ = in_alarm(client.close)
    assert (type(error), later) == (Alarm, [])
    assert (client.close(), later) == ((), ["called"])
