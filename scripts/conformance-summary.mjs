// Judges a run of the conformance suite: `conformance-summary.mjs EXPECTED.tsv SCENARIOS RESULTS`.
//
// EXPECTED.tsv   lines of part, scenario, number of checks that must pass (or `stub`), number that do not apply (or nothing)
// SCENARIOS      a folder with one file for each part that was run: the scenarios that the suite has for it
// RESULTS        the suite's output: RESULTS/part/scenario/<run>/checks.json
//
// Prints one line for each scenario and a total; exits 1 unless everything is as expected.
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { basename, join } from 'node:path';

const ALL = { tasks: 'tasks', '2026-07-28': 'server 2026-07-28', '2025-11-25': 'server 2025-11-25', client: 'client', gateway: 'gateway 2026-07-28' };

const [expectedFile, scenariosFolder, resultsFolder] = process.argv.slice(2);
const PARTS = Object.fromEntries(Object.entries(ALL).filter(([part]) => existsSync(join(scenariosFolder, part))));

const expected = lines(expectedFile)
  .filter((line) => !line.startsWith('#'))
  .map((line) => {
    const [part, scenario, passes, skips = '0'] = line.split('\t');
    if (!(part in ALL) || !(passes === 'stub' || /^[1-9]\d*$/.test(passes)) || !/^\d+$/.test(skips)) {
      console.error(`conformance: ${expectedFile}: cannot read "${line}"`);
      process.exit(1);
    }
    return { part, scenario, stub: passes === 'stub', passes: passes === 'stub' ? 0 : Number(passes), skips: Number(skips) };
  })
  .filter(({ part }) => part in PARTS);

let sound = true;
const totals = Object.fromEntries(Object.keys(PARTS).map((part) => [part, { passed: 0, expected: 0 }]));

for (const entry of expected) {
  const { passed, problems } = judge(entry, checksOf(entry));
  report(`${entry.part} ${entry.scenario}`, entry.stub ? 'stub' : `${passed}/${entry.passes}`, problems);
  // A surplus in one scenario must not hide a gap in another.
  totals[entry.part].passed += Math.min(passed, entry.passes);
  totals[entry.part].expected += entry.passes;
}

for (const part of Object.keys(PARTS)) {
  const known = new Set(expected.filter((entry) => entry.part === part).map((entry) => entry.scenario));
  const scenarios = lines(join(scenariosFolder, part));
  const unknown = scenarios.filter((name) => !known.has(name));
  if (scenarios.length === 0) report(part, 'scenarios', ['the suite lists none']);
  if (unknown.length > 0) report(part, 'scenarios', [`the suite has more than the list expects: ${unknown.join(', ')}`]);
}

const summary = Object.entries(PARTS).map(([part, label]) => `${label} ${totals[part].passed}/${totals[part].expected}`);
console.log(`conformance: ${summary.join(', ')}`);
process.exit(sound ? 0 : 1);

function judge(entry, checks) {
  if (checks === undefined) return { passed: 0, problems: ['the suite wrote no checks: it skipped the scenario or broke off'] };
  if (entry.stub) {
    const live = checks.filter((check) => check.status !== 'SKIPPED');
    return { passed: 0, problems: live.length > 0 ? ['no longer a stub: it needs a number'] : [] };
  }
  const passed = checks.filter((check) => check.status === 'SUCCESS').length;
  const skipped = checks.filter((check) => check.status === 'SKIPPED');
  // INFO reports something optional. A warning is a SHOULD that was missed, a skip hides a check: neither is a pass.
  const problems = checks
    .filter((check) => check.status !== 'SUCCESS' && check.status !== 'INFO')
    .filter((check) => check.status !== 'SKIPPED' || skipped.length !== entry.skips)
    .map((check) => `${check.status} ${check.id}: ${check.errorMessage ?? check.description ?? ''}`);
  if (passed < entry.passes) problems.push(`${entry.passes - passed} fewer checks passed than expected`);
  return { passed, problems };
}

/** The checks of a scenario's run, or undefined where it left none. */
function checksOf({ part, scenario }) {
  const folder = join(resultsFolder, part, scenario);
  if (!existsSync(folder)) return undefined;
  // A scenario of a group has one folder more.
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => basename(file) === 'checks.json')
    .map((file) => join(folder, file));
  return files.length === 1 ? JSON.parse(readFileSync(files[0], 'utf8')) : undefined;
}

function report(name, outcome, problems) {
  console.log(`${problems.length === 0 ? 'ok  ' : 'FAIL'} ${name} ${outcome}`);
  for (const problem of problems) console.log(`     ${problem}`);
  if (problems.length > 0) sound = false;
}

function lines(file) {
  return readFileSync(file, 'utf8').split('\n').map((line) => line.trim()).filter((line) => line !== '');
}
