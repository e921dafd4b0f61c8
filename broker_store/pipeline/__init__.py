"""Spark over the stored messages: a data source `rocketmq` and the jobs on it; the only room that uses
pyspark.

    options   a reader's options, as tests on records
    splits    the stretches of the log, one partition each; small values that are sent to the workers
    columns   the columns of each table
    batches   a stretch of the log as Arrow record batches, made by a kernel from its bytes
    derived   the same for consume queues and index files
    source    all of it as a Spark data source
    session   a local session, and the Java that it needs
    jobs      plain functions of a session; the two large ones, audit and archive, have modules of their own
    results   what the jobs return, as those who show it read it
    audit     its report is made by audit_report and audit_index
    stretch   the tasks of the audit, with stretch_units, stretch_entries, index_links and findings

Nothing is imported here, so that an importer of one module loads no more than that.
"""
