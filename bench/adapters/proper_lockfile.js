// proper-lockfile: npm's lock on files, a directory that is made, and whose age tells whether its holder lives.
// No fence. It waits by asking again. A worker of its own, in the language that it is written for: no pipe is timed.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const lockfile = require("proper-lockfile");

const job = JSON.parse(process.argv[2]);
const { stale_s, update_s, ask_s } = job.options;
const waiting = { forever: true, factor: 1, minTimeout: ask_s * 1000, maxTimeout: ask_s * 1000 };
const settings = { realpath: false, stale: stale_s * 1000, update: update_s * 1000, retries: waiting };
const held = [];

setTimeout(() => process.exit(1), job.longest_s * 1000).unref();

const clock = () => Number(process.hrtime.bigint()) / 1e9; // the clock that all processes of a machine share
const sleep = (seconds) => new Promise((awake) => setTimeout(awake, Math.max(0, seconds) * 1000));
const between = ([low, high]) => low + (high - low) * Math.random();
const say = (answer) => fs.writeSync(1, `${JSON.stringify(answer)}\n`);
const take = (name) => lockfile.lock(path.join(job.url, `proper-${name}`), settings);

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
  const taken = [];
  let now = began;
  while (now < began + seconds) {
    const give = await take(`pair-${process.pid}`);
    await give();
    const after = clock();
    taken.push(after - now);
    now = after;
  }
  return {
    pairs: taken.length,
    pairs_per_s: taken.length / (clock() - began),
    p50_us: percentile(taken, 0.5) * 1e6,
    p99_us: percentile(taken, 0.99) * 1e6,
    client_cpu_us: ((cpuSeconds() - cpuBegan) / taken.length) * 1e6,
  };
}

async function turns({ name, callers, start, until, section, rest }) {
  const readyBy = cpuSeconds();
  const workers = Array.from({ length: callers }, (_, number) => `${process.pid}-${number}`);
  const told = await Promise.all(
    workers.map(async (worker) => {
      await (await take(`warm-${worker}`))();
      await sleep(start - clock());
      const grants = [];
      for (let asked = clock(); asked < until; asked = clock()) {
        const give = await take(name);
        const granted = clock();
        await sleep(between(section));
        const releasing = clock();
        await give();
        grants.push([worker, asked, granted, releasing]);
        if (rest[1]) await sleep(between(rest));
      }
      return grants;
    }),
  );
  return { workers, grants: told.flat(), cpu_s: cpuSeconds() - readyBy };
}

async function hold({ name }) {
  held.push(await take(name));
  return { granted: clock() };
}

async function turn({ name }) {
  const give = await take(name);
  const granted = clock();
  await give();
  return { granted };
}

const WORKLOADS = { pairs, turns, hold, turn };

async function main() {
  say({ ready: process.pid });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { workload, ...order } = JSON.parse(line);
    say(await WORKLOADS[workload](order));
  }
}

main();
