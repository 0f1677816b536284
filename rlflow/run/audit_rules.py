"""What must hold between the ledger of a run and its history, as SQL: a rule is a query whose rows are the faults, one text each.

    ledger.*                                                              the tables of the ledger, attached
    timeline(line, timeline, version, n, max_lag, policy, least_left)     the lines of history.jsonl, with their numbers
    trained(line, timeline, batch, uid, trajectories, oldest, taken_out)
    dropped(line, timeline, version, uid, reason)

    survivor   a batch from which on no later timeline began again, or a drop by a version that no later one went back before
    done       uids of survivors, with what became of them
    known      intervals of uids that are finished, or have a row

No rule asks the code that wrote either file.
"""

from __future__ import annotations

HISTORY = """
CREATE TABLE timeline (line, timeline, version, n, max_lag, policy, least_left);
CREATE TABLE trained (line, timeline, batch, uid, trajectories, oldest, taken_out);
CREATE TABLE dropped (line, timeline, version, uid, reason);
"""

SURVIVORS = """
CREATE TEMP VIEW cut AS
    SELECT timeline, (SELECT min(later.version) FROM timeline later WHERE later.timeline > t.timeline) AS version FROM timeline t;
CREATE TEMP TABLE survivor AS
    SELECT line, timeline, batch, uid, trajectories, oldest, taken_out FROM trained JOIN cut USING (timeline)
    WHERE (cut.version IS NULL OR batch < cut.version)
    AND (timeline, batch) NOT IN (SELECT timeline, batch FROM ledger.batches WHERE state = 'training');
CREATE TEMP TABLE done AS
    SELECT uid, line, 'trained' AS state, '' AS reason, batch + 1 AS version, 'trained in batch ' || batch AS says FROM survivor
    UNION ALL
    SELECT uid, line, 'dropped', reason, dropped.version, 'dropped' FROM dropped JOIN cut USING (timeline)
    WHERE cut.version IS NULL OR dropped.version <= cut.version;
CREATE INDEX temp.done_uid ON done (uid);
CREATE TEMP VIEW folded AS
    SELECT done.* FROM done JOIN ledger.finished f ON done.uid >= f.start AND done.uid < f.stop;
CREATE TEMP VIEW known AS
    SELECT start, stop FROM ledger.finished UNION ALL SELECT uid, uid + 1 FROM ledger.groups;
CREATE TEMP VIEW now AS
    SELECT n, max_lag, policy, max(timeline.version, ifnull((SELECT max(batch) + 1 FROM survivor), 0)) AS published
    FROM timeline ORDER BY timeline DESC LIMIT 1;
"""
"""A line of a batch that the ledger still calls in training is of a transaction that was not committed any more."""

RULES: dict[str, str] = {
    "batches of the surviving timeline follow one another": """
        SELECT 'batch ' || batch || ' (line ' || line || ') comes after ' || ifnull('batch ' || before, 'no batch')
        FROM (SELECT batch, min(line) AS line, lag(batch) OVER (ORDER BY batch) AS before FROM survivor GROUP BY batch)
        WHERE batch != ifnull(before + 1, (SELECT version FROM timeline ORDER BY timeline LIMIT 1))""",
    "a batch is trained once": """
        SELECT 'batch ' || batch || ' is told by lines ' || group_concat(DISTINCT line) FROM survivor
        GROUP BY batch HAVING count(DISTINCT line) > 1""",
    "a prompt is trained or dropped once": """
        SELECT 'prompt ' || uid || ' was ' || group_concat(says || ' (line ' || line || ')', ' and ') FROM done
        GROUP BY uid HAVING count(*) > 1""",
    "a drop has a reason": """
        SELECT 'prompt ' || uid || ' (line ' || line || ')' FROM dropped WHERE reason = '' UNION ALL
        SELECT 'prompt ' || uid || ' (table groups)' FROM ledger.groups WHERE state = 'dropped' AND reason = '' UNION ALL
        SELECT 'trajectory ' || uid || '.' || traj_uid || ' (table trajectories)' FROM ledger.trajectories
        WHERE (state = 'dropped') != (reason != '')""",
    "a finished prompt was trained or dropped": """
        SELECT 'prompts ' || (before + 1) || ' to ' || (uid - 1) || ' are finished in the ledger, and no line says how '
            || '(of a run that began before rlflow kept a history, none can)'
        FROM (
            SELECT uid, lag(uid, 1, start - 1) OVER (PARTITION BY start ORDER BY uid) AS before
            FROM (
                SELECT f.start, done.uid FROM ledger.finished f JOIN done ON done.uid >= f.start AND done.uid < f.stop
                UNION ALL SELECT start, stop FROM ledger.finished
            )
        ) WHERE uid > before + 1""",
    "what was trained or dropped is so in the ledger": """
        SELECT 'prompt ' || uid || ' was ' || says || ' (line ' || line || '), the ledger ' || CASE
            WHEN g.uid IS NULL THEN 'has no row of it: it would be drawn again'
            ELSE 'says: ' || g.state || ', batch ' || g.batch || ', version ' || g.version || ' ' || g.reason END
        FROM done LEFT JOIN ledger.groups g USING (uid)
        WHERE NOT EXISTS (SELECT 1 FROM ledger.finished f WHERE done.uid >= f.start AND done.uid < f.stop)
        AND (g.uid IS NULL OR (g.state, g.reason, g.version) != (done.state, done.reason, done.version))""",
    "a row that is over has its line": """
        SELECT 'prompt ' || g.uid || ' is ' || g.state || ' ' || g.reason || ' in the ledger, and no line says so'
        FROM ledger.groups g WHERE g.state IN ('trained', 'dropped')
        AND NOT EXISTS (SELECT 1 FROM done WHERE done.uid = g.uid AND done.state = g.state)""",
    "a prompt is finished or has a row": """
        SELECT 'prompt ' || g.uid || ' is finished in the ledger, and still ' || g.state
        FROM ledger.groups g JOIN ledger.finished f ON g.uid >= f.start AND g.uid < f.stop""",
    "intervals of finished prompts are apart": """
        SELECT 'from ' || start || ' to ' || stop || ', after one to ' || before
        FROM (SELECT start, stop, lag(stop) OVER (ORDER BY start) AS before FROM ledger.finished)
        WHERE start >= stop OR start <= before""",
    "a trained batch has the groups that were trained": """
        SELECT 'batch ' || timeline || ':' || batch || ': prompt ' || uid || ' is only in the ' || iif(total = 1, 'ledger', 'history')
        FROM (
            SELECT timeline, batch, uid, sum(side) AS total FROM (
                SELECT timeline, batch, value AS uid, 1 AS side FROM ledger.batches, json_each(groups) WHERE state = 'trained'
                UNION ALL
                SELECT timeline, batch, survivor.uid, 2 FROM survivor JOIN ledger.batches b USING (timeline, batch)
                WHERE b.state = 'trained'
            ) GROUP BY timeline, batch, uid
        ) WHERE total != 3""",
    "counts are those of the lines": """
        SELECT state || ' ' || reason || ': ' || sum(counted) || ' in the ledger, ' || sum(told) || ' in the history'
        FROM (
            SELECT state, reason, groups AS counted, 0 AS told FROM ledger.totals
            UNION ALL SELECT state, reason, 0, 1 FROM folded
        ) GROUP BY state, reason HAVING sum(counted) != sum(told)""",
    "a trajectory belongs to a group": """
        SELECT 'trajectory ' || uid || '.' || traj_uid || '.' || attempt FROM ledger.trajectories
        WHERE uid NOT IN (SELECT uid FROM ledger.groups) OR traj_uid < 0 OR traj_uid >= (SELECT n FROM now)""",
    "a landed group has all its trajectories": """
        SELECT 'prompt ' || g.uid || ' is ' || g.state || ' with ' || count(t.uid) || ' of ' || (SELECT n FROM now) || ' landed'
        FROM ledger.groups g LEFT JOIN ledger.trajectories t ON t.uid = g.uid AND t.state IN ('landed', 'dropped')
        WHERE g.state IN ('landed', 'ready', 'consumed', 'trained')
        GROUP BY g.uid HAVING count(t.uid) != (SELECT n FROM now)""",
    "a group is as old as its oldest trajectory": """
        SELECT 'trajectory ' || t.uid || '.' || t.traj_uid || '.' || t.attempt || ' has tag ' || t.version_tag || ', its group ' || g.tag
        FROM ledger.trajectories t JOIN ledger.groups g USING (uid) WHERE t.state != 'queued' AND t.version_tag < g.tag""",
    "tokens are sampled from the tag on": """
        SELECT 'trajectory ' || uid || '.' || traj_uid || '.' || attempt || ' has tag ' || version_tag || ' and tokens of version '
            || json_extract(span.value, '$[0]')
        FROM ledger.trajectories, json_each(spans) span WHERE json_extract(span.value, '$[0]') < version_tag""",
    "no group is of a version that was never made": """
        SELECT 'prompt ' || uid || ' has tag ' || tag || ', published is ' || published FROM ledger.groups, now WHERE tag > published""",
    "a consumed group is in its batch": """
        SELECT 'prompt ' || uid || ', batch ' || batch || iif(sum(side) = 1, ': of the group only', ': of the batch only')
        FROM (
            SELECT uid, batch, 1 AS side FROM ledger.groups WHERE state IN ('consumed', 'trained')
            UNION ALL
            SELECT value, batch, 2 FROM ledger.batches, json_each(groups)
        ) WHERE batch >= ifnull((SELECT version FROM ledger.saved), batch) GROUP BY uid, batch HAVING sum(side) != 3""",
    "no trained token is older than max_lag": """
        SELECT 'prompt ' || uid || ' (line ' || survivor.line || ') has tokens of version ' || oldest || ' in batch ' || batch
        FROM survivor JOIN timeline t USING (timeline)
        WHERE t.policy IN ('wait', 'drop') AND oldest >= 0 AND batch - oldest > t.max_lag
        UNION ALL
        SELECT 'trajectory ' || uid || '.' || traj_uid || ' has tokens of version ' || sampled || ' in batch ' || batch
        FROM (
            SELECT g.uid, g.batch, g.timeline, traj_uid, json_extract(span.value, '$[0]') AS sampled
            FROM ledger.groups g JOIN ledger.trajectories t USING (uid), json_each(spans) span
            WHERE g.state IN ('consumed', 'trained') AND t.state = 'landed'
        ) JOIN timeline t USING (timeline) WHERE t.policy IN ('wait', 'drop') AND batch - sampled > t.max_lag""",
    "no group is trained short": """
        SELECT 'prompt ' || uid || ' (line ' || survivor.line || ') was trained with ' || trajectories || ' of ' || n || ' trajectories'
            || iif(taken_out, ', filters took out ' || taken_out || ' and leave ' || iif(least_left, 'at least ' || least_left, 'all'), '')
        FROM survivor JOIN timeline t USING (timeline)
        WHERE trajectories + taken_out != n OR (taken_out > 0 AND (least_left = 0 OR trajectories < least_left))
        UNION ALL
        SELECT 'prompt ' || g.uid || ' is ' || g.state || ' with ' || count(l.uid) || ' trajectories, filters leave ' || t.least_left
        FROM ledger.groups g JOIN ledger.timelines t USING (timeline)
        LEFT JOIN ledger.trajectories l ON l.uid = g.uid AND l.state = 'landed'
        WHERE g.state IN ('ready', 'consumed', 'trained') AND t.least_left > 0
        GROUP BY g.uid HAVING count(l.uid) < min(t.least_left, t.n)""",
    "what was taken out of a group is so in the ledger": """
        SELECT 'prompt ' || s.uid || ' (line ' || s.line || '): ' || taken_out || ' trajectories were taken out, in the ledger '
            || count(t.uid)
        FROM survivor s JOIN ledger.groups g ON g.uid = s.uid AND g.state = 'trained'
        LEFT JOIN ledger.trajectories t ON t.uid = s.uid AND t.state = 'dropped'
        GROUP BY s.uid HAVING count(t.uid) != taken_out""",
    "timelines are those of the history": """
        SELECT 'timeline ' || timeline || ' is in the ' || iif(sum(side) = 1, 'ledger', 'history') || ' only, or another one there'
        FROM (
            SELECT timeline, version, n, max_lag, policy, least_left, 1 AS side FROM ledger.timelines
            UNION ALL SELECT timeline, version, n, max_lag, policy, least_left, 2 FROM timeline
        ) GROUP BY timeline, version, n, max_lag, policy, least_left HAVING sum(side) != 3""",
    "a checkpoint is of a version that was made": """
        SELECT 'version ' || saved.version || ' of timeline ' || saved.timeline || ', published is ' || published
        FROM ledger.saved, now WHERE saved.version > published OR saved.timeline NOT IN (SELECT timeline FROM timeline)""",
}

PENDING = """
    SELECT before AS start, start AS stop FROM (
        SELECT start, max(stop) OVER (ORDER BY start ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM known
    ) WHERE start > before"""
"""Uids below the highest drawn that are neither finished nor have a row: they are drawn next."""
