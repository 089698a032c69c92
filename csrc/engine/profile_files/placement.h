/* Where a journal may be placed: only on file systems that are known to be local. A page fault on a
 * dead network mount would stop the training forever. */
#ifndef MU_PLACEMENT_H
#define MU_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Whether the file system under the directory is known to be local. */
bool mu_placement_is_local(const char *directory);

/* A directory on this machine for journals that may not be in their log directory:
 * /dev/shm/my_utils-<uid>, or below $TMPDIR or /tmp, made when missing. Where another user has
 * taken that name, or others can write to the directory, it is the first of my_utils-<uid>-1 and so
 * on that is ours. */
MU_MUST_CHECK int mu_placement_local_directory(char *path, size_t size, struct mu_error *err);

enum { MU_PLACE_BYTES = 96 };

/* A line that names the directory of `path` on this machine since its start, without a line end:
 * two containers may have other directories under one path. Empty when unknown. */
void mu_placement_of(const char *path, char line[MU_PLACE_BYTES]);

#endif
