/* Which process writes a CSV, where the file system locks nothing: a file `<csv>.claim` that is
 * made only where there is none, with the host, the boot, the number and the start of its process.
 */
#ifndef MU_CLAIM_H
#define MU_CLAIM_H

#include <stdbool.h>

#include "base/error.h"

/* Claims `csv_path` for this process. *taken is false when another process has it that lives, or
 * that runs on another host, where nobody here can tell. The claim of a dead process is taken
 * over. */
MU_MUST_CHECK int mu_claim_take(const char *csv_path, bool *taken, struct mu_error *err);

/* Removes this process's claim. */
void mu_claim_release(const char *csv_path);

#endif
