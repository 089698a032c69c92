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

/* The process that wrote a heartbeat file last. */
struct mu_last_beat {
    uint32_t attempt; /* 0 when there is no file, or none that can be read */
    bool closed;
    int32_t pid;
    int64_t began_ns; /* of the process, Unix time */
    int64_t seen_ns;  /* Unix time with the offset of that process; 0 where it is not known */
};

/* Of the heartbeat file of `label`. */
void mu_heartbeat_read(const char *log_dir, const char *label, struct mu_last_beat *last);

#endif
