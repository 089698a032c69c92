/* Warnings to the user. */
#ifndef MU_WARNINGS_H
#define MU_WARNINGS_H

#include "core/state.h"

/* Passes a warning to the hook of set_warning_hook. An exception that the hook raises is reported
 * as unraisable. An exception that is set already stays set. Needs the GIL. */
void mu_py_warn(struct mu_state *state, const char *kind, const char *message);

/* The same through a logger of the user's; NULL for the project's. */
void mu_py_warn_by(struct mu_state *state, PyObject *logger, const char *kind, const char *message);

#endif
