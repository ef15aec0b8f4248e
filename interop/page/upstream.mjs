// A server to stand behind the gateway while its page is looked at: tools that wait to be told how to go on, ask in every way
// there is, fail, and say what a hostile one would.
//
//   node upstream.mjs          over Streamable HTTP in protocol 2025-11-25; writes where it listens
//
// `GET /tell?say=TEXT` is what waiting calls then say of themselves, `GET /tell?finish` ends them, `GET /told` is what the
// server was told.
import http from 'node:http';

/** What must stay text wherever it is shown. */
export const hostile = '<img src=x onerror="globalThis.hit=1"></textarea></script><script>globalThis.hit=2</script><b>bold</b>';

const tools = {
  slow: { description: 'Waits until it is told to end.' },
  ask_form: { description: 'Asks for every kind of field.' },
  ask_small: { description: 'Asks for a name.' },
  ask_page: { description: 'Asks to open a page.' },
  ask_model: { description: 'Asks a model.' },
  ask_folders: { description: 'Asks for folders.' },
  flaky: { description: 'Fails at the first call.', annotations: { readOnlyHint: true, idempotentHint: true } },
  hostile: { description: hostile },
};

const form = {
  type: 'object',
  required: ['name', 'count', 'sure', 'size', 'days'],
  properties: {
    name: { type: 'string', title: 'Your name', description: 'As it is to stand in the report.', minLength: 2, maxLength: 40 },
    mail: { type: 'string', title: 'E-mail', format: 'email' },
    count: { type: 'integer', title: 'Copies', minimum: 1, maximum: 9, default: 2 },
    ratio: { type: 'number', title: 'Share', minimum: 0, maximum: 1 },
    sure: { type: 'boolean', title: 'Are you sure?' },
    size: { type: 'string', title: 'Size', enum: ['s', 'm', 'l'], enumNames: ['Small', 'Medium', 'Large'], default: 'm' },
    colour: { type: 'string', title: 'Colour', oneOf: ['red', 'green', 'blue', 'white', 'black', 'grey'].map((name) => ({ const: name, title: name.toUpperCase() })) },
    days: { type: 'array', title: 'Days', minItems: 1, maxItems: 2, items: { anyOf: [{ const: 'mon', title: 'Monday' }, { const: 'tue', title: 'Tuesday' }, { const: 'wed', title: 'Wednesday' }] }, default: ['mon'] },
    from: { type: 'string', title: 'From', format: 'date' },
    notes: { type: 'string', title: 'Notes', maxLength: 2000 },
  },
};

const told = { calls: [], cancelled: [], answers: [] };
const waiting = new Map();
const asked = new Map();
let numbered = 0;
let failed = 0;

const text = (words) => ({ content: [{ type: 'text', text: words }] });

/** One call: `say` sends progress, `ask` a request to whoever called, and what it returns is the result. */
async function call({ name, arguments: given }, { say, ask }) {
  told.calls.push(name);
  const asks = async (method, params) => {
    const answer = await ask(method, params);
    told.answers.push(answer);
    return text('the answer was ' + JSON.stringify(answer));
  };
  switch (name) {
    case 'slow': case 'hostile': {
      say(name === 'hostile' ? hostile : 'waiting to be told');
      await new Promise((end) => waiting.set(Symbol(), { say, end }));
      return text(name === 'hostile' ? hostile : 'slow and done ' + JSON.stringify(given ?? {}));
    }
    case 'ask_form': return asks('elicitation/create', { mode: 'form', message: 'What is the report to look like?\nIt is printed tonight. ' + hostile, requestedSchema: form });
    case 'ask_small': return asks('elicitation/create', { message: 'Who are you?', requestedSchema: { type: 'object', properties: { name: { type: 'string', title: 'Name' } }, required: ['name'] } });
    case 'ask_page': return asks('elicitation/create', { mode: 'url', message: 'Give your consent on this page.', elicitationId: 'e1', url: 'https://bank.example@evil.example/consent?next=/a&b=<c>' });
    case 'ask_model': return asks('sampling/createMessage', { messages: [{ role: 'user', content: { type: 'text', text: 'What is the capital of France? ' + hostile } }], systemPrompt: 'Be short.', maxTokens: 100 });
    case 'ask_folders': return asks('roots/list', {});
    case 'flaky':
      failed += 1;
      if (failed % 2 === 1) throw Object.assign(new Error('no van today ' + hostile), { code: -32050 });
      return text('worked this time');
    default: throw Object.assign(new Error('no such tool'), { code: -32602 });
  }
}

async function answer(message, response) {
  const { id, method, params } = message;
  const json = (body) => response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ jsonrpc: '2.0', id, ...body }));
  switch (method) {
    case 'initialize': return json({ result: { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'upstream', version: '1' } } });
    case 'ping': return json({ result: {} });
    case 'tools/list': return json({ result: { tools: Object.entries(tools).map(([name, tool]) => ({ name, inputSchema: { type: 'object' }, ...tool })) } });
    case 'tools/call': break;
    default: return json({ error: { code: -32601, message: 'no such method' } });
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const send = (body) => response.write('data: ' + JSON.stringify({ jsonrpc: '2.0', ...body }) + '\n\n');
  const token = params._meta?.progressToken;
  let progress = 0;
  const say = (words) => token !== undefined && send({ method: 'notifications/progress', params: { progressToken: token, progress: (progress += 1), message: words } });
  const ask = (what, with_) => new Promise((tell) => {
    const id = 'ask-' + (numbered += 1);
    asked.set(id, tell);
    send({ id, method: what, params: with_ });
  });
  try {
    send({ id, result: await call(params, { say, ask }) });
  } catch (error) {
    send({ id, error: { code: error.code ?? -32603, message: error.message } });
  }
  response.end();
}

const server = http.createServer(async (request, response) => {
  const url = new URL(request.url, 'http://localhost');
  if (url.pathname === '/told') return response.end(JSON.stringify(told));
  if (url.pathname === '/tell') {
    for (const [key, { say, end }] of waiting) {
      if (url.searchParams.has('say')) say(url.searchParams.get('say'));
      if (url.searchParams.has('finish')) { waiting.delete(key); end(); }
    }
    return response.end('told');
  }
  if (request.method !== 'POST') return response.writeHead(405).end();
  let body = '';
  for await (const chunk of request) body += chunk;
  const message = JSON.parse(body);
  if (message.method && message.id !== undefined) return answer(message, response);
  if (message.method === 'notifications/cancelled') told.cancelled.push(message.params);
  else if (!message.method) asked.get(message.id)?.(message.result ?? message.error);
  response.writeHead(202).end();
});

if (process.argv[1]?.endsWith('upstream.mjs')) {
  server.listen(0, '127.0.0.1', () => console.log('listening on http://127.0.0.1:' + server.address().port + '/mcp'));
}
