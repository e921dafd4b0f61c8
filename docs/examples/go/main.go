// Sends three messages to the topic Tour and receives them, with Apache's own client: go run . [name server address]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const topic, group = "Tour", "tour-go"

func main() {
	nameserver := []string{"127.0.0.1:9876"}
	if len(os.Args) > 1 {
		nameserver = os.Args[1:]
	}
	rlog.SetLogLevel("error")
	var own sync.Map

	p, err := rocketmq.NewProducer(producer.WithNameServer(nameserver), producer.WithGroupName("tour-go-sender"))
	check(err)
	check(p.Start())
	for number := 0; number < 3; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("hello %d from Go", number)))
		message.WithTag("go").WithKeys([]string{fmt.Sprintf("go-%d", number)})
		result, err := p.SendSync(context.Background(), message)
		check(err)
		fmt.Printf("sent      to queue %d at %d\n", result.MessageQueue.QueueId, result.QueueOffset)
		own.Store(result.MsgID, true)
	}
	check(p.Shutdown())

	allHere := make(chan bool, 1)
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(nameserver), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	check(c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			fmt.Printf("received  '%s' from queue %d at %d\n", message.Body, message.Queue.QueueId, message.QueueOffset)
			own.Delete(message.MsgId)
		}
		left := 0
		own.Range(func(_, _ any) bool { left++; return true })
		if left == 0 {
			select {
			case allHere <- true:
			default:
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	select {
	case <-allHere:
	case <-time.After(60 * time.Second):
		log.Fatal("not everything came back within a minute")
	}
	check(c.Shutdown())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
