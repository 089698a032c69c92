"""Runs whose truth is known, as the arrays that the verdict judges.

`work` draws what each rank does itself, with the noise of healthy real runs (`noise`). `meetings`
derives from it when each stage begins and ends, and so who waits for whom. `plants` adds what is
wrong with a run. `device` does the same for runs on a GPU. `simulate` puts them together.
"""
