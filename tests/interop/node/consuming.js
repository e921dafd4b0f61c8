// The commands that consume. Each prints {"ready": true}, then a line for each message, until standard input ends.
//
//   push      group= topic= [expression= sql=true fails=n]     the first `fails` tries of each message fail
//   simple    group= topic= [expression= sql=true invisible_s=]
'use strict';

const { SimpleConsumer, PushConsumer, FilterExpression, ConsumeResult } = require('rocketmq-client-nodejs');

module.exports = ({ options, number, print, common, endOfInput }) => {
  function consuming(more) {
    const expression = new FilterExpression(options.expression ?? '*', options.sql ? 2 : 1);
    return { ...common, consumerGroup: options.group, subscriptions: new Map([[options.topic, expression]]), ...more };
  }

  function show(view) {
    print({
      key: view.keys[0], id: view.messageId, size: view.body.length, tag: view.tag, group: view.messageGroup || null,
      attempt: view.deliveryAttempt, properties: Object.fromEntries(view.properties), at_ms: Date.now(),
    });
  }

  async function push() {
    const messageListener = {
      async consume(view) {
        show(view);
        return view.deliveryAttempt <= number('fails', 0) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    const consumer = new PushConsumer(consuming({ longPollingTimeout: 5000, messageListener }));
    await consumer.startup();
    print({ ready: true });
    await endOfInput();
    await consumer.shutdown();
  }

  async function simple() {
    const consumer = new SimpleConsumer(consuming({ awaitDuration: 5000 }));
    await consumer.startup();
    print({ ready: true });
    endOfInput().then(() => process.exit(0));
    for (;;) {
      for (const view of await consumer.receive(16, number('invisible_s', 15) * 1000)) {
        await consumer.ack(view);
        show(view);
      }
    }
  }

  return { push, simple, consuming };
};
