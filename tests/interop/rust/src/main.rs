//! interop-rust ENDPOINT COMMAND key=value...   Apache's Rust client for RocketMQ 5; prints one JSON object a line.
//!
//! send      topic= n= [run= size= groups= deliver_at=]    tls=true turns TLS on, for each command
//! transact  topic= n= [run=]    halves: of each four one is committed, one rolled back, and two are left to the checks, which
//!                               commit one of them; until standard input ends
//! simple    group= topic= [expression= sql=true invisible_s= await_s=]    prints {"ready": true}, then a line for each message that it
//!                               received and acknowledged, until standard input ends

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::json;
use tokio::io::AsyncReadExt;

type Options = HashMap<String, String>;

fn number(options: &Options, name: &str, otherwise: i64) -> i64 {
    options.get(name).map_or(otherwise, |value| value.parse().unwrap())
}

fn client(endpoint: &str, options: &Options) -> ClientOption {
    let mut client = ClientOption::default();
    client.set_access_url(endpoint);
    client.set_enable_tls(options.get("tls").is_some_and(|value| value == "true"));
    client
}

fn settings(endpoint: &str, options: &Options) -> (ProducerOption, ClientOption) {
    let mut producer = ProducerOption::default();
    producer.set_topics(vec![options["topic"].clone()]);
    (producer, client(endpoint, options))
}

fn key(options: &Options, i: i64) -> String {
    format!("{}key{i}", options.get("run").map_or("r", |run| run))
}

fn builder(options: &Options, i: i64) -> MessageBuilder {
    let mut body = format!("{}-{i}-", options.get("run").map_or("r", |run| run));
    while (body.len() as i64) < number(options, "size", 100) {
        body.push((b'a' + ((i as usize + body.len()) % 26) as u8) as char);
    }
    let mut made = MessageBuilder::builder()
        .set_topic(options["topic"].clone())
        .set_body(body.into_bytes())
        .set_tag(format!("Tag{}", (b'A' + (i % 5) as u8) as char))
        .set_keys(vec![key(options, i)])
        .set_properties(HashMap::from([("number".to_string(), i.to_string())]));
    if options.contains_key("groups") {
        made = made.set_message_group(format!("group{}", i % number(options, "groups", 1)));
    }
    if options.contains_key("deliver_at") {
        made = made.set_delivery_timestamp(number(options, "deliver_at", 0) / 1000); // the client counts seconds
    }
    made
}

async fn send(endpoint: &str, options: Options) {
    let (producer, client) = settings(endpoint, &options);
    let mut producer = Producer::new(producer, client).unwrap();
    producer.start().await.unwrap();
    for i in 0..number(&options, "n", 1) {
        let line = match producer.send(builder(&options, i).build().unwrap()).await {
            Ok(receipt) => json!({"key": key(&options, i), "id": receipt.message_id()}),
            Err(cause) => json!({"key": key(&options, i), "error": format!("{cause:?}")}),
        };
        println!("{line}");
    }
    producer.shutdown().await.unwrap();
}

async fn transact(endpoint: &str, options: Options) {
    let (producer, client) = settings(endpoint, &options);
    let mut producer = Producer::new_transaction_producer(
        producer,
        client,
        Box::new(|_, message| {
            let number: i64 = message.properties()["number"].parse().unwrap();
            let body = String::from_utf8_lossy(message.body()).to_string();
            println!("{}", json!({"asked": message.keys()[0], "topic": message.topic(), "body": body}));
            if number % 4 == 2 { TransactionResolution::COMMIT } else { TransactionResolution::ROLLBACK }
        }),
    )
    .unwrap();
    producer.start().await.unwrap();
    for i in 0..number(&options, "n", 4) {
        let message = builder(&options, i).enable_transaction().build().unwrap();
        let transaction = producer.send_transaction_message(message).await.unwrap();
        let id = transaction.message_id().to_string();
        match i % 4 {
            0 => transaction.commit().await.unwrap(),
            1 => transaction.rollback().await.unwrap(),
            _ => {}
        }
        println!("{}", json!({"key": key(&options, i), "id": id}));
    }
    println!("{}", json!({"sent": number(&options, "n", 4)}));
    let mut rest = Vec::new();
    tokio::io::stdin().read_to_end(&mut rest).await.unwrap();
    producer.shutdown().await.unwrap();
}

async fn simple(endpoint: &str, options: Options) {
    let mut consumer = SimpleConsumerOption::default();
    consumer.set_consumer_group(options["group"].clone());
    consumer.set_topics(vec![options["topic"].clone()]);
    let mut client = client(endpoint, &options);
    client.set_long_polling_timeout(Duration::from_secs(number(&options, "await_s", 5) as u64));
    let mut consumer = SimpleConsumer::new(consumer, client).unwrap();
    consumer.start().await.unwrap();
    println!("{}", json!({"ready": true}));
    let kind = if options.contains_key("sql") { FilterType::Sql } else { FilterType::Tag };
    let filter = FilterExpression::new(kind, options.get("expression").map_or("*", |text| text));
    let invisible = Duration::from_secs(number(&options, "invisible_s", 15) as u64);
    let consuming = async {
        loop {
            for view in consumer.receive_with(&options["topic"], &filter, 16, invisible).await.unwrap() {
                consumer.ack(&view).await.unwrap();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                let line = json!({
                    "key": view.keys().first(), "id": view.message_id(), "size": view.body().len(), "tag": view.tag(),
                    "group": view.message_group(), "attempt": view.delivery_attempt(),
                    "properties": view.properties(), "at_ms": now.as_millis() as u64,
                });
                println!("{line}");
            }
        }
    };
    let mut rest = Vec::new();
    let mut input = tokio::io::stdin();
    tokio::select! {
        () = consuming => {}
        _ = input.read_to_end(&mut rest) => {}
    }
    consumer.shutdown().await.unwrap();
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let options = words[2..].iter().map(|word| word.split_once('=').unwrap());
    let options: Options = options.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    match words[1].as_str() {
        "send" => send(&words[0], options).await,
        "transact" => transact(&words[0], options).await,
        "simple" => simple(&words[0], options).await,
        other => panic!("no command {other}"),
    }
}
