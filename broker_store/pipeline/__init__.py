"""Spark over the stored messages: a data source `rocketmq` and the jobs on it; the only place for pyspark.

    splits    which stretches of the log there are, a partition each; small values that travel to the workers
    batches   a stretch as Arrow record batches, made by a kernel from the log's bytes
    source    the two as a Spark data source
    session   a local session, and the Java that it needs
    jobs      plain functions of a session

Nothing is imported here, so that whoever needs one piece loads no more than that.
"""
