// interop NAMESRV COMMAND key=value...   the Go v2 client; prints one JSON object a line: what was acknowledged or received.
//
//	send     topics= n= [run= size= threads= mode=sync|async|batch|oneway|ordered per= delay=LEVEL timer=sec|ms|at:NUMBER step= trace=TOPIC]
//	consume  group= topics= [tags= n= timeout= model=clustering|broadcasting orderly= fail_every= fail_times= level= max_reconsume= from=first|last|timestamp time=]
//	poll     topic= group= n= [timeout=]    the pull consumer, which commits after each batch
//	ask      topic= n= [timeout=]    requests, each waits for its reply
//	answer   topic= group= [bare=]   replies "re: " and the body to requests until standard input ends; bare=true: what the client's helper makes, which has no body
//	transact topics= group= n=    halves whose fate follows from their number (see transactions), until standard input ends
//	admin    one command a line of standard input, words between tabs: create_topic NAME BROKER_ADDRESS, delete_topic NAME BROKER_ADDRESS, topics, groups BROKER_ADDRESS
//
// access_key= and secret_key= sign the requests of each command. `send trace=` ends when standard input ends, `consume` when it ends, after n messages or after timeout milliseconds.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var (
	nameserver string
	options    = map[string]string{}
	printing   sync.Mutex
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

func credentials() primitive.Credentials { // without a key and a secret the client signs nothing
	return primitive.Credentials{AccessKey: text("access_key", ""), SecretKey: text("secret_key", "")}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	rlog.SetLogLevel("error")
	check(rlog.SetOutputPath(os.DevNull))
	nameserver = os.Args[1]
	for _, word := range os.Args[3:] {
		pair := strings.SplitN(word, "=", 2)
		options[pair[0]] = pair[1]
	}
	switch os.Args[2] {
	case "send":
		send()
	case "consume":
		consume()
	case "poll":
		poll()
	case "ask":
		ask()
	case "answer":
		answer()
	case "transact":
		transact()
	case "admin":
		administer()
	default:
		check(fmt.Errorf("no command %s", os.Args[2]))
	}
}

func message(topics []string, i int) *primitive.Message {
	run := text("run", "r")
	body := fmt.Sprintf("%s-%d-", run, i)
	for len(body) < number("size", 100) {
		body += string(rune('a' + (i+len(body))%26))
	}
	m := primitive.NewMessage(topics[i%len(topics)], []byte(body))
	m.WithTag("Tag" + string(rune('A'+i%5)))
	m.WithKeys([]string{fmt.Sprintf("%skey%d", run, i)})
	m.WithProperty("number", strconv.Itoa(i))
	m.WithShardingKey(strconv.Itoa(i % number("shards", 16)))
	if level := number("delay", 0); level > 0 {
		m.WithDelayTimeLevel(level)
	}
	if kind, value, asks := strings.Cut(text("timer", ""), ":"); asks { // the client knows no timers, only properties
		at, err := strconv.Atoi(value)
		check(err)
		names := map[string]string{"sec": "TIMER_DELAY_SEC", "ms": "TIMER_DELAY_MS", "at": "TIMER_DELIVER_MS"}
		m.WithProperty(names[kind], strconv.Itoa(at+i*number("step", 0)))
	}
	return m
}

func acknowledged(result *primitive.SendResult, sent []*primitive.Message) {
	offsetIds, ids := strings.Split(result.OffsetMsgID, ","), strings.Split(result.MsgID, ",")
	status := "SEND_OK"
	if result.Status != primitive.SendOK {
		status = fmt.Sprint(result.Status)
	}
	for j, m := range sent {
		line := row{"topic": m.Topic, "queue": result.MessageQueue.QueueId, "offset": result.QueueOffset + int64(j), "key": m.GetKeys(), "tag": m.GetTags(), "status": status}
		if j < len(ids) {
			line["id"] = ids[j]
		}
		if j < len(offsetIds) {
			line["offset_id"] = offsetIds[j]
		}
		print(line)
	}
}

func send() {
	topics := strings.Split(text("topics", ""), ",")
	mode, n, per := text("mode", "sync"), number("n", 1), number("per", 32)
	settings := []producer.Option{
		producer.WithNameServer([]string{nameserver}), producer.WithCredentials(credentials()), producer.WithGroupName("go_producer"),
		producer.WithInstanceName(fmt.Sprint("p", time.Now().UnixNano())), producer.WithRetry(2), producer.WithSendMsgTimeout(30 * time.Second),
	}
	if mode == "ordered" {
		settings = append(settings, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	if trace := text("trace", ""); trace != "" {
		config := primitive.TraceConfig{GroupName: "go_traces", NamesrvAddrs: []string{nameserver}, TraceTopic: trace, Access: primitive.Local, Resolver: primitive.NewPassthroughResolver([]string{nameserver})}
		settings = append(settings, producer.WithTrace(&config))
	}
	p, err := rocketmq.NewProducer(settings...)
	check(err)
	check(p.Start())
	print(row{"ready": true})
	step := 1
	if mode == "batch" {
		step = per
	}
	var next int64
	var senders, answers sync.WaitGroup
	for t := 0; t < number("threads", 1); t++ {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for {
				i := int(atomic.AddInt64(&next, int64(step))) - step
				if i >= n {
					return
				}
				batch := []*primitive.Message{message(topics, i)}
				for j := 1; j < step && i+j < n; j++ {
					one := message(topics, i+j)
					one.Topic = batch[0].Topic
					batch = append(batch, one)
				}
				failed := func(err error) { print(row{"error": err.Error(), "topic": batch[0].Topic, "key": batch[0].GetKeys()}) }
				switch mode {
				case "oneway":
					if err := p.SendOneWay(context.Background(), batch...); err != nil {
						failed(err)
					}
				case "async":
					answers.Add(1)
					err := p.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
						defer answers.Done()
						if err != nil {
							failed(err)
						} else {
							acknowledged(result, batch)
						}
					}, batch...)
					if err != nil {
						failed(err)
						answers.Done()
					}
				default:
					if result, err := p.SendSync(context.Background(), batch...); err != nil {
						failed(err)
					} else {
						acknowledged(result, batch)
					}
				}
			}
		}()
	}
	senders.Wait()
	answers.Wait()
	if mode == "oneway" {
		time.Sleep(500 * time.Millisecond) // nothing says when a oneway message has left
	}
	if text("trace", "") != "" {
		_, _ = io.Copy(io.Discard, os.Stdin) // traces leave later
	}
	check(p.Shutdown())
}

func consume() {
	model := consumer.Clustering
	if text("model", "clustering") == "broadcasting" {
		model = consumer.BroadCasting
	}
	orderly := text("orderly", "false") == "true"
	from, isFrom := map[string]consumer.ConsumeFromWhere{
		"first": consumer.ConsumeFromFirstOffset, "last": consumer.ConsumeFromLastOffset, "timestamp": consumer.ConsumeFromTimestamp}[text("from", "first")]
	if !isFrom {
		check(fmt.Errorf("from=first, last or timestamp"))
	}
	settings := []consumer.Option{
		consumer.WithNameServer([]string{nameserver}), consumer.WithCredentials(credentials()), consumer.WithGroupName(text("group", "go_group")),
		consumer.WithInstance(text("instance", fmt.Sprint("c", time.Now().UnixNano()))), consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(from), consumer.WithConsumerOrder(orderly),
		consumer.WithMaxReconsumeTimes(int32(number("max_reconsume", -1))), consumer.WithSuspendCurrentQueueTimeMillis(100 * time.Millisecond)}
	if at := text("time", ""); at != "" {
		settings = append(settings, consumer.WithConsumeTimestamp(at))
	}
	c, err := rocketmq.NewPushConsumer(settings...)
	check(err)
	done := make(chan struct{})
	var once sync.Once
	end := func() { once.Do(func() { close(done) }) }
	var left, seen int64 = int64(number("n", 1<<40)), 0
	failEvery, failTimes := int64(number("fail_every", 0)), int32(number("fail_times", 1))
	for _, topic := range strings.Split(text("topics", ""), ",") {
		selector := consumer.MessageSelector{Type: consumer.TAG, Expression: text("tags", "*")}
		if expression := text("sql", ""); expression != "" {
			selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
		}
		check(c.Subscribe(topic, selector, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range messages {
				line := received(m)
				if failEvery > 0 && m.ReconsumeTimes < failTimes && atomic.AddInt64(&seen, 1)%failEvery == 0 {
					line["failed"] = true
					print(line)
					if orderly {
						return consumer.SuspendCurrentQueueAMoment, nil
					}
					if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
						concurrent.DelayLevelWhenNextConsume = number("level", 1)
					}
					return consumer.ConsumeRetryLater, nil
				}
				print(line)
				if atomic.AddInt64(&left, -1) == 0 {
					end()
				}
			}
			return consumer.ConsumeSuccess, nil
		}))
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	check(c.Start())
	print(row{"ready": true})
	select {
	case <-done:
	case <-time.After(time.Duration(number("timeout", 120_000)) * time.Millisecond):
	}
	check(c.Shutdown())
}

func received(m *primitive.MessageExt) row {
	return row{"topic": m.Topic, "queue": m.Queue.QueueId, "offset": m.QueueOffset, "id": m.MsgId, "offset_id": m.OffsetMsgId, "key": m.GetKeys(), "tag": m.GetTags(),
		"body": string(m.Body), "number": m.GetProperty("number"), "reconsume": m.ReconsumeTimes, "log_offset": m.CommitLogOffset, "born_time": m.BornTimestamp, "store_time": m.StoreTimestamp}
}

func poll() {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer([]string{nameserver}), consumer.WithCredentials(credentials()), consumer.WithGroupName(text("group", "go_pollers")),
		consumer.WithInstance(fmt.Sprint("l", time.Now().UnixNano())), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	check(c.Subscribe(text("topic", ""), consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	check(c.Start())
	print(row{"ready": true})
	deadline := time.Now().Add(time.Duration(number("timeout", 60_000)) * time.Millisecond)
	for left := number("n", 1); left > 0 && time.Now().Before(deadline); {
		request, err := c.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		check(err)
		for _, m := range request.GetMsgList() {
			print(received(m))
			if strings.HasPrefix(m.GetKeys(), text("only", "")) {
				left--
			}
		}
		c.ACK(context.Background(), request, consumer.ConsumeSuccess)
		check(c.PersistOffset(context.Background(), text("topic", "")))
	}
	check(c.Shutdown())
}

func plainProducer() rocketmq.Producer {
	p, err := rocketmq.NewProducer(producer.WithNameServer([]string{nameserver}), producer.WithCredentials(credentials()), producer.WithGroupName(fmt.Sprint("go_replies", time.Now().UnixNano())),
		producer.WithInstanceName(fmt.Sprint("r", time.Now().UnixNano())), producer.WithRetry(2), producer.WithSendMsgTimeout(30*time.Second))
	check(err)
	check(p.Start())
	return p
}

func ask() {
	p := plainProducer()
	print(row{"ready": true})
	for i := 0; i < number("n", 1); i++ {
		m := primitive.NewMessage(text("topic", ""), []byte(fmt.Sprintf("go-%d", i)))
		reply, err := p.Request(context.Background(), time.Duration(number("timeout", 60_000))*time.Millisecond, m)
		check(err)
		print(row{"reply": string(reply.Body)})
	}
	check(p.Shutdown())
}

func answer() {
	p := plainProducer()
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer([]string{nameserver}), consumer.WithCredentials(credentials()), consumer.WithGroupName(text("group", "go_answers")),
		consumer.WithInstance(fmt.Sprint("a", time.Now().UnixNano())), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	check(c.Subscribe(text("topic", ""), selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			reply, err := consumer.CreateReplyMessage(m, append([]byte("re: "), m.Body...))
			check(err)
			if text("bare", "false") == "false" { // the client's helper forgets the body
				reply.Body = append([]byte("re: "), m.Body...)
			}
			result, err := p.SendSync(context.Background(), reply)
			for tries := 0; err != nil && tries < 50; tries++ { // a Go client asks before it has told the broker who it is
				time.Sleep(100 * time.Millisecond)
				result, err = p.SendSync(context.Background(), reply)
			}
			if err != nil {
				print(row{"error": err.Error()})
			} else {
				print(row{"status": map[bool]string{true: "SEND_OK", false: fmt.Sprint(result.Status)}[result.Status == primitive.SendOK]})
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	print(row{"ready": true})
	_, _ = io.Copy(io.Discard, os.Stdin)
	check(c.Shutdown())
	check(p.Shutdown())
}

// transactions: 0 commit, 1 roll back, 2 not known and committed when asked, 3 not known and rolled back when asked.
type transactions struct{}

func fate(number string) int {
	n, err := strconv.Atoi(number)
	check(err)
	return n % 4
}

func (transactions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return []primitive.LocalTransactionState{primitive.CommitMessageState, primitive.RollbackMessageState, primitive.UnknowState, primitive.UnknowState}[fate(m.GetProperty("number"))]
}

func (transactions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	print(row{"asked": m.GetKeys(), "fate": fate(m.GetProperty("number")), "topic": m.Topic, "queue": m.Queue.QueueId, "transaction": m.TransactionId})
	if fate(m.GetProperty("number")) == 2 {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transact() {
	p, err := rocketmq.NewTransactionProducer(transactions{},
		producer.WithNameServer([]string{nameserver}), producer.WithCredentials(credentials()), producer.WithGroupName(text("group", "go_transactions")),
		producer.WithInstanceName(fmt.Sprint("t", time.Now().UnixNano())), producer.WithRetry(2), producer.WithSendMsgTimeout(30*time.Second))
	check(err)
	check(p.Start())
	print(row{"ready": true})
	n := number("n", 4)
	for i := 0; i < n; i++ {
		m := message(strings.Split(text("topics", ""), ","), i)
		result, err := p.SendMessageInTransaction(context.Background(), m)
		check(err)
		status := "SEND_OK"
		if result.Status != primitive.SendOK {
			status = fmt.Sprint(result.Status)
		}
		print(row{"key": m.GetKeys(), "fate": i % 4, "status": status, "state": int(result.State), "transaction": result.TransactionID})
	}
	print(row{"sent": n})
	_, _ = io.Copy(io.Discard, os.Stdin) // questions come meanwhile
	check(p.Shutdown())
}

func administer() {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{nameserver})), admin.WithCredentials(credentials()))
	check(err)
	ctx := context.Background()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), "\t")
		answer := row{"command": words[0], "rows": []string{}}
		switch words[0] {
		case "create_topic":
			err = a.CreateTopic(ctx, admin.WithTopicCreate(words[1]), admin.WithBrokerAddrCreate(words[2]))
		case "delete_topic":
			err = a.DeleteTopic(ctx, admin.WithTopicDelete(words[1]), admin.WithBrokerAddrDelete(words[2]), admin.WithNameSrvAddr([]string{nameserver}))
		case "topics":
			var list *admin.TopicList
			if list, err = a.FetchAllTopicList(ctx); err == nil {
				answer["rows"] = list.TopicList
			}
		case "groups":
			var table *admin.SubscriptionGroupWrapper
			if table, err = a.GetAllSubscriptionGroup(ctx, words[1], 3*time.Second); err == nil {
				names := []string{}
				for name := range table.SubscriptionGroupTable {
					names = append(names, name)
				}
				answer["rows"] = names
			}
		default:
			err = fmt.Errorf("no command %s", words[0])
		}
		if err != nil {
			answer["error"] = err.Error()
		}
		print(answer)
	}
	check(a.Close())
}
