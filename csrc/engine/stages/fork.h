/* Resets the recorder in a forked child. */
#ifndef MU_FORK_H
#define MU_FORK_H

#include <stdbool.h>

#include "base/error.h"
#include "stages/state.h"

/* Of a recorder that is new in its process. */
void mu_recorder_init_locks(struct mu_recorder *recorder);

/* Gives a recorder everything else that a new process needs: journal, names, output. All of it is
 * in memory. */
MU_MUST_CHECK int mu_recorder_begin(struct mu_recorder *recorder, struct mu_error *err);

/* Must be called before any other use of a recorder that may come from a parent process. Cheap when
 * there was no fork. Returns true when this process is a child whose recorder was reset. */
bool mu_recorder_check_fork(struct mu_recorder *recorder);

#endif
