"""Known bugs of consensus, planted one at a time into the core as it is imported.

The names are those of the literature and of Kafka's own bugs. `seeds` is how many it took when it
was recorded, from `first` on. Bugs that no seed finds, since another guard stands behind, are in
tests/unit/core/raft/test_guards.py and in the scripts under tests/scenario/quorum: an answer to an
earlier role, a sync from before a cut, a cut of what is committed.
"""

from collections.abc import Sequence
from typing import Final

from tests.simulation.mutants import Mutant

_RAFT: Final = "rlmm_daemon.core.raft"
_TURN: Final = f"{_RAFT}.turn"
_ELECTIONS: Final = f"{_RAFT}.elections"
_FETCHING: Final = f"{_RAFT}.fetching"
_LEADING: Final = f"{_RAFT}.leading"
_READING: Final = f"{_RAFT}.reading"
#: Where a leader has noted a voter's fetch.
_NOTED: Final = (
    "        peers = _without_stalest(turn, peers)\n    turn.amend(replace(role, peers=peers))\n"
)
#: Two guards that stand for each other while a change is under way.
_NOT_NOW: Final = """    if role.change is not None or role.high_watermark == UNKNOWN:
        return Code.REQUEST_TIMED_OUT
    if newest.kraft_version == 0:
        return Code.UNSUPPORTED_VERSION
    return Code.REQUEST_TIMED_OUT if newest.offset >= role.high_watermark else None
"""

MUTANTS: Final[Sequence[Mutant]] = (
    Mutant(
        name="grant_before_persist",
        module=_ELECTIONS,
        old="""    if granted and not request.pre_vote:
        _vote_for(turn, request.candidate)
    answer = turn.answer(VoteAnswer)
    turn.effects.append(Reply(asked.token, replace(answer, granted=granted)))
""",
        new="""    answer = turn.answer(VoteAnswer)
    turn.effects.append(Reply(asked.token, replace(answer, granted=granted)))
    if granted and not request.pre_vote:
        _vote_for(turn, request.candidate)
""",
        seeds=1,
    ),
    Mutant(
        name="vote_forgotten_in_same_epoch",
        module=_TURN,
        old="""            fetch_by=self.now.ms + self.replica.timing.fetch,
            voted=self.replica.voted if same else None,
""",
        new="""            fetch_by=self.now.ms + self.replica.timing.fetch,
            voted=None,
""",
        seeds=1,
    ),
    Mutant(
        name="end_before_sync_leader",
        module=_LEADING,
        old="        replica.log.synced if key.is_same(replica.me) else",
        new="        replica.log.end if key.is_same(replica.me) else",
        seeds=2,
    ),
    Mutant(
        name="fetch_before_sync",
        module=_FETCHING,
        old="idle and log.synced == log.end",
        new="idle",
        seeds=1,
    ),
    Mutant(
        name="commit_old_epoch",
        module=_LEADING,
        old="    if reached <= role.epoch_start or reached <= role.high_watermark:\n",
        new="    if reached <= role.high_watermark:\n",
        seeds=1,
    ),
    Mutant(
        name="hwm_carried_over",
        module=_TURN,
        old="            epoch_start=log.end,\n",
        new="            epoch_start=log.end,\n            high_watermark=replica.committed,\n",
        seeds=1,
    ),
    Mutant(
        name="hwm_backwards",
        module=_LEADING,
        old="    if reached <= role.epoch_start or reached <= role.high_watermark:\n",
        new="    if reached <= role.epoch_start or reached == role.high_watermark:\n",
        seeds=8,
    ),
    Mutant(
        name="compare_offset_only",
        module=_ELECTIONS,
        old="    up_to_date = request.last >= turn.replica.log.last\n",
        new="    up_to_date = request.last.end >= turn.replica.log.end\n",
        seeds=9,
    ),
    Mutant(
        name="diverging_asked_epoch",
        module=_LEADING,
        old="        diverging = log.epoch_end(point.epoch) if snapshot is None else None\n",
        new=(
            "        diverging = None if snapshot is not None else "
            "replace(log.epoch_end(point.epoch), epoch=point.epoch)\n"
        ),
        seeds=9,
    ),
    Mutant(
        name="apply_uncommitted",
        module=_FETCHING,
        old="    end = min(replica.role.high_watermark, replica.log.synced)\n",
        new="    end = replica.log.synced\n",
        seeds=1,
    ),
    Mutant(
        name="prevote_bumps_epoch",
        module=_TURN,
        old="""        role = Prospective(
            epoch=replica.epoch,
            election_at""",
        new="""        role = Prospective(
            epoch=replica.epoch + 1,
            election_at""",
        seeds=1,
    ),
    Mutant(
        name="prevote_ignores_live_leader",
        module=_ELECTIONS,
        old="            return request.pre_vote and not fetched and up_to_date\n",
        new="            return request.pre_vote and up_to_date\n",
        seeds=1,
    ),
    Mutant(
        name="append_before_epoch_persisted",
        module=_TURN,
        old="        if isinstance(replica.role, Resigned):\n            return\n",
        new="        if isinstance(replica.role, Resigned | Candidate):\n            return\n",
        seeds=1,
    ),
    Mutant(
        name="leader_resumes_own_epoch",
        module=f"{_RAFT}.step",
        old="        return Resigned(epoch=state.epoch, election_at=at, unacknowledged=others)\n",
        new=(
            "        return Leader(epoch=state.epoch, epoch_start=turn.replica.log.end, "
            "since=turn.now.ms)\n"
        ),
        seeds=1,
    ),
    Mutant(
        name="single_voter_commits_before_sync",
        module=_LEADING,
        old="        replica.log.synced if key.is_same(replica.me) else",
        new=(
            "        (replica.log.end if len(replica.in_force.voters) == 1 "
            "else replica.log.synced) if key.is_same(replica.me) else"
        ),
        seeds=2,
    ),
    Mutant(
        name="voters_at_commit",
        module=f"{_RAFT}.roles",
        old="        return self.voters.newest.voters\n",
        new=(
            "        return [each for each in self.voters.sets "
            "if each.offset < max(self.committed, 3)][-1].voters\n"
        ),
        seeds=3,
    ),
    Mutant(
        name="voters_not_reverted",
        module=_TURN,
        old="            voters=replica.voters.truncate(end),\n",
        new="",
        seeds=10,
    ),
    Mutant(
        name="two_changes_at_once",
        module=f"{_RAFT}.reconfiguring",
        old=_NOT_NOW,
        new="""    if role.high_watermark == UNKNOWN:
        return Code.REQUEST_TIMED_OUT
    return None
""",
        seeds=8,
    ),
    Mutant(
        name="change_before_own_epoch_commit",
        module=f"{_RAFT}.reconfiguring",
        old=_NOT_NOW,
        new="""    if role.change is not None:
        return Code.REQUEST_TIMED_OUT
    open_ = UNKNOWN < role.high_watermark <= newest.offset
    return Code.REQUEST_TIMED_OUT if open_ else None
""",
        seeds=4,
    ),
    Mutant(
        name="removed_leader_counts_itself",
        module=_LEADING,
        old="    reached = min(majority_reached(ends, len(ends)), replica.log.end)\n",
        new=(
            "    if not replica.is_voter:\n"
            "        ends.append(replica.log.synced)\n"
            "    reached = min(majority_reached(ends, len(replica.in_force.voters)), "
            "replica.log.end)\n"
        ),
        seeds=3,
    ),
    Mutant(
        name="acks_by_id_only",
        module=_LEADING,
        old="    same = [each for other, each in role.peers.items() if other.is_same(key)]\n",
        new="    same = [each for other, each in role.peers.items() if other.id == key.id]\n",
        seeds=5,
        first=25,
    ),
    Mutant(
        name="snapshot_mid_batch",
        module="tests.simulation.quorum.images",
        old="        point = LogPoint(last.epoch, last.end)\n",
        new="        point = LogPoint(last.epoch, last.end - last.count // 2)\n",
        seeds=1,
    ),
    Mutant(
        name="fetch_snapshot_no_life_sign",
        module=_FETCHING,
        old="""        _hear(turn)
        if isinstance(answer, FetchAnswer):
""",
        new="""        if isinstance(answer, FetchAnswer):
            _hear(turn)
        if isinstance(answer, FetchAnswer):
""",
        seeds=5,
        first=44,
    ),
    Mutant(
        name="no_check_quorum",
        module=_LEADING,
        old="    return turn.now.ms >= check_at(turn)\n",
        new="    return False\n",
        seeds=3,
    ),
    Mutant(
        name="candidate_not_reset_on_epoch",
        module=_TURN,
        old="""        role = Candidate(
            epoch=replica.epoch + 1,
            election_at=self.election_at(),
            granted=frozenset({replica.me.id}),
        )
""",
        new="""        last = replica.role
        before = last.granted if isinstance(last, Prospective) else frozenset()
        role = Candidate(
            epoch=replica.epoch + 1,
            election_at=self.election_at(),
            granted=before | {replica.me.id},
        )
""",
        seeds=1,
    ),
    Mutant(
        name="installing_does_not_block",
        module=_FETCHING,
        old="    idle = not turn.asks and turn.replica.installing is None\n",
        new="    idle = not turn.asks\n",
        seeds=6,
        first=86,
    ),
    Mutant(
        name="removed_voter_never_stands",
        module=f"{_RAFT}.roles",
        old=(
            "        return self.is_voter or (removal_is_open and "
            "before[-1].voters.holds(self.me))\n"
        ),
        new="        return self.is_voter\n",
        seeds=3,
    ),
    Mutant(
        name="unknown_epoch_answers_own_end",
        module=f"{_RAFT}.log_facts",
        old="        return LogPoint(epoch, self.start) if self.epochs else self.last\n",
        new="        return self.last\n",
        seeds=10,
    ),
    Mutant(
        name="removed_leader_stays",
        module=_LEADING,
        old="    if not turn.replica.is_voter and turn.replica.voters.newest.offset < reached:\n",
        new="    if False:\n",
        seeds=8,
    ),
    Mutant(
        name="votes_for_another_are_taken",
        module=_ELECTIONS,
        old="    return voter is not None and not voter.is_same(turn.replica.me)\n",
        new="    return False\n",
        seeds=3,
        first=212,
    ),
    Mutant(
        name="epochs_outlive_a_cut",
        module=f"{_RAFT}.log_facts",
        old="        epochs = tuple(entry for entry in self.epochs if entry[1] < end)\n",
        new="        epochs = tuple(entry for entry in self.epochs if entry[1] <= end)\n",
        seeds=9,
    ),
    Mutant(
        name="read_index_skipped",
        module=_READING,
        old="    shown = _shown(turn, role)\n",
        new="    shown = turn.replica.serial + 1\n",
        seeds=3,
        first=13,
    ),
    Mutant(
        name="read_before_own_epoch_commits",
        module=_READING,
        old="    if role.high_watermark != UNKNOWN:  # else",
        new=(
            "    if role.high_watermark == UNKNOWN:\n"
            "        role = replace(role, high_watermark=turn.replica.committed)\n"
            "    if True:  # else"
        ),
        seeds=6,
    ),
    Mutant(
        name="read_confirmed_by_older_request",
        module=_READING,
        old="    shown = _shown(turn, role)\n",
        new=(
            "    shown = _shown(turn, role)\n"
            "    shown = shown if shown == UNKNOWN else turn.replica.serial + 1\n"
        ),
        seeds=3,
        first=13,
    ),
    Mutant(
        name="read_confirmed_by_any_fetch",
        module=_LEADING,
        old=_NOTED,
        new=_NOTED
        + """    role = turn.replica.role
    seen = {**role.confirmed, key.id: turn.replica.serial + 1}
    turn.amend(replace(role, confirmed=seen))
    reading.settle(turn)
""",
        seeds=3,
        first=3,
    ),
    Mutant(
        name="read_confirmed_by_second_fetch",
        module=_LEADING,
        old=_NOTED,
        new=_NOTED
        + """    role = turn.replica.role
    newest = role.questions[-1].token if role.questions else 0
    first = role.ask_again_at.get(-key.id, -1)
    again = {**role.ask_again_at, -key.id: newest}
    turn.amend(replace(role, ask_again_at=again))
    if newest and first == newest:
        seen = {**role.confirmed, key.id: turn.replica.serial + 1}
        turn.amend(replace(turn.replica.role, confirmed=seen))
        reading.settle(turn)
""",
        seeds=3,
        first=3,
    ),
)
_FOLD: Final = "rlmm_daemon.core.quorum_log.fold"
_SUBMITTER: Final = "rlmm_daemon.adapters.quorum.event_log.submitter"
#: Of what daemons submit: `submitting` finds them. A gap between serials never comes about, since
#: a submitter sends one batch at a time: that the fold refuses it is in its own tests.
SUBMITTING: Final[Sequence[Mutant]] = (
    Mutant(
        name="retry_appends_twice",
        module=_FOLD,
        old="""        if key.serial <= submitter.serial:
            known = submitter.digests.get(key.serial, digest)
            return Passed.REPEATED if known == digest else Passed.CONFLICTING
        if key.serial != submitter.serial + 1:
""",
        new="""        if key.serial > submitter.serial + 1:
""",
        seeds=2,
        scenario="submitting",
    ),
    Mutant(
        name="late_grant_begins_again",
        module=_FOLD,
        old="""        if key.incarnation == known.incarnation and value == known.nonce:
            return Passed.REPEATED
        if key.incarnation != known.incarnation + 1:
            return Passed.FENCED
""",
        new="""        if key.incarnation < known.incarnation:
            return Passed.FENCED
""",
        seeds=9,
        first=20,
        scenario="submitting",
    ),
    Mutant(
        name="serials_outlive_incarnations",
        module=_FOLD,
        old="Submitter(key.incarnation, value)",
        new="Submitter(key.incarnation, value, known.serial)",
        seeds=2,
        scenario="submitting",
    ),
    Mutant(
        name="older_incarnation_goes_on",
        module=_FOLD,
        old="submitter is None or key.incarnation != submitter.incarnation",
        new="submitter is None or key.incarnation > submitter.incarnation",
        seeds=6,
        scenario="submitting",
    ),
    Mutant(
        name="incarnation_by_own_count",
        module=_SUBMITTER,
        old="""            known = folding.fold.submitters.get(me, Submitted())
            if (known.incarnation, known.nonce) == (asked, nonce):
                break
            asked = known.incarnation + 1
""",
        new="""            known = folding.fold.submitters.get(me, Submitted())
            if known.incarnation and known.incarnation >= asked:
                break
            asked = known.incarnation + 1
""",
        seeds=1,
        scenario="submitting",
    ),
    Mutant(
        name="given_up_serial_blocks",
        module=_SUBMITTER,
        old="""            if late:
                self._doubt()
""",
        new="",
        seeds=3,
        first=250,
        scenario="submitting",
    ),
)
_CHECKPOINT: Final = "rlmm_daemon.core.quorum_log.checkpoint"
_CHECKPOINTER: Final = "rlmm_daemon.adapters.quorum.event_log.checkpointer"
_FOLDING: Final = "rlmm_daemon.adapters.quorum.event_log.folding"
#: Of checkpoints: `submitting` finds them, too.
CHECKPOINTS: Final[Sequence[Mutant]] = (
    Mutant(
        name="checkpoint_without_incarnation",
        module=_CHECKPOINT,
        old="Submitter(at.incarnation, at.nonce,",
        new="Submitter(1, at.nonce,",
        seeds=1,
        scenario="submitting",
    ),
    Mutant(
        name="checkpoint_counts_before_it_is_durable",
        module=_CHECKPOINTER,
        old="""            await writer.end()
            point = await node.snapshots.keep(writer)
""",
        new="""            point = await node.snapshots.keep(writer)
            await self._move_start(node)
            await writer.end()
""",
        seeds=6,
        scenario="submitting",
    ),
    Mutant(
        name="offsets_counted_from_the_checkpoint",
        module=_FOLDING,
        old="            self.fold, self.applied = loaded.fold, point.end\n",
        new="""            self.fold, self.applied = loaded.fold, point.end
            self.fold.ends = [end - loaded.chunks[-1].start(p) for p, end in enumerate(ends)]
""",
        seeds=1,
        scenario="submitting",
    ),
    Mutant(
        name="checkpoint_claims_what_is_not_folded",
        module=_FOLDING,
        old="            end=self.applied,\n",
        new="            end=self._node.replica.committed if self._node else self.applied,\n",
        seeds=2,
        scenario="submitting",
    ),
    Mutant(
        name="what_a_checkpoint_hides_is_sent_again",
        module=_SUBMITTER,
        old="        for serial in lost:\n",
        new="        lost.clear()\n        for serial in lost:\n",
        seeds=9,
        first=20,
        scenario="submitting",
    ),
    Mutant(
        name="compacts_what_was_not_allowed",
        module="rlmm_daemon.adapters.quorum.event_log.compacting",
        old="if each[0] >= upto or each[0] in kept",
        new="if each[0] in kept",
        seeds=5,
        scenario="submitting",
    ),
    Mutant(
        name="first_events_are_the_newest",
        module="rlmm_daemon.adapters.quorum.event_log.chunks",
        old="            if at < 0:  #",
        new="            if at < -1:  #",
        seeds=13,
        scenario="submitting",
    ),
    Mutant(
        name="checkpoint_lacks_the_newest_events",
        module="rlmm_daemon.adapters.quorum.event_log.chunks",
        old="""        if self._chunks[-1].bytes:
            self._close(base, ends)
        return self._chunks[:-1]
""",
        new="        return self._chunks[:-1]\n",
        seeds=1,
        scenario="submitting",
    ),
)
BY_NAME: Final = {mutant.name: mutant for mutant in (*MUTANTS, *SUBMITTING, *CHECKPOINTS)}
assert len(BY_NAME) == len(MUTANTS) + len(SUBMITTING) + len(CHECKPOINTS), "two mutants share a name"
