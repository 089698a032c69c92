/* Warnings to the user. */
#ifndef MU_WARNINGS_H
#define MU_WARNINGS_H

#include "core/state.h"

/* Hands a warning to the hook of set_warning_hook; the hook's own exceptions are unraisable, and an
 * exception that is set stays. Needs the GIL. */
void mu_py_warn(struct mu_state *state, const char *kind, const char *message);

#endif
