// The operator's page in a real browser, against a real gateway.
//
//   node check.mjs OUTLAST CHROMIUM FOLDER        screenshots go into FOLDER
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { isDeepStrictEqual } from 'node:util';
import { chromium } from 'playwright-core';
import { hostile } from './upstream.mjs';

const [outlast, browserPath, folder] = process.argv.slice(2);
const PATIENCE = 20_000;
const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'outlast-page-'));
const children = [];
let failures = 0;
let passed = 0;

// --- what is driven

/** Starts a process and waits for what it says of itself. */
async function start(command, args, pattern) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'inherit'], env: { ...process.env, RUST_LOG: 'error' } });
  children.push(child);
  let said = '';
  const found = await new Promise((tell, refuse) => {
    const timer = setTimeout(() => refuse(new Error(command + ' does not say where it is: ' + said)), PATIENCE);
    child.stdout.on('data', (chunk) => {
      said += chunk;
      const found = pattern.exec(said);
      if (found) { clearTimeout(timer); tell(found); }
    });
    child.on('exit', (code) => refuse(new Error(command + ' ended with ' + code)));
  });
  return { child, found };
}

async function stop(child, signal = 'SIGTERM') {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, 'exit');
  child.kill(signal);
  await ended;
}

const upstream = await start(process.execPath, [new URL('upstream.mjs', import.meta.url).pathname], /listening on (\S+)/);
const upstreamUrl = upstream.found[1];
const serve = (listen, admin, more = []) => start(outlast, ['gateway', '--listen', listen, '--admin', admin, '--db', path.join(scratch, 'tasks.db'), '--start', 'now', '--protocol', '2025-11-25', '--upstream', upstreamUrl, ...more],
  /listening on (\S+)[\s\S]*Their page: +(\S+)/);
let gateway = await serve('127.0.0.1:0', '127.0.0.1:0');
const mcp = gateway.found[1];
const link = gateway.found[2];
const page_url = link.split('#')[0];
const token = link.split('#token=')[1];

const tell = (query) => fetch(new URL('/tell?' + query, upstreamUrl));
const told = async () => (await fetch(new URL('/told', upstreamUrl))).json();
const api = async (where, options = {}) => {
  const response = await fetch(new URL('/api/' + where, page_url), { ...options, headers: { authorization: 'Bearer ' + token } });
  return response.json();
};

/** Calls a tool as a client that follows tasks and can be asked anything; gives the task's id. */
async function call(tool, args = {}) {
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientInfo': { name: 'page', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': { extensions: { 'io.modelcontextprotocol/tasks': {} }, elicitation: { form: {}, url: {} }, sampling: {}, roots: {} },
  };
  const response = await fetch(mcp, {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream', 'mcp-protocol-version': '2026-07-28', 'mcp-method': 'tools/call', 'mcp-name': tool },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: tool, arguments: args, _meta } }),
  });
  const body = await response.json();
  if (!body.result?.taskId) throw new Error(tool + ' is no task: ' + JSON.stringify(body));
  return body.result.taskId;
}

async function until(what, probe) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (Date.now() > end) throw new Error('it never came to this: ' + what);
    await new Promise((go) => setTimeout(go, 50));
  }
}

const browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const noise = [];

/** A page of its own, of which everything is heard that is not as it should be. */
async function look({ width = 1600, height = 1000, dark = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? 'dark' : 'light', deviceScaleFactor: 1 });
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: new URL(page_url).origin });
  await context.addInitScript(() => document.addEventListener('securitypolicyviolation', (event) => console.error('policy: ' + event.violatedDirective + ' ' + event.blockedURI)));
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on('console', (message) => message.type() === 'error' && noise.push(message.text() + ' ' + message.location().url));
  page.on('pageerror', (error) => noise.push(String(error)));
  page.on('dialog', (dialog) => { noise.push('a dialog: ' + dialog.message()); dialog.dismiss(); });
  page.on('request', (request) => new URL(request.url()).origin !== new URL(page_url).origin && !request.url().startsWith('data:') && noise.push('a foreign request: ' + request.url()));
  return page;
}

async function check(name, work) {
  try {
    await work();
    passed += 1;
    console.log('ok ' + name);
  } catch (error) {
    failures += 1;
    console.log('FAIL ' + name + ': ' + String(error?.stack ?? error).split('\n').slice(0, 12).join('\n     '));
  }
}

function equal(found, expected, what = 'it') {
  if (!isDeepStrictEqual(found, expected)) throw new Error(what + ' is ' + JSON.stringify(found) + ', not ' + JSON.stringify(expected));
}

function holds(is, what) {
  if (!is) throw new Error('this does not hold: ' + what);
}

const row = (page, id) => page.locator('#rows a[href="#/' + id + '"]');
const state = (page, id, words) => row(page, id).locator('.state', { hasText: words }).waitFor();
const opened = (page, words) => page.locator('#detail .top .state', { hasText: words }).waitFor();
const notice = (page, words) => page.locator('#detail .notice', { hasText: words }).waitFor();
const waits = (page, cause, words) => page.locator('#detail .why p.' + cause, { hasText: words }).waitFor();
const active = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.name || document.activeElement.textContent.trim().slice(0, 40));

async function enter(page, hash = '') {
  await page.goto(link);
  await page.locator('#connection.live').waitFor();
  if (hash) await page.evaluate((hash) => { location.hash = hash; }, hash);
}

/** Goes on by the key until the focus is where it should be, as somebody without a mouse does. */
async function tabTo(page, is, key = 'Tab') {
  for (let n = 0; n < 80; n += 1) {
    if (await page.evaluate(is)) return;
    await page.keyboard.press(key);
  }
  throw new Error('the keyboard does not get there: ' + is);
}

// --- what it has to do

const page = await look();
const quiet = () => noise.splice(0).filter((line) => !/status of (401|409|422)/.test(line));

await check('a wrong token is refused in words, and the right one lets in', async () => {
  await page.goto(page_url);
  await page.getByLabel('Admin token').fill('not-the-right-token');
  await page.keyboard.press('Enter');
  await page.getByText('This is not the right admin token.').waitFor();
  equal(await page.locator('#app').isVisible(), false, 'whether the page is shown');
  equal(await page.evaluate(() => sessionStorage.length), 0, 'what is kept');
  equal(await active(page), 'token', 'the focus');
  const refused = noise.filter((line) => /status of 401/.test(line)).length;
  holds(refused >= 1, 'the server refused it');
  equal(quiet(), [], 'the noise');
  await page.getByLabel('Admin token').fill(token);
  await page.keyboard.press('Enter');
  await page.locator('#connection.live').waitFor();
});

await check('the link lets in, and its token leaves the address and stays for a reload', async () => {
  const other = await look();
  await other.goto(link);
  await other.locator('#connection.live').waitFor();
  equal(other.url(), page_url, 'the address');
  equal(await other.evaluate(() => history.length) <= 2, true, 'the history is short');
  await other.reload();
  await other.locator('#connection.live').waitFor();
  await other.getByRole('button', { name: 'Forget the token' }).click();
  await other.getByLabel('Admin token').waitFor();
  await other.reload();
  await other.getByLabel('Admin token').waitFor();
  await other.context().close();
});

let slow;
await check('a task appears, says how far it is and ends, without a reload', async () => {
  await page.evaluate(() => { globalThis.same = true; });
  await page.getByText('There is no task yet.').waitFor();
  slow = await call('slow', { z: 1, a: '<b>', big: 7 });
  await state(page, slow, 'Working');
  await row(page, slow).getByText('waiting to be told').waitFor();
  await until('the call is at the server', async () => (await told()).calls.includes('slow'));
  await tell('say=half%20of%20it');
  await row(page, slow).getByText('half of it').waitFor();
  const age = () => row(page, slow).locator('.age').textContent();
  const before = await age();
  await until('the age ticks', async () => (await age()) !== before);
  await row(page, slow).click();
  await opened(page, 'Working');
  await page.locator('#detail pre', { hasText: '"a": "<b>"' }).waitFor();
  await waits(page, 'running', 'A worker has it');
  await tell('finish');
  await state(page, slow, 'Completed');
  await opened(page, 'Completed');
  await page.locator('#detail pre', { hasText: 'slow and done' }).first().waitFor();
  await page.locator('.history', { hasText: 'completed by attempt 1' }).waitFor();
  equal(await page.locator('#detail .why p').count(), 0, 'what it waits for');
  equal(await page.evaluate(() => globalThis.same), true, 'whether it is the same page');
  equal(quiet(), [], 'the noise');
});

let asking;
await check('a question is a form that says what is wrong, and its answer reaches the tool', async () => {
  asking = await call('ask_form');
  await state(page, asking, 'Input required');
  await row(page, asking).click();
  const form = page.locator('form.question');
  await form.waitFor();
  await waits(page, 'answers', 'It waits for the answer to ');
  for (const field of await form.locator('input, select, textarea').all()) {
    holds(await field.evaluate((node) => node.labels.length > 0), 'every field has a label');
  }
  equal(await form.getByLabel('Copies').inputValue(), '2', 'the default of a number');
  equal(await form.getByLabel('Medium').isChecked(), true, 'the default of a choice');
  equal(await form.getByLabel('Monday').isChecked(), true, 'the default of several');
  await form.getByLabel('Copies').fill('12');
  await form.getByLabel('E-mail').fill('nobody');
  await form.getByLabel('Tuesday').check();
  await form.getByLabel('Wednesday').check();
  await form.getByRole('button', { name: 'Send the answer' }).click();
  await form.getByText('5 fields are not right yet.').waitFor();
  equal(await form.locator('[aria-invalid="true"]').count(), 1 + 1 + 1 + 2 + 3, 'what is marked');
  holds(await form.locator('[aria-invalid="true"]').first().evaluate((node) => node === document.activeElement), 'the first wrong field has the focus');
  await form.getByLabel('Your name').fill('Zoë <b>Ada</b>');
  await form.getByLabel('Copies').fill('3');
  await form.getByLabel('E-mail').fill('zoe@example.com');
  await form.getByLabel('Share').fill('0.5');
  await form.getByLabel('Yes').check();
  await form.getByLabel('Large').check();
  await form.getByLabel('Colour').selectOption('WHITE');
  await form.getByLabel('Monday').uncheck();
  await form.getByLabel('From').fill('2026-12-24');
  await form.getByRole('button', { name: 'Send the answer' }).click();
  await notice(page, 'is answered');
  await opened(page, 'Completed');
  equal((await told()).answers.at(-1), { action: 'accept', content: { name: 'Zoë <b>Ada</b>', mail: 'zoe@example.com', count: 3, ratio: 0.5, sure: true, size: 'l', colour: 'white', days: ['tue', 'wed'], from: '2026-12-24' } }, 'the answer');
  equal(quiet(), [], 'the noise');
});

await check('what happens meanwhile takes neither the focus nor what is typed', async () => {
  const id = await call('ask_small');
  await state(page, id, 'Input required');
  await row(page, id).click();
  const field = page.locator('form.question').getByLabel('Name');
  await field.pressSequentially('Gra');
  const others = [await call('slow'), await call('slow')];
  for (const other of others) await state(page, other, 'Working');
  await tell('say=again');
  await row(page, others[1]).getByText('again').waitFor();
  await page.keyboard.type('ce');
  equal(await field.inputValue(), 'Grace', 'what is typed');
  await tell('finish');
  for (const other of others) await state(page, other, 'Completed');
  holds(await field.evaluate((node) => node === document.activeElement), 'the focus stays');
  // Another task, and back.
  await row(page, slow).click();
  await opened(page, 'Completed');
  await page.goBack();
  equal(await field.inputValue(), 'Grace', 'what was typed is there still');
  // Answered by somebody else.
  await api('tasks/' + id + '/answers', { method: 'POST', body: JSON.stringify({ [(await api('tasks/' + id)).questions[0].key]: { action: 'accept', content: { name: 'Other' } } }) });
  await notice(page, 'was answered or taken back elsewhere');
  equal(await page.locator('form.question').count(), 0, 'the forms');
});

await check('a question is declined, and another one cancelled', async () => {
  for (const [button, action] of [['Decline', 'decline'], ['Cancel the question', 'cancel']]) {
    const id = await call('ask_small');
    await row(page, id).click();
    await page.getByRole('button', { name: button }).click();
    await notice(page, 'is answered');
    await until(action + ' reaches the tool', async () => (await told()).answers.at(-1).action === action);
  }
});

await check('an address to open shows whole, says whose it is, and is opened by a click alone', async () => {
  const id = await call('ask_page');
  await row(page, id).click();
  const address = page.locator('form.question a');
  equal(await address.textContent(), 'https://bank.example@evil.example/consent?next=/a&b=%3Cc%3E', 'the address');
  equal(await page.locator('form.question b').textContent(), 'evil.example', 'whose it is');
  equal([await address.getAttribute('rel'), await address.getAttribute('target')], ['noopener noreferrer', '_blank'], 'how it opens');
  equal(page.context().pages().length, 1, 'the open pages');
  await page.getByRole('button', { name: 'Accept' }).click();
  await until('it reaches the tool', async () => (await told()).answers.at(-1).action === 'accept' && !(await told()).answers.at(-1).content);
});

await check('a question to a model is shown as text and answered by a person, and folders are named', async () => {
  const model = await call('ask_model');
  await row(page, model).click();
  await page.locator('form.question .said', { hasText: 'What is the capital of France?' }).waitFor();
  await page.getByLabel('Reply').fill('Paris.\nIt is.');
  await page.getByRole('button', { name: 'Send the reply' }).click();
  await opened(page, 'Completed');
  const answer = (await told()).answers.at(-1);
  equal([answer.role, answer.model, answer.content], ['assistant', 'operator', { type: 'text', text: 'Paris.\nIt is.' }], 'the answer');
  const folders = await call('ask_folders');
  await row(page, folders).click();
  await page.getByLabel('Folders').fill('file:///srv/a\nfile:///srv/b');
  await page.getByRole('button', { name: 'Send the folders' }).click();
  await opened(page, 'Completed');
  equal((await told()).answers.at(-1).roots.map((root) => root.uri), ['file:///srv/a', 'file:///srv/b'], 'the folders');
  equal(quiet(), [], 'the noise');
});

await check('a cancel is asked for twice, and reaches the tool', async () => {
  const id = await call('slow');
  await row(page, id).click();
  await page.getByRole('button', { name: 'Cancel the task' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.waitFor();
  equal(await active(page), 'confirm-no', 'the focus');
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'hidden' });
  equal((await api('tasks/' + id)).cancelRequested, false, 'whether its end is asked for');
  await page.getByRole('button', { name: 'Cancel the task' }).click();
  await dialog.getByRole('button', { name: 'Cancel the task' }).click();
  await opened(page, 'Cancelled');
  await state(page, id, 'Cancelled');
  await until('the server hears of it', async () => (await told()).cancelled.length === 1);
  await tell('finish');
});

await check('a failed task is started again as a new one, once', async () => {
  const id = await call('flaky');
  await state(page, id, 'Failed');
  await row(page, id).click();
  await page.locator('#detail pre', { hasText: 'no van today' }).first().waitFor();
  await page.getByRole('button', { name: 'Start it again' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Start it again' }).click();
  await notice(page, 'This is the new task that goes on from ' + id);
  await opened(page, 'Completed');
  await page.locator('#detail pre', { hasText: 'worked this time' }).first().waitFor();
  await page.locator('.history', { hasText: 'created with what is kept of the failed task ' + id }).waitFor();
  holds(!page.url().includes(id), 'the address is that of the new one');
  await row(page, id).click();
  await page.getByRole('button', { name: 'Start it again' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Start it again' }).click();
  await notice(page, 'The task was started again before, as ');
  equal(quiet(), [], 'the noise');
});

await check('tasks are filtered by status, tool and owner', async () => {
  await page.evaluate(() => { location.hash = '#/'; });
  const shown = () => page.locator('#rows a').count();
  const counted = async () => Number(await page.locator('.statuses label', { hasText: 'Failed' }).locator('b').textContent());
  await page.getByRole('radio', { name: 'Failed' }).check();
  await until('only failed ones', async () => (await shown()) === (await counted()) && (await shown()) === 1);
  await page.getByRole('radio', { name: 'All' }).check();
  await page.getByLabel('Tool').fill('flaky');
  await until('only those of the tool', async () => (await shown()) === 2);
  const owner = await page.locator('#rows .owner').first().textContent();
  await page.getByLabel('Owner').fill(owner);
  await page.getByLabel('Tool').fill('nothing');
  await page.getByText('No task fits the filters.').waitFor();
  await page.getByRole('button', { name: 'Clear the filters' }).click();
  await until('all of them', async () => (await shown()) > 5);
});

await check('all of it can be done by the keyboard', async () => {
  const id = await call('ask_small');
  const other = await look();
  await other.goto(page_url);
  await other.keyboard.type(token);
  await other.keyboard.press('Enter');
  await state(other, id, 'Input required');
  await tabTo(other, "document.activeElement.name === 'status'");
  await other.keyboard.press('ArrowRight');
  await other.keyboard.press('ArrowRight');
  await until('the filter is set', async () => (await other.locator('#rows a').count()) === 1);
  await tabTo(other, "document.activeElement.matches('#rows a')");
  const outline = await other.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  equal(outline, 'solid', 'the outline of what has the focus');
  await other.keyboard.press('Enter');
  await other.locator('form.question').waitFor();
  holds(await other.evaluate(() => document.activeElement.matches('#detail h2')), 'the focus is in the task');
  await tabTo(other, "document.activeElement.matches('form.question input')");
  await other.keyboard.type('Keyboard');
  await other.keyboard.press('Escape');
  holds(await other.evaluate(() => document.activeElement.matches('#detail h2')), 'one Escape leaves the form');
  await tabTo(other, "document.activeElement.matches('form.question input')");
  await other.keyboard.press('Enter');
  await notice(other, 'is answered');
  equal((await told()).answers.at(-1).content, { name: 'Keyboard' }, 'the answer');
  await other.keyboard.press('Escape');
  await other.locator('#detail').waitFor({ state: 'hidden' });
  holds(await other.evaluate(() => document.activeElement !== document.body), 'the focus is not lost');
  await other.context().close();
});

const hostiles = [];
await check('what a hostile task says is text and does nothing', async () => {
  hostiles.push(await call('hostile', { [hostile]: hostile }));
  hostiles.push(await call('ask_form'));
  await row(page, hostiles[0]).locator('.message', { hasText: hostile }).waitFor();
  await row(page, hostiles[0]).click();
  await page.locator('#detail .says', { hasText: hostile }).waitFor();
  await page.locator('#detail pre', { hasText: 'globalThis.hit' }).first().waitFor();
  await row(page, hostiles[1]).click();
  await page.locator('form.question .asks', { hasText: hostile }).waitFor();
  await tell('finish');
  await row(page, hostiles[0]).click();
  await opened(page, 'Completed');
  await page.locator('#detail pre', { hasText: hostile }).first().waitFor();
  await page.getByLabel('Show values and answers').check();
  await page.locator('.history', { hasText: 'step' }).waitFor();
  equal(await page.evaluate(() => [globalThis.hit ?? null, document.images.length, document.scripts.length]), [null, 0, 1], 'what ran and what is there');
  equal(quiet(), [], 'the noise');
});

await check('it fits and can be read at 360 and 1600 pixels, in light and in dark', async () => {
  await tell('finish');
  const kept = [await call('slow', { folder: '/srv/reports', depth: 3 }), await call('ask_small'), await call('ask_form')];
  await call('flaky');
  await until('they all run', async () => (await api('counts')).input_required >= 2);
  await tell('say=' + encodeURIComponent('scanning /srv/reports/2026/november (1204 of 9310)'));
  for (const width of [360, 1600]) {
    for (const dark of [false, true]) {
      const name = (what) => path.join(folder, what + '-' + width + (dark ? '-dark' : '-light') + '.png');
      const other = await look({ width, height: width === 360 ? 780 : 1000, dark });
      const fits = async (what) => holds(await other.evaluate(() => document.documentElement.scrollWidth <= innerWidth), what + ' fits into ' + width);
      await other.goto(page_url);
      await other.getByLabel('Admin token').waitFor();
      await other.screenshot({ path: name('1-token') });
      await enter(other);
      await state(other, kept[0], 'Working');
      await fits('the list');
      await other.screenshot({ path: name('2-list') });
      await other.evaluate((id) => { location.hash = '#/' + id; }, kept[2]);
      await other.locator('form.question').waitFor();
      await fits('a question');
      await other.screenshot({ path: name('3-question') });
      if (width === 360) await other.screenshot({ path: name('3-question-whole'), fullPage: true });
      await other.evaluate((id) => { location.hash = '#/' + id; }, kept[0]);
      await opened(other, 'Working');
      await fits('a task');
      await other.screenshot({ path: name('4-task') });
      await other.getByRole('button', { name: 'Cancel the task' }).click();
      await other.getByRole('dialog').waitFor();
      await fits('a confirmation');
      await other.screenshot({ path: name('5-confirm') });
      await other.context().close();
    }
  }
  await tell('finish');
  equal(quiet(), [], 'the noise');
});

await check('work that no worker takes up is said to wait, why, and for how long, until it does no more', async () => {
  const { taskId: failed } = (await api('tasks?status=failed&tool=flaky')).tasks[0];
  const { taskId: id } = await api('tasks/' + failed + '/retry', { method: 'POST', body: JSON.stringify({ toolVersion: '9' }) });
  await row(page, id).click();
  await waits(page, 'version', "It needs a worker that serves 'flaky' in the version '9', and ");
  await page.locator('#queue', { hasText: /^1 task waits for a worker, for \d+s$/ }).waitFor();
  await page.getByRole('button', { name: 'Cancel the task' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel the task' }).click();
  await opened(page, 'Cancelled');
  await page.locator('#queue').waitFor({ state: 'hidden' });
  equal(quiet(), [], 'the noise');
});

await check('the page says that the gateway is away, and goes on by itself when it is back', async () => {
  const addresses = [new URL(mcp).host, new URL(page_url).host];
  await stop(gateway.child);
  await page.locator('#connection.lost').waitFor();
  gateway = await serve(...addresses, ['--admin-token-file', (fs.writeFileSync(path.join(scratch, 'token'), token + '\n'), path.join(scratch, 'token'))]);
  equal(gateway.found[2], page_url, 'the link, which repeats no token that was set');
  await page.locator('#connection.live').waitFor();
  const id = await call('slow');
  await state(page, id, 'Working');
  const lost = (line) => /ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET/.test(line);
  equal(quiet().filter((line) => !lost(line)), [], 'the noise');
  await tell('finish');
});

await browser.close();
await Promise.all(children.map((child) => stop(child)));
fs.rmSync(scratch, { recursive: true, force: true });
console.log('page: ' + passed + ' ok, ' + failures + ' failed; screenshots are in ' + folder);
process.exit(failures ? 1 : 0);
