/* A forked child: what it leaves of its parent's recorder, and what it begins with. */
#ifndef MU_FORK_H
#define MU_FORK_H

#include <stdbool.h>

#include "base/error.h"
#include "stages/state.h"

/* Gives a recorder all that a fresh process needs, in memory: locks, journal, names, output. */
MU_MUST_CHECK int mu_recorder_begin(struct mu_recorder *recorder, struct mu_error *err);

/* Must be called before anything else is done with a recorder that may have come through a fork.
 * Cheap when it has not. Returns true when this process is a child that starts afresh. */
bool mu_recorder_check_fork(struct mu_recorder *recorder);

#endif
