"""Spark over the stored messages: a data source `rocketmq` and the jobs on it; the only place for pyspark.

    options   what a reader asks for, as tests on records
    splits    which stretches of the log there are, a partition each; small values that travel to the workers
    columns   the columns of each table
    batches   a stretch of the log as Arrow record batches, made by a kernel from its bytes
    derived   the same for consume queues and index files
    source    all of it as a Spark data source
    session   a local session, and the Java that it needs
    jobs      plain functions of a session; audit and archive, the two large ones, have files of their own

Nothing is imported here, so that whoever needs one piece loads no more than that.
"""
