"""Keys that are not settings here: Apache's without effect, and values that stop the start."""

from __future__ import annotations

# Why a setting that requires more of replication than there is stops the start: nothing else would show it.
FIXED_ROLES = "here a slave copies its master's log, and roles are fixed"

ELSEWHERE = {
    "transactions": "an op record is written in the turn that ends its transactions; transaction metrics "
    "are saved "
    "every 5 s",
    "timer": "timer messages are put on the wheel and delivered by one step on the loop",
    "delay": "delay levels are delivered at their time by one step, and their positions saved every 5 s once "
    "the log is synced",
    "pop": "pop records are written at once and read by one step on the loop; the end of a block of pops in "
    "order is always reported",
    "replication": "masters and slaves have the roles that brokerRole or the controller gives them",
    "metrics": "metrics are served at /metrics of the dashboard, and sent by OpenTelemetry to "
    "metricsOtlpEndpoint",
}

# Reason -> Apache's keys that change nothing here. Their values are not checked.
WITHOUT_EFFECT_BY_REASON: dict[str, str] = {
    "users and policies are in memory as a whole, and their file is in config/ of the store": (
        "authConfigPath userCacheMaxNum userCacheExpiredSecond userCacheRefreshSecond aclCacheMaxNum "
        "aclCacheExpiredSecond aclCacheRefreshSecond statefulAuthenticationCacheMaxNum "
        "statefulAuthenticationCacheExpiredSecond statefulAuthorizationCacheMaxNum "
        "statefulAuthorizationCacheExpiredSecond "
    ),
    "there are no thread pools: one loop does the work": (
        "sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums "
        "litePullMessageThreadPoolNums ackMessageThreadPoolNums "
        "processReplyMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums "
        "clientManageThreadPoolNums consumerManageThreadPoolNums "
        "loadBalanceProcessorThreadPoolNums heartbeatThreadPoolNums recoverThreadPoolNums "
        "endTransactionThreadPoolNums "
        "putThreadPoolQueueCapacity pullThreadPoolQueueCapacity litePullThreadPoolQueueCapacity "
        "ackThreadPoolQueueCapacity replyThreadPoolQueueCapacity "
        "queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity "
        "consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity "
        "endTransactionPoolQueueCapacity adminBrokerThreadPoolQueueCapacity "
        "loadBalanceThreadPoolQueueCapacity batchDispatchRequestThreadPoolNums "
        "clientCallbackExecutorThreads clientWorkerThreads serverCallbackExecutorThreads "
        "serverSelectorThreads serverWorkerThreads "
        "disableCallbackExecutor disableNettyWorkerGroup serverNettyWorkerGroupEnable "
        "useEpollNativeSelector enableFastChannelEventProcess "
        "asyncSendEnable"
    ),
    "sends under way are bounded by sendThreadPoolQueueCapacity": (
        "maxAsyncPutMessageRequests enableNetWorkFlowControl startAcceptSendRequestTimeStamp"
    ),
    "there is one writer and no lock to choose": (
        "useReentrantLockWhenPutMessage useABSLock spinLockCollisionRetreatOptimalDegree "
        "topicQueueLockNum debugLockEnable putMessageTimeout"
    ),
    "buffers and limits of connections are fixed (docs/ARCHITECTURE.md)": (
        "serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize clientSocketRcvBufSize "
        "clientSocketSndBufSize "
        "serverPooledByteBufAllocatorEnable clientPooledByteBufAllocatorEnable "
        "serverAsyncSemaphoreValue serverOnewaySemaphoreValue "
        "clientAsyncSemaphoreValue clientOnewaySemaphoreValue writeBufferHighWaterMark "
        "writeBufferLowWaterMark serverChannelMaxIdleTimeSeconds "
        "clientChannelMaxIdleTimeSeconds channelNotActiveInterval clientCloseSocketIfTimeout "
        "connectTimeoutMillis maxReconnectIntervalTimeSeconds "
        "enableReconnectForGoAway shutdownWaitTimeSeconds enableShutdownGracefully socksProxyConfig "
        "transferMsgByHeap disappearTimeAfterStart "
        "isScanAvailableNameSrv printChannelGroups printChannelGroupsMinNum isolateLogEnable"
    ),
    "the flusher syncs by time only: what is dirty after flushIntervalCommitLog is written to disk": (
        "flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed "
        "flushConsumeQueueLeastPages wakeFlushWhenPutMessage "
        "flushLeastPagesWhenWarmMapedFile warmMapedFileEnable"
    ),
    "files are mapped on use and swapped by the kernel": (
        "mappedFileSwapEnable commitLogForceSwapMapInterval commitLogSwapMapInterval "
        "commitLogSwapMapReserveFileNum logicQueueForceSwapMapInterval "
        "logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum cleanSwapedMapInterval "
        "destroyMapedFileIntervalForcibly redeleteHangedFileInterval "
        "deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval maxBatchDeleteFilesNum "
        "correctLogicMinOffsetForceInterval "
        "correctLogicMinOffsetSleepInterval dataReadAheadEnable putConsumeQueueDataByFileChannel "
        "diskFallRecorded"
    ),
    "dispatch runs in the same turn as the append": (
        "dispatchFromSenderThread dispatchCqCacheNum dispatchCqThreads enableAsyncReput "
        "enableBuildConsumeQueueConcurrently recoverConcurrently "
        "maxRecoveryCommitlogFiles recheckReputOffsetFromCq readUnCommitted putMsgIndexHightWater "
        "messageIndexSafe "
        "travelCqFileNumWhenGetMessage maxConsumeQueueScan maxFilterMessageSize maxChecksumRange"
    ),
    "cold reads go through a pool of readers with a bound of their own": (
        "coldDataFlowControlEnable coldDataScanEnable coldCtrStrategyEnable usePIDColdCtrStrategy "
        "cgColdReadThreshold globalColdReadThreshold "
        "accessMessageInMemoryHotRatio timerColdDataCheckIntervalMs"
    ),
    "a record that carries a CRC of its properties is always checked with it": "forceVerifyPropCRC",
    "version 2 is written for exactly the topics that do not fit version 1": (
        "autoMessageVersionOnTopicLen maxTopicLength"
    ),
    "consume queue extensions, bit maps and compaction topics are not written": (
        "enableCompaction compactionCqMappedFileSize compactionMappedFileSize "
        "compactionScheduleInternal compactionThreadNum maxOffsetMapSize "
        "mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt enableCalcFilterBitMap "
        "expectConsumerNumUseFilter maxErrorRateOfBloomFilter "
        "mapperFileSizeBatchConsumeQueue searchBcqByCacheEnable "
        "sampleCountThreshold sampleSteps"
    ),
    "there is no RocksDB": (
        "cleanRocksDBDirtyCQIntervalMin statRocksDBCQIntervalSec memTableFlushIntervalMs "
        "realTimePersistRocksDBConfig enableRocksDBLog "
        "rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold "
        "bottomMostCompressionTypeForConsumeQueueStore "
        "configManagerVersion"
    ),
    ELSEWHERE["replication"]: (
        "haFlowControlEnable maxHaTransferByteInSecond maxSlaveResendLength "
        "enableAutoInSyncReplicas offsetCheckInSlave "
        "syncMasterFlushOffsetWhenStartup "
        "lockInStrictMode replicasPerDiskPartition "
        "haServerAddr brokerIP2 forwardTimeout compatibleWithOldNameSrv isBrokerContainer "
        "isInBrokerContainer "
        "logicalDiskSpaceCleanForciblyThreshold consumerFallbehindThreshold "
        "disableConsumeIfConsumerReadSlowly"
    ),
    ELSEWHERE["transactions"]: (
        "transactionOpBatchInterval transactionOpMsgMaxSize transactionMetricFlushInterval"
    ),
    ELSEWHERE["timer"]: (
        "timerCheckMetricsWhen timerEnableCheckMetrics timerEnableDisruptor "
        "timerEnableRetryUntilSuccess timerGetMessageThreadNum "
        "timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum "
        "timerSkipUnknownError timerWarmEnable"
    ),
    ELSEWHERE["delay"]: (
        "flushDelayOffsetInterval delayOffsetUpdateVersionStep enableScheduleAsyncDeliver "
        "enableScheduleMessageStats scheduleAsyncDeliverMaxPendingLimit "
        "scheduleAsyncDeliverMaxResendNum2Blocked"
    ),
    ELSEWHERE["pop"]: (
        "appendAckAsync appendCkAsync "
        "enableNotifyAfterPopOrderLockRelease "
        "enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog "
        "enablePopMessageThreshold "
        "enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem popCkMaxBufferSize "
        "popCkOffsetMaxQueueSize popCkStayBufferTime "
        "popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable "
        "popConsumerKVServiceInit popConsumerKVServiceLog "
        "popInflightMessageThreshold popLongPollingForceNotifyInterval "
        "popPollingMapSize "
        "popResponseReturnActualRetryTopic popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead "
        "reviveAckWaitMs "
        "reviveInterval reviveMaxSlow reviveScanTime skipWhenCKRePutReachMaxTimes "
        "waitTimeMillsInAckQueue"
    ),
    ELSEWHERE["metrics"]: (
        "metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills "
        "metricLoggingExporterIntervalInMills metricsExporterType "
        "metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel "
        "metricsOtelCardinalityLimit metricsPromExporterHost "
        "metricsPromExporterPort accountStatsEnable accountStatsPrintZeroValues "
        "autoDeleteUnusedStats enableDetailStat enableLmqStats "
        "estimateAccumulation maxStatsIdleTimeInMinutes commercialBaseCount commercialSizePerMsg "
        "highSpeedMode"
    ),
    "where a broker listens is given by --bind, name servers by namesrvAddr": (
        "bindAddress fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer "
        "fetchNamesrvAddrInterval updateNameServerAddrPeriod "
        "loadBalancePollNameServerInterval namesrvDomain namesrvDomainSubgroup rocketmqHome "
        "brokerConfigPath kvConfigPath configStorePath"
    ),
    "a registration is always sent whole, uncompressed and on time": (
        "forceRegister compressedRegister enableSingleTopicRegister enableSplitRegistration "
        "splitRegistrationSize"
    ),
    "settings are not changed over the wire": "configBlackList",
    "this broker does it always, as Apache does by default": (
        "enableRegisterProducer realTimeNotifyConsumerChange useServerSideResetOffset "
        "validateSystemTopicWhenUpdateTopic enableCreateSysGroup "
        "clearRetryTopicWhenDeleteTopic serverLoadBalancerEnable defaultQueryMaxNum "
        "subscriptionExpiredTimeout "
        "cleanOfflineBrokerInterval "
        "consumerOffsetUpdateVersionStep flushConsumerOffsetHistoryInterval"
    ),
    "this broker never does it, as Apache does not by default": (
        "rejectPullConsumerEnable enableBatchPush pullBatchMaxMessageCount enableCleanExpiredOffset "
        "useStaticSubscription "
        "enableConsumeQueueExt maxLmqConsumeQueueNum timerInterceptDelayLevel timerStopDequeue "
        "timerStopEnqueue"
    ),
    "not served by this name server": (
        "needWaitForService waitSecondsForService enableControllerInNamesrv "
        "enableAllTopicList enableTopicList unRegisterBrokerQueueCapacity productEnvName clusterTest "
        "clientRequestThreadPoolNums "
        "defaultThreadPoolNums clientRequestThreadPoolQueueCapacity defaultThreadPoolQueueCapacity"
    ),
}
WITHOUT_EFFECT: dict[str, str] = {
    key: reason for reason, keys in WITHOUT_EFFECT_BY_REASON.items() for key in keys.split()
}

_AUTH = "org.apache.rocketmq.auth."
_ONE_WAY = "there are no plug-ins for access control; leave it out"

# Key -> (values that are fine, why any other is refused). These would be missed unseen, or make a store we
# cannot read.
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "aclEnable": (
        ("false",),
        "the access control of version 4 is not there; set authenticationEnabled and authorizationEnabled, "
        "and import its accounts with manage.py access import",
    ),
    "migrateAuthFromV1Enabled": (
        ("false",),
        "accounts of plain_acl.yml are not imported at a start, but by manage.py access import",
    ),
    "authenticationProvider": (
        ("", _AUTH + "authentication.provider.DefaultAuthenticationProvider"),
        _ONE_WAY,
    ),
    "authorizationProvider": (("", _AUTH + "authorization.provider.DefaultAuthorizationProvider"), _ONE_WAY),
    "authenticationMetadataProvider": (
        ("", _AUTH + "authentication.provider.LocalAuthenticationMetadataProvider"),
        _ONE_WAY,
    ),
    "authorizationMetadataProvider": (
        ("", _AUTH + "authorization.provider.LocalAuthorizationMetadataProvider"),
        _ONE_WAY,
    ),
    "authenticationStrategy": (
        (
            "",
            _AUTH + "authentication.strategy.StatelessAuthenticationStrategy",
            _AUTH + "authentication.strategy.StatefulAuthenticationStrategy",
        ),
        "each request is checked with either of Apache's strategies; there is no other",
    ),
    "authorizationStrategy": (
        (
            "",
            _AUTH + "authorization.strategy.StatelessAuthorizationStrategy",
            _AUTH + "authorization.strategy.StatefulAuthorizationStrategy",
        ),
        "each request is checked with either of Apache's strategies; there is no other",
    ),
    "useTLS": (("false",), "set tls.server.mode for the ports, tls.enable for connections to name servers"),
    "timerPrecisionMs": (
        ("1000",),
        "a timer wheel has a slot for each second; messages of a wheel with another precision would be "
        "delivered at a wrong time",
    ),
    "storeType": (("default",), "only the file store is there, not RocksDB"),
    "rocksdbCQDoubleWriteEnable": (("false",), "only the file store is there, not RocksDB"),
    "enableDLegerCommitLog": (("false",), "a DLedger commit log has another format"),
    "totalReplicas": (("1",), f"{FIXED_ROLES}; set 1 or leave it out"),
    "allAckInSyncStateSet": (
        ("false",),
        f"{FIXED_ROLES}: inSyncReplicas says how many must have a send; set false or leave it out",
    ),
    "duplicationEnable": (("false",), f"{FIXED_ROLES}; set brokerRole=SLAVE for a copy"),
    "fetchControllerAddrByDnsLookup": (("false",), "controllerAddr has the addresses themselves"),
    "enableLmq": (("false",), "light message queues are not supported"),
    "enableMultiDispatch": (("false",), "light message queues are not supported"),
    "messageStorePlugIn": (("",), "there are no store plug-ins"),
}
