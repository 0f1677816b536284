"""Bytes that the processes of a run share. Columns are written once and read as views; only keys travel.

protocol.py   Pool: put, view, release, pin; Key, PoolStats
freelist.py   which bytes of a lane are free (pure)
arena.py      the memory of a run: unnamed files in /dev/shm, one lane a writing process
shm.py        the pool of one host, on an arena; no server
"""
