"""Brings what the hosts of a run record to the host of rank 0, where they share no disk.

All of it is done by the parents of `my_utils run`, one a host; the training has no part in it. Its
ranks only agree, in the store in which they agree on a folder, on one parent as a meeting point:
`meeting`. There the parent of rank 0 says where it receives, and the others ask for that: `parent`.
Then each sends what its ranks have written since the last time, and rank 0's keeps it in a folder
for each host: `sending`, `receiving`. `wire` is how they talk.
"""
