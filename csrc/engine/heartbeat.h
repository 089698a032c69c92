/* A small JSON file that says what the process does, for readers on other hosts that cannot map
 * its journal: rank, step, open stages and since when. Replaced as a whole every two seconds. */
#ifndef MU_HEARTBEAT_H
#define MU_HEARTBEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "output.h"

struct mu_recorder;

/* The file's path and its text, ready to be written without a lock. */
struct mu_heartbeat {
    char path[MU_PATH_BYTES];
    char *text; /* owned; NULL when memory ran out */
    size_t length;
};

/* Looks at the recorder; the caller holds recorder->drain_lock. */
void mu_heartbeat_take(struct mu_heartbeat *heartbeat, struct mu_recorder *recorder, bool closed);

/* Replaces `<log_dir>/<label>.heartbeat.json` and frees the text. A failure is not reported: the
 * rows are what counts. May block as long as the file system does. */
void mu_heartbeat_write(struct mu_heartbeat *heartbeat);

/* The attempt that the heartbeat file of `label` states, 0 when there is none. */
uint32_t mu_heartbeat_read_attempt(const char *log_dir, const char *label);

#endif
