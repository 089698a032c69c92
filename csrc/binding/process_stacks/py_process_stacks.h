/* The reader of this process's stacks, which the module's state holds. */
#ifndef MU_PY_PROCESS_STACKS_H
#define MU_PY_PROCESS_STACKS_H

#include "core/state.h"
#include "process_stacks/stack_reader.h"

/* The reader, made and checked at first use: NULL, without an exception, when there is no memory.
 * It is ready once a stack that Python tells was read as it is. */
const struct mu_stack_reader *mu_py_stack_reader(struct mu_state *state);

#endif
