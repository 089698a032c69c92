/* Resets the recorder in a forked child. */
#ifndef MU_FORK_H
#define MU_FORK_H

#include <stdbool.h>

#include "base/error.h"
#include "stages/state.h"

/* Gives a recorder everything that a new process needs: locks, journal, names, output. All of it is
 * in memory. */
MU_MUST_CHECK int mu_recorder_begin(struct mu_recorder *recorder, struct mu_error *err);

/* Must be called before any other use of a recorder that may come from a parent process. Cheap when
 * there was no fork. Returns true when this process is a child whose recorder was reset. */
bool mu_recorder_check_fork(struct mu_recorder *recorder);

#endif
