// grpc ENDPOINT COMMAND key=value...   Apache's Go client for RocketMQ 5; prints one JSON object a line.
//
//	send      topic= n= [run= size= threads= groups= deliver_at=]
//	transact  topic= n= [run=]    halves: of each four one is committed, one rolled back, and two are left to the checks, which
//	                              commit one of them; until standard input ends
//	push, simple                  consume, see consuming.go
//
// The environment variable rocketmq.client.enableSsl=false turns TLS off.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	endpoint string
	options  = map[string]string{}
	printing sync.Mutex
)

type row map[string]interface{}

func print(line row) {
	text, _ := json.Marshal(line)
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(text))
}

func text(name, otherwise string) string {
	if value, ok := options[name]; ok {
		return value
	}
	return otherwise
}

func number(name string, otherwise int) int {
	value, err := strconv.Atoi(text(name, strconv.Itoa(otherwise)))
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	endpoint = os.Args[1]
	for _, word := range os.Args[3:] {
		pair := strings.SplitN(word, "=", 2)
		options[pair[0]] = pair[1]
	}
	client.ResetLogger()
	switch os.Args[2] {
	case "send":
		send()
	case "transact":
		transact()
	case "push":
		push()
	case "simple":
		simple()
	default:
		check(fmt.Errorf("no command %s", os.Args[2]))
	}
}

func config() *client.Config {
	return &client.Config{Endpoint: endpoint, Credentials: &credentials.SessionCredentials{}}
}

func started(extra ...client.ProducerOption) client.Producer {
	producer, err := client.NewProducer(config(), append(extra, client.WithTopics(text("topic", "")))...)
	check(err)
	check(producer.Start())
	return producer
}

func message(i int) *client.Message {
	run := text("run", "r")
	body := fmt.Sprintf("%s-%d-", run, i)
	for len(body) < number("size", 100) {
		body += string(rune('a' + (i+len(body))%26))
	}
	m := &client.Message{Topic: text("topic", ""), Body: []byte(body)}
	m.SetTag("Tag" + string(rune('A'+i%5)))
	m.SetKeys(fmt.Sprintf("%skey%d", run, i))
	m.AddProperty("number", strconv.Itoa(i))
	if groups := number("groups", 0); groups > 0 {
		m.SetMessageGroup(fmt.Sprintf("group%d", i%groups))
	}
	if at := number("deliver_at", 0); at > 0 {
		m.SetDelayTimestamp(time.UnixMilli(int64(at)))
	}
	return m
}

func send() {
	producer := started()
	n, threads := number("n", 1), number("threads", 1)
	var all sync.WaitGroup
	for t := 0; t < threads; t++ {
		all.Add(1)
		go func(first int) {
			defer all.Done()
			for i := first; i < n; i += threads {
				m := message(i)
				receipts, err := producer.Send(context.Background(), m)
				if err != nil {
					print(row{"error": err.Error(), "key": m.GetKeys()[0]})
					continue
				}
				print(row{"key": m.GetKeys()[0], "id": receipts[0].MessageID, "offset": receipts[0].Offset})
			}
		}(t)
	}
	all.Wait()
	check(producer.GracefulStop())
}

func transact() {
	producer := started(client.WithTransactionChecker(&client.TransactionChecker{Check: func(view *client.MessageView) client.TransactionResolution {
		i, err := strconv.Atoi(view.GetProperties()["number"])
		check(err)
		print(row{"asked": view.GetKeys()[0], "topic": view.GetTopic(), "body": string(view.GetBody())})
		if i%4 == 2 {
			return client.COMMIT
		}
		return client.ROLLBACK
	}}))
	for i := 0; i < number("n", 4); i++ {
		m := message(i)
		transaction := producer.BeginTransaction()
		receipts, err := producer.SendWithTransaction(context.Background(), m, transaction)
		check(err)
		state := "unknown"
		switch i % 4 {
		case 0:
			state = "commit"
			check(transaction.Commit())
		case 1:
			state = "rollback"
			check(transaction.RollBack())
		}
		print(row{"key": m.GetKeys()[0], "id": receipts[0].MessageID, "state": state})
	}
	print(row{"sent": number("n", 4)})
	_, err := io.Copy(io.Discard, os.Stdin)
	check(err)
	check(producer.GracefulStop())
}
