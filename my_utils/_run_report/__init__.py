"""What `my_utils.report` is made of.

Files become columns (`ranks`), columns cells of a database (`cells`), and cells what is looked for:
who made others wait (`waits`), who is slow (`stragglers`), when a stage became slower (`changes`),
what each stage takes (`stages`). `figures` and `page` show it; `on_ray` reads on other machines.
"""
