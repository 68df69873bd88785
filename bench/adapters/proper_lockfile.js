// proper-lockfile: a lock on files for npm: the existence of a directory, whose age shows whether its holder is alive.
// No fence; waiters poll. This is a worker of its own in Node, so that no pipe is part of the timing.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const lockfile = require("proper-lockfile");

const job = JSON.parse(process.argv[2]);
const { stale_s, update_s, poll_s } = job.options;
const waiting = { forever: true, factor: 1, minTimeout: poll_s * 1000, maxTimeout: poll_s * 1000 };
const settings = { realpath: false, stale: stale_s * 1000, update: update_s * 1000, retries: waiting };
const held = [];

setTimeout(() => process.exit(1), job.longest_s * 1000).unref();

const clock = () => Number(process.hrtime.bigint()) / 1e9; // all processes of a machine share this clock
const sleep = (seconds) => new Promise((awake) => setTimeout(awake, Math.max(0, seconds) * 1000));
const between = ([low, high]) => low + (high - low) * Math.random();
const answer = (value) => fs.writeSync(1, `${JSON.stringify(value)}\n`);
const acquire = (name) => lockfile.lock(path.join(job.url, `proper-${name}`), settings);

function cpuSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

function percentile(values, share) {
  const ordered = values.slice().sort((one, other) => one - other);
  return ordered[Math.max(0, Math.ceil(ordered.length * share) - 1)];
}

async function pairs({ seconds }) {
  const began = clock();
  const cpuBegan = cpuSeconds();
  const durations = [];
  let now = began;
  while (now < began + seconds) {
    const release = await acquire(`pair-${process.pid}`);
    await release();
    const after = clock();
    durations.push(after - now);
    now = after;
  }
  return {
    pairs: durations.length,
    pairs_per_s: durations.length / (clock() - began),
    p50_us: percentile(durations, 0.5) * 1e6,
    p99_us: percentile(durations, 0.99) * 1e6,
    client_cpu_us: ((cpuSeconds() - cpuBegan) / durations.length) * 1e6,
  };
}

async function turns({ name, callers, start, until, section, rest }) {
  const cpuBegan = cpuSeconds();
  const workers = Array.from({ length: callers }, (_, number) => `${process.pid}-${number}`);
  const collected = await Promise.all(
    workers.map(async (worker) => {
      await (await acquire(`warm-${worker}`))();
      await sleep(start - clock());
      const grants = [];
      for (let requested = clock(); requested < until; requested = clock()) {
        const release = await acquire(name);
        const granted = clock();
        await sleep(between(section));
        const releasing = clock();
        await release();
        grants.push([worker, requested, granted, releasing]);
        if (rest[1]) await sleep(between(rest));
      }
      return grants;
    }),
  );
  return { workers, grants: collected.flat(), cpu_s: cpuSeconds() - cpuBegan };
}

async function hold({ name }) {
  held.push(await acquire(name));
  return { granted: clock() };
}

async function turn({ name }) {
  const release = await acquire(name);
  const granted = clock();
  await release();
  return { granted };
}

const WORKLOADS = { pairs, turns, hold, turn };

async function main() {
  answer({ ready: process.pid });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { workload, ...order } = JSON.parse(line);
    answer(await WORKLOADS[workload](order));
  }
}

main();
