// held call= topic= group=    prepares one call, prints {"ready": true}, and makes it when a line of standard input comes: the
//                             test kills the program in the middle of it
'use strict';

const readline = require('node:readline');
const { SimpleConsumer, PushConsumer, ConsumeResult } = require('rocketmq-client-nodejs');

module.exports = ({ options, number, print, producer, message, consuming }) => {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

  async function begin(prepared = {}) {
    print({ ready: true, ...prepared });
    await lines.next();
    print({ calling: options.call });
  }

  async function producing(more) {
    const client = producer(more);
    await client.startup();
    return client;
  }

  async function receiving() {
    const client = new SimpleConsumer(consuming({ awaitDuration: 5000 }));
    await client.startup();
    return client;
  }

  async function received(client, count) {
    const found = [];
    while (found.length < count) found.push(...await client.receive(16, 10000));
    return found;
  }

  const calls = {
    async start() {
      await begin();
      await receiving();
    },
    async send() {
      const client = await producing();
      await begin();
      await client.send(message(0));
    },
    async half() {
      const client = await producing({ checker: {} });
      await begin();
      await client.send(message(0), client.beginTransaction());
    },
    async commit() {
      const client = await producing({ checker: {} });
      const transaction = client.beginTransaction();
      await client.send(message(0), transaction);
      await begin();
      await transaction.commit();
    },
    async recall() {
      const client = await producing();
      const receipt = await client.send(message(0));
      await begin();
      await client.recallMessage(options.topic, receipt.recallHandle);
    },
    async receive() {
      const client = await receiving();
      await begin();
      await client.receive(16, 10000);
    },
    async ack() {
      const client = await receiving();
      const views = await received(client, number('n', 1));
      await begin({ keys: views.map(view => view.keys[0]) });
      await client.ack(views[0]);
    },
    async change() {
      const client = await receiving();
      const views = await received(client, number('n', 1));
      await begin({ keys: views.map(view => view.keys[0]) });
      await client.changeInvisibleDuration(views[0], 15000);
    },
    async forward() {
      const messageListener = {
        async consume(view) {
          await begin({ keys: [view.keys[0]] });
          return ConsumeResult.FAILURE;
        },
      };
      const client = new PushConsumer(consuming({ longPollingTimeout: 5000, messageListener }));
      await client.startup();
      await new Promise(() => {});
    },
    async terminate() {
      const client = await receiving();
      await begin();
      await client.shutdown();
    },
  };

  return async () => {
    await calls[options.call]();
    print({ done: options.call });
  };
};
