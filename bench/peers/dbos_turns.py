"""Turns and durable steps of DBOS on PostgreSQL.

A turn is one workflow of two steps (accept, reply), called in the process that runs it. DBOS knows no
threads: turns of one thread run side by side unless a partitioned queue holds them apart, which is
measured as a store of its own, "postgres, queue".
"""

import psycopg
from dbos import DBOS, SetEnqueueOptions, SetWorkflowID

import load

# How often the queue is looked at and a result is asked for. The default of both is one second, and
# every turn would wait for it.
POLL_S = 0.01

QUEUE = "threads"


@DBOS.step()
def accept(_thread, message):
    return {"id": message, "text": "What is new?"}


@DBOS.step()
def reply(_thread, message):
    return {"answers": message, "text": load.REPLY}


@DBOS.workflow()
def turn(thread, message):
    accept(thread, message)
    return reply(thread, message)["text"]


@DBOS.step()
def trivial(_step):
    return load.REPLY


@DBOS.workflow()
def many_steps(_name):
    for step in range(load.N_STEPS):
        trivial(step)


def launch(idx, url):
    """One executor. Its pool holds a connection for each of the clients, up to what is sensible."""
    config = {
        "name": "bench-peers",
        "system_database_url": url,
        "executor_id": f"executor-{idx}",
        "application_version": "1",
        "log_level": "ERROR",
        "sys_db_pool_size": 20,
    }
    DBOS(config=config)
    DBOS.launch()


def called(thread, message):
    with SetWorkflowID(message):
        turn(thread, message)


def queued(thread, message):
    with SetWorkflowID(message), SetEnqueueOptions(queue_partition_key=thread):
        handle = DBOS.enqueue_workflow(QUEUE, turn, thread, message)
    handle.get_result(polling_interval_sec=POLL_S)


def worker(idx, threads, seconds, url, client):
    launch(idx, url)
    if client is queued:
        DBOS.register_queue(QUEUE, partition_concurrency=1, polling_interval_sec=POLL_S)
    done = load.thread_clients(client, threads, seconds)
    DBOS.destroy()
    return done


def workflow(_thread, message):
    with SetWorkflowID(message):
        many_steps(message)


def replies_in(url, messages):
    """The messages whose workflow ended well with each of its two steps recorded once."""
    sql = """SELECT o.workflow_uuid FROM dbos.operation_outputs o
             JOIN dbos.workflow_status s USING (workflow_uuid)
             WHERE s.status = 'SUCCESS' AND o.function_name LIKE %s AND o.workflow_uuid = ANY(%s)"""
    with psycopg.connect(url) as connection:
        accepted = {row[0] for row in connection.execute(sql, ("%accept", messages))}
        return [row[0] for row in connection.execute(sql, ("%reply", messages)) if row[0] in accepted]


def measure_turns(options, store, client, cases):
    for n_threads, n_clients in cases:
        if n_clients <= options.clients_max:
            turns = load.spread(worker, n_threads, n_clients, options, options.url, client)
            replies = replies_in(options.url, [turn.message for turn in turns])
            load.report_turns("dbos", store, n_threads, n_clients, turns, replies)


def measure_steps(options):
    for n in load.STEPS:
        if n <= options.clients_max:
            done = load.spread(worker, n, n, options, options.url, workflow)
            load.report_steps("dbos", "postgres", n, done)


def main():
    options = load.arguments(url=(None, "the URL of an empty PostgreSQL database"))
    # The schema is made once, before several executors start together.
    launch("setup", options.url)
    DBOS.destroy()
    measure_turns(options, "postgres", called, load.TURNS)
    measure_steps(options)
    # One executor: several that look at one queue get in each other's way, and each then looks at it
    # less and less often.
    options.processes = 1
    measure_turns(options, "postgres, queue", queued, [(16, 16), (1, 16)])


if __name__ == "__main__":
    main()
