"""A folder between a search and its judges, which may be other processes, on other machines, at other times.

    requests/  STEM.json         what a search wants judged; STEM begins with the environment, task and purpose, and
                                 holds a hash of all that a verdict depends on, so the same request is the same file
    claimed/   STEM@SERVER.json  a request that a server has in hand: renamed from requests/, and back where it fails
    verdicts/  STEM.json         answers; they stay
    taken/     STEM              an answer that a search has counted
    servers/   SERVER.json       what a server is, and a counter: while it changes, the server lives
    aside/                       torn or foreign files, each with its reason

Assumed of the file system: rename within the folder is atomic, and a file that was closed is whole for whoever opens it
later (close-to-open consistency, as of NFS). Not assumed: locks, hard links, clocks that agree, order between files, or
that a file is seen soon. What a delay makes two servers do twice is counted once, since both answers have one name.

client.py: the search's side, a Judge. server.py: the other side. folder.py: the files. messages.py: what is in them.
task_files.py: a task as text, and back. warm_judges.py: the judges of a server, by task.
"""
