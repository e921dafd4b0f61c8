"""The settings of the broker and its server."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.acting import ActingSettings
from broker_store.config.checks import address_list, json_with, request_list, topic_name
from broker_store.config.metrics import MetricsSettings
from broker_store.config.pop import PopSettings
from broker_store.config.setting import INT_MAX, setting
from broker_store.config.tls import TlsClientSettings
from broker_store.errors import ConfigError
from broker_store.formats.topics import TRACE_TOPIC


@dataclass(frozen=True)
class BrokerSettings(MetricsSettings, TlsClientSettings, ActingSettings, PopSettings):
    """The settings that the broker and its server get."""

    broker_name: str = setting(
        "brokerName",
        "broker-a",
        "",
        "the name clients and name servers know the broker by",
        check=topic_name,
    )
    broker_cluster_name: str = setting(
        "brokerClusterName", "DefaultCluster", "", "the cluster the broker registers in", check=topic_name
    )
    broker_id: int = setting("brokerId", 0, "", "of a slave; a master has 0, whatever is set")
    broker_ip1: str = setting(
        "brokerIP1",
        "127.0.0.1",
        "address",
        "the address that clients get; stored in each record as its store host",
    )
    listen_port: int = setting(
        "listenPort",
        10911,
        "port",
        "where clients connect; 2 below it is the second listener; 0 takes any",
        high=65535,
    )
    grpc_server_port: int = setting(
        "grpcServerPort",
        8081,
        "port",
        "where RocketMQ 5 clients connect, by gRPC; 0 opens no such port; a key of Apache's proxy",
        high=65535,
    )
    broker_permission: int = setting(
        "brokerPermission", 6, "bits", "4 read, 2 write: masks each topic's permissions", high=7, live=True
    )
    auto_create_topic_enable: bool = setting(
        "autoCreateTopicEnable", True, "", "whether a send to an unknown topic creates it", live=True
    )
    auto_create_subscription_group: bool = setting(
        "autoCreateSubscriptionGroup",
        True,
        "",
        "whether an unknown consumer group is created at its first request",
        live=True,
    )
    default_topic_queue_nums: int = setting(
        "defaultTopicQueueNums", 8, "queues", "most queues of a topic that a send creates", low=1, high=1024
    )
    cluster_topic_enable: bool = setting(
        "clusterTopicEnable", True, "", "whether a topic named like the cluster is a template for new topics"
    )
    broker_topic_enable: bool = setting(
        "brokerTopicEnable", True, "", "whether a topic named like the broker is a template for new topics"
    )
    store_reply_message_enable: bool = setting(
        "storeReplyMessageEnable",
        True,
        "",
        "whether replies to requests are also stored, besides being sent to the requester",
        live=True,
    )
    reject_transaction_message: bool = setting(
        "rejectTransactionMessage", False, "", "whether halves of transactions are refused", live=True
    )
    transaction_time_out: int = setting(
        "transactionTimeOut",
        6_000,
        "ms",
        "how old a half must be before its producer is asked for its end",
        low=1,
        high=86_400_000,
    )
    transaction_check_interval: int = setting(
        "transactionCheckInterval",
        30_000,
        "ms",
        "how often halves without an end are searched",
        low=100,
        high=86_400_000,
    )
    transaction_check_max: int = setting(
        "transactionCheckMax",
        15,
        "times",
        "after so many checks a half is moved to TRANS_CHECK_MAX_TIME_TOPIC",
        low=1,
        high=10_000,
    )
    enable_property_filter: bool = setting(
        "enablePropertyFilter",
        True,
        "",
        "whether consumers may subscribe with SQL92 expressions; Apache's default is false",
    )
    filter_support_retry: bool = setting(
        "filterSupportRetry",
        False,
        "",
        "whether a retry topic that is subscribed with SQL92 is filtered by the expression for the topic a "
        "message came from",
        live=True,
    )
    filter_data_clean_time_span: int = setting(
        "filterDataCleanTimeSpan",
        86_400_000,
        "ms",
        "how long the filter of a group is kept after it left the topic",
        low=1,
    )
    timer_max_delay_sec: int = setting(
        "timerMaxDelaySec",
        3 * 86_400,
        "s",
        "how far ahead a delivery time may be",
        low=1,
        high=INT_MAX // 1000,
    )
    timer_roll_window_slot: int = setting(
        "timerRollWindowSlot",
        2 * 86_400,
        "s",
        "a message that waits longer is stored again after this time; bounded to 2 to 604740, half of "
        "the wheel, as in Apache",
        low=2,
        high=7 * 86_400 - 60,
        clamp=True,
    )
    timer_congest_num_each_slot: int = setting(
        "timerCongestNumEachSlot",
        INT_MAX,
        "messages",
        "with more messages due in one second some sends for it are refused, with twice as many all",
        low=1,
    )
    recall_message_enable: bool = setting(
        "recallMessageEnable",
        False,
        "",
        "whether a producer may recall a timer message before its time",
        live=True,
    )
    allow_recall_when_broker_not_writeable: bool = setting(
        "allowRecallWhenBrokerNotWriteable", True, "", "whether it may while brokerPermission forbids sends"
    )
    enable_mixed_message_type: bool = setting(
        "enableMixedMessageType",
        False,
        "",
        "whether a topic may have message.type=MIXED; else such a change is refused",
        live=True,
    )
    trace_topic_enable: bool = setting(
        "traceTopicEnable", False, "", "whether the topic for message traces is created at start"
    )
    msg_trace_topic_name: str = setting(
        "msgTraceTopicName", TRACE_TOPIC, "", "the name of that topic", check=topic_name
    )
    trace_on: bool = setting(
        "traceOn", True, "", "the value of TRACE_ON in each message, which clients follow", live=True
    )
    region_id: str = setting("regionId", "DefaultRegion", "", "the value of MSG_REGION in each message")
    long_polling_enable: bool = setting(
        "longPollingEnable",
        True,
        "",
        "whether a pull that finds nothing waits for a message as long as its client allows",
        live=True,
    )
    short_polling_time_mills: int = setting(
        "shortPollingTimeMills",
        1000,
        "ms",
        "how long it waits when long polling is off",
        low=1,
        high=60_000,
        live=True,
    )
    lite_pull_message_enable: bool = setting(
        "litePullMessageEnable", True, "", "whether lite pull consumers may pull", live=True
    )
    enable_broadcast_offset_store: bool = setting(
        "enableBroadcastOffsetStore",
        True,
        "",
        "whether the broker notes how far clients of broadcasting groups have pulled",
    )
    broadcast_offset_expire_second: int = setting(
        "broadcastOffsetExpireSecond",
        120,
        "s",
        "when such a client that is offline is forgotten",
        low=1,
        high=86_400,
    )
    broadcast_offset_expire_max_second: int = setting(
        "broadcastOffsetExpireMaxSecond",
        300,
        "s",
        "when an online client that does not pull is forgotten",
        low=1,
        high=86_400,
    )
    namesrv_addr: str = setting(
        "namesrvAddr",
        "",
        "host:port;..",
        "name servers to register with besides the one in the process",
        check=address_list,
    )
    register_name_server_period: int = setting(
        "registerNameServerPeriod",
        30_000,
        "ms",
        "how often the broker registers; bounded to 10 to 60 s as in Apache",
        low=10_000,
        high=60_000,
        clamp=True,
        live=True,
    )
    register_broker_timeout_mills: int = setting(
        "registerBrokerTimeoutMills", 24_000, "ms", "how long a registration may take", low=100, high=600_000
    )
    flush_consumer_offset_interval: int = setting(
        "flushConsumerOffsetInterval",
        5000,
        "ms",
        "how often committed offsets are saved: after a crash later messages are delivered again",
        low=100,
        high=600_000,
        live=True,
    )
    channel_expired_timeout: int = setting(
        "channelExpiredTimeout",
        120_000,
        "ms",
        "a client without a heartbeat for so long is forgotten",
        low=1000,
    )
    notify_consumer_ids_changed_enable: bool = setting(
        "notifyConsumerIdsChangedEnable", True, "",
        "whether a group's members are notified at once when one joins or leaves", live=True,
    )  # fmt: skip
    broker_fast_failure_enable: bool = setting(
        "brokerFastFailureEnable",
        True,
        "",
        "whether a request that waited longer than the limit of its kind is answered SYSTEM_BUSY",
        live=True,
    )
    wait_time_mills_in_send_queue: int = setting(
        "waitTimeMillsInSendQueue",
        200,
        "ms",
        "how long a send may wait after others, for its group or for its connection to read",
        low=1,
        live=True,
    )
    wait_time_mills_in_pull_queue: int = setting(
        "waitTimeMillsInPullQueue",
        5000,
        "ms",
        "how long a pull may wait before it is handled; parked time does not count",
        low=1,
        live=True,
    )
    wait_time_mills_in_lite_pull_queue: int = setting(
        "waitTimeMillsInLitePullQueue", 5000, "ms", "the same for a light pull", low=1, live=True
    )
    wait_time_mills_in_heartbeat_queue: int = setting(
        "waitTimeMillsInHeartbeatQueue", 31_000, "ms", "how long a heartbeat may wait", low=1, live=True
    )
    wait_time_mills_in_transaction_queue: int = setting(
        "waitTimeMillsInTransactionQueue",
        3000,
        "ms",
        "how long the end of a transaction may wait",
        low=1,
        live=True,
    )
    wait_time_mills_in_admin_broker_queue: int = setting(
        "waitTimeMillsInAdminBrokerQueue",
        5000,
        "ms",
        "how long a request of the tools may wait",
        low=1,
        live=True,
    )
    send_thread_pool_queue_capacity: int = setting(
        "sendThreadPoolQueueCapacity",
        10_000,
        "sends",
        "with so many not stored yet, or waiting for their sync, more are refused as overload",
        low=1,
    )
    max_parked_pulls: int = setting(
        "maxParkedPulls",
        100_000,
        "pulls",
        "with so many waiting for messages more are refused as overload; each costs about a kilobyte",
        low=0,
        high=1_000_000,
        ours=True,
    )
    max_connections: int = setting(
        "maxConnections",
        12_000,
        "connections",
        "more are closed at once, so that a flood cannot take all descriptors",
        low=1,
        high=1_000_000,
        ours=True,
    )
    max_percent_of_user: int = setting(
        "maxPercentOfUser",
        50,
        "%",
        "how much of each total (connections, waiting requests) one user may have, with access control; 100 "
        "is no limit",
        low=1,
        high=100,
        ours=True,
    )
    max_topics: int = setting(
        "maxTopics",
        50_000,
        "topics",
        "with so many topics no more are created, by clients or administrators; a store that has more "
        "is opened with all of them",
        low=0,
        high=200_000,
        ours=True,
    )
    max_groups: int = setting(
        "maxGroups",
        50_000,
        "groups",
        "the same bound for subscription groups",
        low=0,
        high=200_000,
        ours=True,
    )
    max_offsets: int = setting(
        "maxOffsets", 300_000, "pairs", "the same bound for pairs of a group and a topic with offsets", low=0,
        high=3_000_000, ours=True,
    )  # fmt: skip
    max_auto_created_topics: int = setting(
        "maxAutoCreatedTopics",
        5000,
        "topics",
        "with so many topics sends create no more",
        low=0,
        high=100_000,
        ours=True,
    )
    max_auto_created_groups: int = setting(
        "maxAutoCreatedGroups",
        5000,
        "groups",
        "with so many groups requests of clients create no more",
        low=0,
        high=100_000,
        ours=True,
    )
    authentication_enabled: bool = setting(
        "authenticationEnabled",
        False,
        "",
        "whether each request must be signed by a known user; users are kept in config/access.json",
    )
    authorization_enabled: bool = setting(
        "authorizationEnabled",
        False,
        "",
        "whether a user needs a right for each request; only with authenticationEnabled, because a name "
        "without a signature proves nothing",
    )
    authentication_whitelist: str = setting(
        "authenticationWhitelist",
        "",
        "code,..",
        "requests that need no signature: codes of the broker port, full names of gRPC messages",
        check=request_list,
    )
    authorization_whitelist: str = setting(
        "authorizationWhitelist",
        "",
        "code,..",
        "requests that need no right, in the same form",
        check=request_list,
    )
    init_authentication_user: str = setting(
        "initAuthenticationUser",
        "",
        "JSON",
        '`{"username": "..", "password": ".."}`: made as a Super user at the start if there is no such user; '
        "set it in a file that only the owner may read, not on the command line",
        check=json_with("username", "password"),
        secret=True,
    )
    inner_client_authentication_credentials: str = setting(
        "innerClientAuthenticationCredentials",
        "",
        "JSON",
        '`{"accessKey": "..", "secretKey": ".."}`: signs the requests of the broker to name servers, of '
        "jobs and of manage.py demo; made as a Super user too",
        check=json_with("accessKey", "secretKey"),
        secret=True,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled",
                "true",
                "needs authenticationEnabled=true: without a signature any client may state any name",
            )
