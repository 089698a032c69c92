/* A part of a profile CSV as Python passes it: (name, fd, limit, data, has_header). */
#ifndef MU_PY_CSV_PART_H
#define MU_PY_CSV_PART_H

#include "core/args.h"
#include "csv/csv_reader.h"

/* Fills `input`; -1 with an exception. Its name is borrowed from `*name`, a new reference, and its
 * data from the tuple. */
int mu_py_csv_part(PyObject *tuple, struct mu_csv_input *input, PyObject **name);

/* A call of the engine without the GIL, which a signal may end while it waits for input. */
struct mu_py_wait {
    PyThreadState *saved;
};

/* A `should_stop` for the engine, `context` is a struct mu_py_wait: runs the handlers of signals,
 * in the main thread. 1 where one has raised. */
int mu_py_signal_raised(void *context);

/* Adds the message of `err` to the list `errors`; -1 with an exception. */
int mu_py_add_error(PyObject *errors, const struct mu_error *err);

#endif
