// grpc.js ENDPOINTS COMMAND key=value...   Apache's Node client for RocketMQ 5; prints one JSON object a line.
//
//   send      topic= n= [run= size= threads= groups= deliver_at= priority=]    tls=false turns TLS off, for each command
//   transact  topic= n= [run=]    halves: of each four one is committed, one rolled back, and two are left to the checks, which
//                                 commit one of them; until standard input ends
//   recall    topic= handle=      takes a delayed message back
//   push, simple                  consume, see consuming.js
//   held                          one call in whose middle the program is killed, see held.js
'use strict';

const { Producer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [endpoints, command, ...words] = process.argv.slice(2);
const options = Object.fromEntries(words.map(word => word.split(/=(.*)/s, 2)));
const number = (name, otherwise) => Number(options[name] ?? otherwise);
const print = line => console.log(JSON.stringify(line));
const quiet = { debug() {}, info() {}, warn() {}, error(...words) { console.error(...words); }, close() {} };

const common = { endpoints, namespace: '', sslEnabled: options.tls !== 'false', requestTimeout: 30000, logger: quiet };

function producer(more = {}) {
  return new Producer({ ...common, topics: [options.topic], topic: options.topic, ...more });
}

function message(i) {
  const run = options.run ?? 'r';
  let body = `${run}-${i}-`;
  while (body.length < number('size', 100)) body += String.fromCharCode(97 + (i + body.length) % 26);
  const made = {
    topic: options.topic, body: Buffer.from(body), tag: 'Tag' + 'ABCDE'[i % 5], keys: [`${run}key${i}`],
    properties: new Map([['number', String(i)]]),
  };
  if (options.groups) made.messageGroup = `group${i % number('groups', 1)}`;
  if (options.deliver_at) made.deliveryTimestamp = new Date(number('deliver_at', 0));
  if (options.priority) made.priority = number('priority', 0);
  return made;
}

const endOfInput = () => new Promise(resolve => process.stdin.resume().on('end', resolve));

async function send() {
  const client = producer();
  await client.startup();
  const n = number('n', 1), threads = number('threads', 1);
  await Promise.all(Array.from({ length: threads }, async (_, first) => {
    for (let i = first; i < n; i += threads) {
      const one = message(i);
      try {
        const receipt = await client.send(one);
        print({ key: one.keys[0], id: receipt.messageId, handle: receipt.recallHandle, offset: receipt.offset });
      } catch (cause) {
        print({ key: one.keys[0], error: String(cause) });
      }
    }
  }));
  await client.shutdown();
}

async function transact() {
  const client = producer({
    checker: {
      async check(view) {
        print({ asked: view.keys[0], topic: view.topic, body: view.body.toString() });
        return Number(view.properties.get('number')) % 4 === 2 ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
      },
    },
  });
  await client.startup();
  for (let i = 0; i < number('n', 4); i++) {
    const one = message(i);
    const transaction = client.beginTransaction();
    const receipt = await client.send(one, transaction);
    if (i % 4 === 0) await transaction.commit();
    if (i % 4 === 1) await transaction.rollback();
    print({ key: one.keys[0], id: receipt.messageId, state: ['commit', 'rollback', 'unknown', 'unknown'][i % 4] });
  }
  print({ sent: number('n', 4) });
  await endOfInput();
  await client.shutdown();
}

async function recall() {
  const client = producer();
  await client.startup();
  print({ recalled: (await client.recallMessage(options.topic, options.handle)).messageId });
  await client.shutdown();
}

const { push, simple, consuming } = require('./consuming.js')({ options, number, print, common, endOfInput });
const commands = { send, transact, recall, push, simple };
if (command === 'held') commands.held = require('./held.js')({ options, number, print, producer, message, consuming });
commands[command]().then(() => process.exit(0), cause => {
  console.error(cause);
  process.exit(1);
});
