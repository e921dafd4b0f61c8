"""Background work: the kinds of jobs, their queue, what a worker runs, runs of the pipeline and schedules."""
