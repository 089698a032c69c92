/* A part of a profile CSV as Python passes it: (name, fd, limit, data, has_header). */
#ifndef MU_PY_CSV_PART_H
#define MU_PY_CSV_PART_H

#include "core/args.h"
#include "csv/csv_reader.h"

/* Fills `input`, whose pointers are borrowed from the tuple; -1 with an exception. */
int mu_py_csv_part(PyObject *tuple, struct mu_csv_input *input);

/* Adds the message of `err` to the list `errors`; -1 with an exception. */
int mu_py_add_error(PyObject *errors, const struct mu_error *err);

#endif
