/* A small JSON file with the present state of the process: rank, step, and open stages with their
 * start times, and how much could not be written. It is for readers on other hosts, which cannot
 * map the journal, and for those that come after a disk was full.
 *
 * It is written over in place every two seconds, and when rows were lost. A reader that meets the
 * write finds two numbers that differ, `sequence` at the beginning and `end` at the end. */
#ifndef MU_HEARTBEAT_H
#define MU_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

struct mu_recorder;

/* Writes `<log_dir>/<label>.heartbeat.json`. A failure is not reported, because only the rows
 * matter. The caller holds recorder->drain_lock. */
void mu_heartbeat_write(struct mu_recorder *recorder, bool closed);

/* The attempt that the heartbeat file of `label` states, 0 when there is none. */
uint32_t mu_heartbeat_read_attempt(const char *log_dir, const char *label);

#endif
