"""manage.py group: list, show, pops, timeline, create, update, delete, reset-offset, resend-dead-letters."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from broker_store.facts.directory import StoreDirectory
from broker_store.facts.disk_scan import timeline_of
from broker_store.facts.timeline import GroupTimeline
from broker_store.rest.http import MAX_LIMIT
from broker_store.units import document_of, fact_of, fields_of
from mqadmin.facts.dead_letters import ResendPlan
from mqadmin.facts.groups import Group, OffsetMoves
from mqadmin.facts.pops import SHOWN_MESSAGES, InvisibleMessages
from mqadmin.jobs import dead_letters
from mqadmin.jobs.facts import Job
from mqadmin.management.base import TIME_HELP, UNKNOWN, BrokerCommand, cell, table
from mqadmin.process.rest_client import segment

POLL_SECONDS = 0.25  # between two requests for the state of a job

TIMELINE = {
    "topic": "TOPIC",
    "queue_id": "QUEUE",
    "earliest_ms": "KEPT FROM",
    "position_ms": "NEXT UNREAD OF",
    "lag": "LAG",
    "read_per_s": "READS/S",
    "verdict": "RETENTION",
    "falls_ms": "FALLS OFF",
}


POPS = {
    "visible_ms": "COMES AGAIN",
    "given_out": "GIVEN OUT",
    "topic": "TOPIC",
    "queue_id": "QUEUE",
    "offset": "OFFSET",
    "popped_ms": "POPPED",
    "client": "CLIENT",
    "message_id": "MESSAGE",
}


class Command(BrokerCommand):
    help = "Consumer groups of the running broker."

    def verbs(self, add) -> None:
        add("list", "all groups")
        add("show", "one group with its lag in each queue and its clients").add_argument("group")
        pops = add("pops", "the messages that a group popped and that are invisible to it")
        pops.add_argument("group")
        pops.add_argument(
            "--limit", type=int, default=SHOWN_MESSAGES, help=f"at most so many (default: {SHOWN_MESSAGES})"
        )
        timeline = add(
            "timeline", "each queue over time: what is kept, the group's offset, when retention reaches it"
        )
        timeline.add_argument("group")
        timeline.add_argument(
            "--store", type=Path, metavar="DIR", help="a store directory, read without its broker"
        )
        timeline.add_argument(
            "--hours", type=int, default=6, help="hours of lag that --json prints (default: 6)"
        )
        for verb, help in (("create", "create a group"), ("update", "change the given settings of a group")):
            parser = add(verb, help)
            parser.add_argument("group")
            for name, what in (
                ("consume-enable", "whether the group may consume"),
                ("broadcast", "whether its clients may consume in broadcast mode"),
                ("orderly", "whether its clients must consume in order"),
            ):
                parser.add_argument(f"--{name}", choices=("yes", "no"), help=what)
            parser.add_argument("--retry-queues", type=int, help="number of queues of its retry topic")
            parser.add_argument(
                "--retry-max-times", type=int, help="retries of a message before it is a dead letter"
            )
        delete = add("delete", "delete a group and its offsets")
        delete.add_argument("group")
        delete.add_argument("--confirm", metavar="NAME", help="the group's name again")
        reset = add("reset-offset", "show where offsets would move; move them with --confirm")
        reset.add_argument("group")
        reset.add_argument("topic")
        reset.add_argument("to", choices=("earliest", "latest", "time", "offset"))
        reset.add_argument("value", nargs="?", help=f"for time: {TIME_HELP}; for offset: the offset")
        reset.add_argument("--queue", type=int, help="only this queue")
        reset.add_argument("--confirm", metavar="NAME", help="the group's name again, to move the offsets")

        again = add(
            "resend-dead-letters",
            "show which dead letters would be sent again; send them with --confirm. They stay where they are",
        )
        again.add_argument("group")
        again.add_argument(
            "--to",
            choices=dead_letters.TO,
            default="group",
            help="to the group alone (default), or to the original topics, for all groups that read these",
        )
        again.add_argument(
            "--limit",
            type=int,
            default=dead_letters.MAX_MESSAGES,
            help=f"at most this number of messages (default: {dead_letters.MAX_MESSAGES:,})",
        )
        again.add_argument("--confirm", metavar="NAME", help="the group's name again, to send them")

    def do_resend_dead_letters(self, options) -> None:
        group, confirm = options["group"], options["confirm"]
        parameters = {"group": group, "to": options["to"], "limit": options["limit"]}
        with self.broker() as broker:
            if confirm is None:
                plan = broker.get(
                    f"/groups/{segment(group)}/dead-letters", to=options["to"], most=options["limit"]
                )
                self.show(plan, _plan_text(fact_of(ResendPlan, plan)))
                return
            body = {"kind": "resend_dead_letters", "parameters": parameters, "confirm": confirm}
            job = fact_of(Job, broker.post("/jobs", body))
            while job.state in ("waiting", "running"):
                time.sleep(POLL_SECONDS)
                job = fact_of(Job, broker.get(f"/jobs/{job.id}"))
        if job.state != "done":
            raise CommandError(f"the job {job.id} is {job.state}: {job.error}")
        self.show_facts(job.result or {})

    def do_list(self, options) -> None:
        with self.broker() as broker:
            items = list(broker.pages("/groups"))
        columns = {
            "name": "GROUP",
            "kind": "KIND",
            "clients": "CLIENTS",
            "model": "MODEL",
            "lag": "LAG",
            "out_per_s": "OUT/S",
            "topics": "TOPICS",
        }
        self.show_table(items, columns, empty="There are no groups.")

    def do_show(self, options) -> None:
        with self.broker() as broker:
            self.show_facts(broker.get(f"/groups/{segment(options['group'])}"))

    def do_pops(self, options) -> None:
        limit, path = options["limit"], f"/groups/{segment(options['group'])}/pops"
        with self.broker() as broker:
            found = broker.get(path, limit=max(1, min(limit, MAX_LIMIT)))
            invisible = fact_of(InvisibleMessages, found)
            messages, following = list(invisible.messages), invisible.next
            while following is not None and len(messages) < limit:
                more = fact_of(
                    InvisibleMessages,
                    broker.get(path, after=following, limit=min(limit - len(messages), MAX_LIMIT)),
                )
                messages, following = messages + more.messages, more.next
        invisible = replace(invisible, messages=messages, next=following)
        if self.as_json:
            self.show(document_of(invisible))
            return
        self.show_table(
            [fields_of(message) for message in messages],
            POPS,
            empty="No message is invisible to this group."
            if invisible.counts.complete
            else "No invisible message of this group is known.",
        )
        self.stdout.write(_pops_text(invisible))

    def do_timeline(self, options) -> None:
        if options["store"] is not None:
            timeline = timeline_of(StoreDirectory(options["store"]), options["group"], options["hours"])
            found = document_of(timeline)
        else:
            with self.broker() as broker:
                found = broker.get(f"/groups/{segment(options['group'])}/timeline", hours=options["hours"])
            timeline = fact_of(GroupTimeline, found)
        if self.as_json:
            self.show(found)
            return
        queues = [
            fields_of(queue)
            | {"verdict": queue.cliff.verdict.replace("_", " "), "falls_ms": queue.cliff.at_ms}
            for queue in timeline.queues
        ]
        self.show_table(queues, TIMELINE, empty="This group has no offsets.")
        if queues:
            self.stdout.write(f"queues not sampled: {cell(timeline.queues_not_sampled)}")

    def do_create(self, options) -> None:
        with self.broker() as broker:
            made = broker.post("/groups", {"name": options["group"]} | self._settings(options))
        self.show(made, f"Group {fact_of(Group, made).name} is created.")

    def do_update(self, options) -> None:
        with self.broker() as broker:
            changed = broker.patch(f"/groups/{segment(options['group'])}", self._settings(options))
        self.show(changed, f"Group {fact_of(Group, changed).name} is changed.")

    def do_delete(self, options) -> None:
        with self.broker() as broker:
            broker.delete(f"/groups/{segment(options['group'])}", confirm=options["confirm"])
        self.show({"deleted": options["group"]}, f"Group {options['group']} is deleted.")

    def do_reset_offset(self, options) -> None:
        body = {
            "topic": options["topic"],
            "to": options["to"],
            "value": options["value"],
            "queue_id": options["queue"],
        }
        body |= {"dry_run": options["confirm"] is None, "confirm": options["confirm"]}
        with self.broker() as broker:
            answer = broker.post(f"/groups/{segment(options['group'])}/offsets/reset", body)
        self.show(answer, _moves_text(fact_of(OffsetMoves, answer)))

    def _settings(self, options: dict[str, Any]) -> dict[str, bool | int]:
        settings = {
            name: None if options[name] is None else options[name] == "yes"
            for name in ("consume_enable", "broadcast", "orderly")
        }
        settings |= {name: options[name] for name in ("retry_queues", "retry_max_times")}
        return {name: value for name, value in settings.items() if value is not None}


def _pops_text(found: InvisibleMessages) -> str:
    """Return the counts of a group's pops as text."""
    counts = found.counts
    lines = [
        f"{len(found.messages):,} of {counts.invisible:,} invisible messages are shown.",
        f"Since the start of the broker: {counts.popped:,} popped, {counts.acknowledged:,} acknowledged, "
        f"{counts.came_again:,} came again, {counts.changed:,} given another time, "
        f"{counts.dropped:,} dropped, {counts.without_effect:,} acknowledgements too late or twice.",
        f"{counts.waiting_pops:,} pops wait.",
    ]
    if not counts.complete:
        lines.append(f"Perhaps not all: {counts.reason}.")
    if counts.refused:
        lines.append(f"This broker refuses pops: {counts.refused}.")
    return "\n".join(lines)


def _moves_text(answer: OffsetMoves) -> str:
    """Return the moves of offsets as text: a table, with the time and doubt before and after it."""
    rows = (
        [cell(move.queue_id), UNKNOWN if move.before is None else str(move.before), str(move.after)]
        for move in answer.moves
    )
    begin = (
        "" if answer.time_ms is None else f"To what was stored from {cell(answer.time_ms, 'time_ms')} on:\n"
    )
    doubt = f"\nUncertain: {answer.doubt}." if answer.doubt else ""
    ending = f"Nothing was moved; to do it: --confirm {answer.group}" if answer.dry_run else "Moved."
    return f"{begin}{table(['QUEUE', 'BEFORE', 'AFTER'], rows)}{doubt}\n{ending}"


def _plan_text(plan: ResendPlan) -> str:
    """Return what would be sent, as text."""
    topics = ", ".join(f"{topic.topic} {cell(topic.messages, 'messages')}" for topic in plan.topics) or "none"
    at_most = "" if plan.complete else "at most "
    to_send = cell(plan.to_send, "messages")
    of_all = "" if plan.to_send == plan.messages else " of " + cell(plan.messages, "messages")
    lines = [
        f"messages     {at_most}{to_send}{of_all}",
        f"sent before  {cell(plan.sent_before, 'messages')}, which are skipped",
        f"left         {cell(plan.left, 'messages')} beyond the limit",
        f"oldest       {cell(plan.oldest_ms, 'oldest_ms')}",
        f"newest       {cell(plan.newest_ms, 'newest_ms')}",
        f"to           {plan.goes_to or 'their own topics, for every group that reads these'}",
        f"of topics    {topics}{'' if plan.complete else ', counted among the first'}",
    ]
    if plan.left_out_before:
        lines.insert(
            2, f"tried again  {cell(plan.left_out_before, 'messages')}, which an earlier run left out"
        )
    if plan.skipped:
        lines.append(f"left out     {cell(plan.skipped, 'messages')} that do not name their topic")
    if plan.without_topic:
        names = ", ".join(topic.topic for topic in plan.topics if not topic.may_be_sent_to)
        lines.append(
            f"left out     {cell(plan.without_topic, 'messages')} of topics that do not exist, are not "
            f"writable, or are not read by the group: {names}"
        )
    if plan.cannot:
        return "\n".join([*lines, plan.cannot])
    if not plan.to_send:
        return "\n".join([*lines, "There is nothing to send now."])
    return "\n".join([*lines, f"Nothing was sent; to do it: --confirm {plan.group}"])
