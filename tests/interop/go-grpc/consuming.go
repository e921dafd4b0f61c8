// The commands that consume. Each prints {"ready": true}, then a line for each message, until standard input ends.
//
//	push      group= topic= [expression= sql=true fails=n]     the first `fails` tries of each message fail
//	simple    group= topic= [expression= sql=true invisible_s= keep=true]     keep: acknowledges nothing
package main

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	client "github.com/apache/rocketmq-clients/golang/v5"
)

func subscription() map[string]*client.FilterExpression {
	kind := client.TAG
	if text("sql", "") != "" {
		kind = client.SQL92
	}
	return map[string]*client.FilterExpression{
		text("topic", ""): client.NewFilterExpressionWithType(text("expression", "*"), kind),
	}
}

func show(view *client.MessageView) {
	key := ""
	if keys := view.GetKeys(); len(keys) > 0 {
		key = keys[0]
	}
	print(row{"key": key, "id": view.GetMessageId(), "size": len(view.GetBody()), "tag": view.GetTag(),
		"group": view.GetMessageGroup(), "attempt": view.GetDeliveryAttempt(), "properties": view.GetProperties(),
		"at_ms": time.Now().UnixMilli()})
}

func untilInputEnds() {
	print(row{"ready": true})
	_, err := io.Copy(io.Discard, os.Stdin)
	check(err)
}

func push() {
	fails := int32(number("fails", 0))
	of := config()
	of.ConsumerGroup = text("group", "")
	consumer, err := client.NewPushConsumer(of,
		client.WithPushAwaitDuration(5*time.Second),
		client.WithPushSubscriptionExpressions(subscription()),
		client.WithPushMessageListener(&client.FuncMessageListener{Consume: func(view *client.MessageView) client.ConsumerResult {
			show(view)
			if view.GetDeliveryAttempt() <= fails {
				return client.FAILURE
			}
			return client.SUCCESS
		}}))
	check(err)
	check(consumer.Start())
	untilInputEnds()
	check(consumer.GracefulStop())
}

func simple() {
	of := config()
	of.ConsumerGroup = text("group", "")
	consumer, err := client.NewSimpleConsumer(of,
		client.WithSimpleAwaitDuration(5*time.Second), client.WithSimpleSubscriptionExpressions(subscription()))
	check(err)
	check(consumer.Start())
	go func() {
		for {
			views, err := consumer.Receive(context.Background(), 16, time.Duration(number("invisible_s", 15))*time.Second)
			if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
				print(row{"error": err.Error()})
			}
			for _, view := range views {
				if text("keep", "") == "" {
					check(consumer.Ack(context.Background(), view))
				}
				show(view)
			}
		}
	}()
	untilInputEnds()
	check(consumer.GracefulStop())
}
