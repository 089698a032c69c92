/* A small JSON file that says what the process does, for readers on other hosts that cannot map
 * its journal: rank, step, open stages and since when. Replaced as a whole every two seconds. */
#ifndef MU_HEARTBEAT_H
#define MU_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

struct mu_recorder;

/* Writes `<log_dir>/<label>.heartbeat.json`. A failure is not reported: the rows are what counts.
 * The caller holds recorder->drain_lock. */
void mu_heartbeat_write(struct mu_recorder *recorder, bool closed);

/* The attempt that the heartbeat file of `label` states, 0 when there is none. */
uint32_t mu_heartbeat_read_attempt(const char *log_dir, const char *label);

#endif
