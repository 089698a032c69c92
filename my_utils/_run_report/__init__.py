"""What `my_utils.report` is made of.

Files become columns (`ranks`), columns what a stage took in a step (`reduce`), kept in a database
(`cells`) and read as matrices (`grid`). In these is looked for who made others wait (`waits`), who
is slow (`stragglers`), when a stage became slower (`changes`) and what each stage takes (`stages`).
`figures` and `page` show it; `on_ray` reads on other machines.
"""
