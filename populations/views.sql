-- Views over the tables of migrations.py, for readers and for people with a client of SQLite. `scores`: SQLite takes the
-- bare columns from the row that holds the maximum.

CREATE VIEW scores AS
SELECT environment AS environment_id, candidate, MAX(id) AS evaluation, status, score, log_us, witnessed
FROM evaluations WHERE purpose = 'score' AND status != 'infra_error' GROUP BY environment, candidate;

CREATE VIEW champions AS
SELECT l.environment_id, n.kind || ' (' || n.device || ')' AS environment,
    RANK() OVER (PARTITION BY l.environment_id ORDER BY l.log_us, l.candidate) AS place,
    l.candidate, l.score, l.log_us, s.name AS strategy, c.operator, c.generation, c.parent, o.sha256 AS source_sha256,
    datetime(f.at, 'unixepoch') AS confirmed_utc
FROM scores l
JOIN (
    SELECT environment, candidate, MIN(status = 'passed') AS passed, MAX(at) AS at FROM evaluations
    WHERE purpose = 'confirm' AND status != 'infra_error' GROUP BY environment, candidate
) f ON f.environment = l.environment_id AND f.candidate = l.candidate AND f.passed
JOIN environments n ON n.id = l.environment_id
JOIN candidates c ON c.id = l.candidate
JOIN sources o ON o.id = c.source
LEFT JOIN strategies s ON s.id = c.strategy
WHERE l.status = 'passed' AND l.log_us IS NOT NULL
ORDER BY l.environment_id, place;

CREATE VIEW improvements AS
SELECT e.environment AS environment_id, n.kind || ' (' || n.device || ')' AS environment,
    e.candidate, c.attempt, c.parent, s.name AS strategy, c.operator,
    e.score, e.log_us, e.before - e.log_us AS log_gain, e.evaluation, e.run AS session, e.at,
    datetime(e.at, 'unixepoch') AS utc
FROM (
    SELECT id AS evaluation, run, environment, candidate, score, log_us, at, MIN(log_us) OVER (
        PARTITION BY environment ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before FROM evaluations WHERE purpose = 'score' AND log_us IS NOT NULL
) e
JOIN environments n ON n.id = e.environment
JOIN candidates c ON c.id = e.candidate
LEFT JOIN strategies s ON s.id = c.strategy
WHERE e.before IS NULL OR e.log_us < e.before
ORDER BY e.evaluation;

CREATE VIEW strategy_credit AS
SELECT e.environment_id, n.kind || ' (' || n.device || ')' AS environment,
    s.name AS strategy, s.family, COUNT(*) AS tried,
    SUM(e.status = 'passed') AS passed, SUM(e.status = 'passed' AND e.witnessed) AS witnessed,
    AVG(p.log_us - e.log_us) AS mean_log_gain, MAX(p.log_us - e.log_us) AS best_log_gain
FROM candidates c
JOIN strategies s ON s.id = c.strategy
JOIN scores e ON e.candidate = c.id
JOIN environments n ON n.id = e.environment_id
LEFT JOIN scores p ON p.candidate = c.parent AND p.environment_id = e.environment_id
GROUP BY e.environment_id, s.name, s.family
ORDER BY e.environment_id, best_log_gain DESC;

CREATE VIEW ledger AS
SELECT session, what, of, SUM(amount) AS amount, unit FROM (
    SELECT e.run AS session, 'evaluations' AS what, j.key AS of, j.value AS amount, 'count' AS unit
        FROM evaluations e, json_each(e.charged) j
    UNION ALL SELECT a.run, 'evaluations', j.key, j.value, 'count'
        FROM turns t JOIN attempts a ON a.id = t.attempt, json_each(t.charged) j
    UNION ALL SELECT a.run, 'evaluations', 'probe', c.probes, 'count'
        FROM candidates c JOIN attempts a ON a.id = c.attempt
    UNION ALL SELECT a.run, 'evaluations', 'probe', f.probes, 'count'
        FROM failures f JOIN attempts a ON a.id = f.attempt
    UNION ALL SELECT run, 'gpu', purpose, gpu_s, 's' FROM evaluations
    UNION ALL SELECT a.run, 'gpu', 'agents', t.gpu_s, 's' FROM turns t JOIN attempts a ON a.id = t.attempt
    UNION ALL SELECT a.run, 'calls', c.model, 1, 'count' FROM calls c JOIN attempts a ON a.id = c.attempt
    UNION ALL SELECT a.run, 'tokens', c.model, c.tokens_in + c.tokens_out, 'count'
        FROM calls c JOIN attempts a ON a.id = c.attempt
    UNION ALL SELECT a.run, 'money', c.model, c.dollars, 'dollars' FROM calls c JOIN attempts a ON a.id = c.attempt
)
WHERE amount != 0
GROUP BY session, what, of, unit
ORDER BY session, what, of;
